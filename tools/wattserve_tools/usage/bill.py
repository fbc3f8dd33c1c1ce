"""A bill: what an account book says of a span, with cost and carbon, and what of it is nobody's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from wattserve_client import UsageReport, UsageRow
from wattserve_tools.usage.tariff import HOUR_S, UJ_PER_KWH, Tariff

KEYS = ("tenant", "variant", "hour", "day", "month")
_FORMS = {"hour": "%Y-%m-%d %H:%M%z", "day": "%Y-%m-%d", "month": "%Y-%m"}
COUNTS = ("requests", "failed", "cancelled", "unknown", "sequences", "tokens", "output_tokens")
ENERGIES = ("accelerator_uj", "host_uj", "accelerator_idle_uj", "host_idle_uj")


@dataclass(frozen=True)
class Line:
    """The sum of some rows."""

    keys: tuple[str, ...]  # in the order that was asked for; none of the sum of all
    used: UsageRow
    cost: float | None
    carbon_g: float | None

    @property
    def kwh(self) -> float:
        """Of these joules, without PUE."""
        return self.used.energy_uj / UJ_PER_KWH


@dataclass(frozen=True)
class Bill:
    report: UsageReport
    by: tuple[str, ...]
    zone: tzinfo
    zone_name: str
    tariff: Tariff
    lines: Sequence[Line]
    total: Line

    @property
    def nobodys(self) -> dict[str, int]:
        """Microjoules that are on no line, by account: with the lines they are what the meters counted, to
        the microjoule. What a receipt was charged counts when it becomes final: where it was charged before
        the span and became final in it, `receipts not here` is less than nothing, as `pending` may be."""
        counters = self.report.counters

        def sum_of(name: str) -> int:
            return sum(getattr(each, name) for each in counters)

        return {
            "idle, unshared": sum_of("idle_uj") - sum_of("idle_shared_uj"),
            "warm-up": sum_of("warmup_uj"),
            "unattributed": sum_of("unattributed_uj"),
            "gap": sum_of("gap_uj"),
            "pending": sum(each.pending_uj for each in counters),
            "receipts not here": sum_of("active_uj") + sum_of("idle_shared_uj") - self.total.used.energy_uj,
        }

    @property
    def measured_uj(self) -> int:
        return sum(each.measured_uj for each in self.report.counters)

    @property
    def sci_g(self) -> float | None:
        """Software Carbon Intensity (ISO/IEC 21031), (E x I + M) / R, in grams for each inference: a
        sequence. Without embodied emissions M is left out. None where intensity or inferences are missing."""
        if self.total.carbon_g is None or not self.total.used.sequences:
            return None
        hours = (self.report.until_unix_s - self.report.since_unix_s) / HOUR_S
        embodied_g = (self.tariff.embodied_g_per_hour or 0.0) * hours
        return (self.total.carbon_g + embodied_g) / self.total.used.sequences

    @property
    def wh_per_1000(self) -> float | None:
        """Wh for each 1,000 queries (sequences), as AI Energy Score counts; without PUE."""
        sequences = self.total.used.sequences
        return self.total.kwh * 1e6 / sequences if sequences else None


def needs_hours(by: Sequence[str], tariff: Tariff) -> bool:
    """Whether rows must be told by the hour."""
    is_varying = tariff.intensity is not None and tariff.intensity.constant is None
    return is_varying or bool({"hour", "day", "month"} & set(by))


def make_bill(report: UsageReport, by: Sequence[str], zone: tzinfo, zone_name: str, tariff: Tariff) -> Bill:
    """report: by tenant and variant where `by` has them, and by hour where `needs_hours`. Raises UserError
    where the tariff has no figure for an hour that was used."""
    groups: dict[tuple[str, ...], list[UsageRow]] = defaultdict(list)
    for row in report.rows:
        groups[tuple(_key(row, name, zone) for name in by)].append(row)

    def in_order(group: tuple[tuple[str, ...], list[UsageRow]]) -> list[Any]:
        """In time, also through the hour that is there twice when summer ends."""
        keys, rows = group
        return [rows[0].hour_unix_s if name == "hour" else key for name, key in zip(by, keys, strict=True)]

    lines = [_sum(keys, rows, tariff) for keys, rows in sorted(groups.items(), key=in_order)]
    return Bill(report, tuple(by), zone, zone_name, tariff, lines, _sum((), report.rows, tariff))


def _key(row: UsageRow, name: str, zone: tzinfo) -> str:
    if name == "tenant":
        return row.tenant or ""
    if name == "variant":
        return row.variant or ""
    assert row.hour_unix_s is not None
    return datetime.fromtimestamp(row.hour_unix_s, zone).strftime(_FORMS[name])


def _sum(keys: tuple[str, ...], rows: Sequence[UsageRow], tariff: Tariff) -> Line:
    by_hour: dict[int, float] = defaultdict(float)
    for row in rows:
        by_hour[(row.hour_unix_s or 0) // HOUR_S] += row.energy_uj
    sums = {name: sum(getattr(row, name) for row in rows) for name in (*COUNTS, *ENERGIES)}
    used = UsageRow(tenant=None, variant=None, hour_unix_s=None, **sums)
    return Line(keys, used, tariff.cost(used.energy_uj), tariff.carbon_g(by_hour))


def instant(unix_s: float, zone: tzinfo, *, in_seconds: bool = False) -> str:
    seconds = ":%S" if in_seconds else ""
    return datetime.fromtimestamp(unix_s, zone).strftime(f"%Y-%m-%d %H:%M{seconds} %Z")
