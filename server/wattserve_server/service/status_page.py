"""The status page: what a person wants to see of a running server, in one HTML page without scripts.

It says what GetServerInfo and GetEnergyReport say, with the watts of the last minutes and the last failures.
Pure but for the template.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.memory import format_bytes
from wattserve_server.service.convert import quality_word
from wattserve_server.telemetry.failures import FailedRequest
from wattserve_server.telemetry.history import PERIOD_S, SAMPLES, Watts
from wattserve_server.telemetry.statistics import VariantStatistics

CONTENT_TYPE = "text/html; charset=utf-8"

REFRESH_S = 5

CHART_WIDTH, CHART_HEIGHT = 720, 120
"""Of the picture of the watts, in its own units."""

ACCOUNTS = (
    ("warm-up", "warmup_uj", "before the server was ready, and calibration"),
    ("idle", "idle_uj", "what the device draws while nothing runs"),
    ("unattributed", "unattributed_uj", "above idle, with no batch to explain it"),
    ("gap", "gap_uj", "counted over times in which the meter told nothing"),
    ("pending", "pending_uj", "metered, its batches not settled yet"),
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device's meter and ledger. now: None until there are two readings. course: oldest first."""

    meter: pb.MeterInfo
    ledger: pb.EnergyReport
    now: Watts | None
    course: Sequence[Watts]


@dataclass(frozen=True, slots=True)
class Page:
    """state: starting, ready or draining. info: None while starting. statistics: by variant."""

    state: str
    uptime_s: float
    failures: Sequence[FailedRequest]
    info: pb.ServerInfo | None = None
    devices: Sequence[Device] = ()
    statistics: Mapping[str, VariantStatistics] | None = None
    queued: int = 0


@dataclass(frozen=True, slots=True)
class VariantRow:
    """Energies are None while none is settled."""

    info: pb.VariantInfo
    state: str
    requests: int
    failed: int
    joules_per_request: float | None
    joules_per_token: float | None


@dataclass(frozen=True, slots=True)
class AccountRow:
    name: str
    joules: float
    share: float
    about: str


def render(page: Page) -> bytes:
    return (
        _template()
        .render(
            page=page,
            now=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            refresh_s=REFRESH_S,
            variants=_variant_rows(page),
            accounts=accounts,
            areas=areas,
            top_watts=top_watts,
            quality=quality_word,
            width=CHART_WIDTH,
            height=CHART_HEIGHT,
            minutes=PERIOD_S * (SAMPLES - 1) / 60,
        )
        .encode()
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattserve_server.service"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"amount": amount, "duration": duration, "size": format_bytes, "clock": clock}
    return environment.get_template("status.html.j2")


def _variant_rows(page: Page) -> list[VariantRow]:
    if page.info is None:
        return []
    active = {each.variant: each for device in page.devices for each in device.ledger.active}
    return [_variant_row(info, active.get(info.name), page.statistics or {}) for info in page.info.variants]


def _variant_row(
    info: pb.VariantInfo, energy: pb.VariantEnergy | None, statistics: Mapping[str, VariantStatistics]
) -> VariantRow:
    found = statistics.get(info.name, VariantStatistics())
    per_request = found.settled_uj / 1e6 / found.settled if found.settled else None
    per_token = energy.active_uj / 1e6 / energy.tokens if energy is not None and energy.tokens else None
    state = pb.VariantState.Name(info.state).removeprefix("VARIANT_STATE_").lower()
    return VariantRow(info, state, found.success.count, found.fail.count, per_request, per_token)


def accounts(ledger: pb.EnergyReport) -> list[AccountRow]:
    """Where the ledger's joules stand; empty when there is no figure."""
    if not ledger.HasField("measured_uj"):
        return []
    rows = [(f"active {each.variant}", each.active_uj, "") for each in ledger.active]
    rows += [(name, getattr(ledger, field), about) for name, field, about in ACCOUNTS]
    total = ledger.measured_uj or 1
    return [AccountRow(name, amount_uj / 1e6, amount_uj / total, about) for name, amount_uj, about in rows]


def top_watts(course: Sequence[Watts]) -> float:
    """What the picture's upper edge stands for."""
    return max((each.active + each.idle + each.other for each in course), default=0.0) or 1.0


def areas(course: Sequence[Watts]) -> list[tuple[str, str]]:
    """For each account its name and the outline of its area, stacked: points of an SVG polygon."""
    span, top = PERIOD_S * (SAMPLES - 1), top_watts(course)
    edges = [float(CHART_WIDTH)]
    for each in reversed(course):
        edges.insert(0, max(0.0, edges[0] - CHART_WIDTH * each.seconds / span))
    found, floor = [], [0.0] * len(course)
    for name in ("idle", "active", "other"):
        ceiling = [below + max(0.0, getattr(each, name)) for below, each in zip(floor, course, strict=True)]
        over = _steps(edges, ceiling, top)
        under = _steps(edges, floor, top)[::-1]
        found.append((name, " ".join(f"{x:.1f},{y:.1f}" for x, y in [*over, *under])))
        floor = ceiling
    return found


def _steps(edges: Sequence[float], levels: Sequence[float], top: float) -> list[tuple[float, float]]:
    points = []
    for index, level in enumerate(levels):
        y = CHART_HEIGHT * (1 - level / top)
        points += [(edges[index], y), (edges[index + 1], y)]
    return points


def amount(value: float | None, unit: str) -> str:
    """Three significant digits with a prefix: "12.3 mJ"."""
    if value is None:
        return "unknown"
    for factor, prefix in ((1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            digits = ".3g" if abs(value) < 1000 * factor else ".0f"
            return f"{value / factor:{digits}} {prefix}{unit}"
    return f"0 {unit}"


def duration(seconds: float) -> str:
    """The two largest units: "2 h 5 min"."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])


def clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
