"""A budget, as a keys file writes it: how many joules a tenant may use in a period of UTC."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime
from typing import NamedTuple

from wattserve_server.errors import ConfigError

HARD, SOFT = "hard", "soft"
HOUR, DAY, MONTH = PERIODS = ("hour", "day", "month")
_UJ = {"J": 10**6, "kJ": 10**9, "MJ": 10**12, "Wh": 3_600 * 10**6, "kWh": 3_600 * 10**9}
_BUDGET = re.compile(rf"({HARD}|{SOFT}) +([0-9.]+) *({'|'.join(_UJ)}) */ *({'|'.join(PERIODS)})")
_MOST_UJ = 2**62


class Budget(NamedTuple):
    """hard: refused beyond it. soft: warned."""

    kind: str
    uj: int
    period: str  # of UTC

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`hard 500 J/day`. Raises ConfigError."""
        found = _BUDGET.fullmatch(text.strip())
        try:
            amount = float(found[2]) if found else 0.0
        except ValueError:
            found = None
        if found is None:
            raise ConfigError(
                f"{text!r} is no budget, such as `hard 500 J/day` or `soft 2 kWh/month`: hard or soft, an "
                f"amount in {', '.join(_UJ)}, and {', '.join(PERIODS)}"
            )
        uj = amount * _UJ[found[3]]
        if uj < 1:
            raise ConfigError(f"{text!r}: must be more than 0; to refuse a tenant, revoke its keys")
        if not uj < _MOST_UJ:
            raise ConfigError(f"{text!r}: is more than any meter counts; leave the budget out for none")
        return cls(found[1], round(uj), found[4])

    def __str__(self) -> str:
        return f"{self.uj / 1e6:g} J/{self.period}"


def begun_hour(period: str, unix_s: float) -> int:
    """The unix hour in which the period of an instant began."""
    now = datetime.fromtimestamp(unix_s, UTC).replace(minute=0, second=0, microsecond=0)
    if period != HOUR:
        now = now.replace(hour=0)
    if period == MONTH:
        now = now.replace(day=1)
    return int(now.timestamp()) // 3600


def end_hour(period: str, unix_s: float) -> int:
    """The unix hour in which the next one begins."""
    hours = {HOUR: 1, DAY: 24}.get(period)
    if hours is None:
        now = datetime.fromtimestamp(unix_s, UTC)
        hours = 24 * calendar.monthrange(now.year, now.month)[1]
    return begun_hour(period, unix_s) + hours


def seconds_left(period: str, unix_s: float) -> float:
    """Until the next one begins."""
    return end_hour(period, unix_s) * 3600 - unix_s
