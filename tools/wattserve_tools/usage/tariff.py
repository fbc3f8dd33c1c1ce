"""What joules cost, in money and in carbon dioxide: by figures of the reader, each named in what is shown."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from wattserve_common.arguments import float_of
from wattserve_common.errors import UserError

NONE_GIVEN = "none given"
UJ_PER_KWH = 3.6e12
HOUR_S = 3600
_MOST_CHARACTERS = 64 << 20


@dataclass(frozen=True)
class Price:
    per_kwh: float
    currency: str

    @classmethod
    def parse(cls, text: str, where: str = "--price") -> Price:
        """`0.30 EUR`, for each kWh. Raises UserError, naming `where` it stands."""
        found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]{3}|[^\s\w.])\s*", text)
        try:
            amount = float(found[1]) if found else -1.0
        except ValueError:
            amount = -1.0
        known = found is not None and (found[2].isalpha() or unicodedata.category(found[2]) == "Sc")
        if found is None or not known or not 0 <= amount < float("inf"):
            raise UserError(f"{where} {text!r}: is an amount and a currency for each kWh, such as 0.30EUR")
        return cls(amount, found[2])


@dataclass(frozen=True)
class Intensity:
    """Grams of carbon dioxide equivalents for each kWh: one figure, or one for each hour."""

    constant: float | None
    by_hour: Mapping[int, float]  # by unix hours
    source: str  # as it was given
    where: str = "--carbon"  # it was given

    @classmethod
    def parse(cls, text: str, where: str = "--carbon") -> Intensity:
        """A number, or the path of a CSV with the columns `hour` (ISO 8601, with an offset or Z) and
        `g_per_kwh`. Raises UserError, naming `where` it stands and the line."""
        try:
            constant = float_of(text)
        except ValueError:
            return cls(None, _read(Path(text), where), text, where)
        if not 0 <= constant < float("inf"):
            raise UserError(f"{where} {text}: is grams for each kWh, 0 or more")
        return cls(constant, {}, f"{constant:g} g/kWh", where)

    def at(self, hour: int) -> float:
        """Raises UserError for an hour that the file does not have."""
        if self.constant is not None:
            return self.constant
        if hour not in self.by_hour:
            raise UserError(
                f"{self.where} {self.source}: has no figure for the hour {_iso(hour)}, which is used"
            )
        return self.by_hour[hour]


@dataclass(frozen=True)
class Tariff:
    """pue: power usage effectiveness, by which joules are multiplied for cost and carbon.
    embodied_g_per_hour: emissions of making the hardware, for each hour of the span. given: the flag or the
    variable that each of what was given stands in."""

    price: Price | None = None
    intensity: Intensity | None = None
    pue: float = 1.0
    embodied_g_per_hour: float | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    def kwh(self, energy_uj: float) -> float:
        """At the building's meter."""
        return energy_uj * self.pue / UJ_PER_KWH

    def cost(self, energy_uj: float) -> float | None:
        return None if self.price is None else self.kwh(energy_uj) * self.price.per_kwh

    def carbon_g(self, uj_by_hour: Mapping[int, float]) -> float | None:
        """uj_by_hour: joules by unix hour."""
        if self.intensity is None:
            return None
        return sum(self.kwh(uj) * self.intensity.at(hour) for hour, uj in uj_by_hour.items() if uj)

    @property
    def named(self) -> Mapping[str, str]:
        """What it is made of, in words."""
        price = f"{self.price.per_kwh:g} {self.price.currency}/kWh" if self.price else ""
        carbon = self.intensity.source if self.intensity else ""
        embodied = "" if self.embodied_g_per_hour is None else f"{self.embodied_g_per_hour:g} g/h"
        named = (
            ("price", "price", price),
            ("carbon intensity", "carbon", carbon),
            ("PUE", "pue", f"{self.pue:g}"),
            ("embodied emissions", "embodied", embodied),
        )
        return {
            name: f"{words} ({self.given.get(key, NONE_GIVEN)})" if words else NONE_GIVEN
            for name, key, words in named
        }


def _read(path: Path, where: str) -> dict[int, float]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise UserError(f"{where} {path}: is no number, and cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{where} {path}: is no CSV in UTF-8") from None
    if len(text) > _MOST_CHARACTERS:
        raise UserError(f"{where} {path}: is longer than {_MOST_CHARACTERS >> 20} MiB, a century of hours")
    try:
        return _hours(f"{where} {path}", csv.DictReader(StringIO(text, newline="")))
    except csv.Error as error:
        raise UserError(f"{where} {path}: is no CSV: {error}") from None


def _hours(where: str, lines: csv.DictReader[str]) -> dict[int, float]:
    if any((lines.fieldnames or []).count(column) != 1 for column in ("hour", "g_per_kwh")):
        raise UserError(f"{where}: its first line must name the columns hour and g_per_kwh, each once")
    found: dict[int, float] = {}
    for line in lines:
        place = f"{where}, line {lines.line_num}"
        try:
            begun = datetime.fromisoformat((line["hour"] or "").strip())
        except ValueError:
            raise UserError(f"{place}: {line['hour']!r} is no instant, such as 2026-11-23T13:00Z") from None
        if begun.tzinfo is None:
            raise UserError(f"{place}: {line['hour']!r} has no offset; write 2026-11-23T13:00Z or +01:00")
        seconds = begun.timestamp()
        if seconds < 0:
            raise UserError(f"{place}: {line['hour']!r} is before 1970")
        if seconds % HOUR_S:
            raise UserError(f"{place}: {line['hour']!r} is no whole hour of UTC")
        try:
            grams = float_of(line["g_per_kwh"] or "")
        except ValueError:
            grams = -1.0
        if not 0 <= grams < float("inf"):
            raise UserError(
                f"{place}: g_per_kwh is {line['g_per_kwh']!r}; it is grams for each kWh, 0 or more"
            )
        hour = int(seconds) // HOUR_S
        if hour in found:
            raise UserError(f"{place}: the hour {_iso(hour)} stands there twice")
        found[hour] = grams
    if not found:
        raise UserError(f"{where}: has no hours")
    return found


def _iso(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("%Y-%m-%dT%H:%MZ")
