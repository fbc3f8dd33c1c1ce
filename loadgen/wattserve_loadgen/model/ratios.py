"""The figures that are compared with the baseline's, each stated once: its name, its direction, and where a
cell has it. Ratios, tables, charts and checks go by this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, get_type_hints

from wattserve_common.stats import Interval
from wattserve_loadgen.model.cells import CellResult


@dataclass(frozen=True)
class Compared:
    """A figure that is compared with the baseline's: all that ratios, tables and charts say of it."""

    name: str
    better: str  # ↑ or ↓: which way
    of_cell: Callable[[CellResult], float | None]
    of_energy: bool = False
    # no ratio where a block lacks it: a percentile is missing where answers were few, so where they were slow
    of_all_blocks: bool = False
    follows: bool = False  # goes with another one: the check of the A/A pair leaves it out
    of_tokens: bool = False  # of a language model alone
    field: str = ""  # of `Ratios`

    @property
    def short_name(self) -> str:
        """`rate`, `active energy`."""
        return self.field.replace("_", " ")

    def of(self, ratios: Ratios) -> Interval | None:
        ratio: Interval | None = getattr(ratios, self.field)
        return ratio


@dataclass(frozen=True)
class Ratios:
    """A figure of this arm over the baseline's under the same load, paired block by block.

    Another field with what is `Compared` is all that one more figure takes.
    """

    # throughput
    rate: Annotated[Interval | None, Compared("throughput", "↑", lambda cell: cell.rate_per_second)] = None
    # the blocks' medians
    p50: Annotated[
        Interval | None, Compared("p50 latency", "↓", lambda cell: cell.latency.p50_ns, of_all_blocks=True)
    ] = None
    # the blocks' 95th percentiles
    p95: Annotated[
        Interval | None,
        Compared("p95 latency", "↓", lambda cell: cell.latency.p95_ns, of_all_blocks=True, follows=True),
    ] = None
    # active energy per request
    active_energy: Annotated[
        Interval | None,
        Compared("active energy", "↓", lambda cell: cell.energy.active_uj_per_request, of_energy=True),
    ] = None
    # active and idle energy per request
    total_energy: Annotated[
        Interval | None,
        Compared(
            "total energy", "↓", lambda cell: cell.energy.total_uj_per_request, of_energy=True, follows=True
        ),
    ] = None
    # output tokens per second, of a language model; so the three below
    output_rate: Annotated[
        Interval | None,
        Compared(
            "output tokens/s",
            "↑",
            lambda cell: cell.generated and cell.generated.output_tokens_per_second,
            follows=True,
            of_tokens=True,
        ),
    ] = None
    # the blocks' median times to first token
    ttft: Annotated[
        Interval | None,
        Compared(
            "p50 time to first token",
            "↓",
            lambda cell: cell.generated and cell.generated.ttft.p50_ns,
            of_all_blocks=True,
            follows=True,
            of_tokens=True,
        ),
    ] = None
    # the blocks' median times per output token
    tpot: Annotated[
        Interval | None,
        Compared(
            "p50 time per token",
            "↓",
            lambda cell: cell.generated and cell.generated.tpot.p50_ns,
            of_all_blocks=True,
            follows=True,
            of_tokens=True,
        ),
    ] = None
    # active energy per output token
    token_energy: Annotated[
        Interval | None,
        Compared(
            "energy per output token",
            "↓",
            lambda cell: cell.generated and cell.generated.active_uj_per_output_token,
            of_energy=True,
            follows=True,
            of_tokens=True,
        ),
    ] = None
    reason: str = ""  # why some or all are missing, or ""


def compared_figures(ratios: type[Ratios]) -> dict[str, Compared]:
    """By their fields."""
    return {
        name: replace(about, field=name)
        for name, kind in get_type_hints(ratios, include_extras=True).items()
        for about in getattr(kind, "__metadata__", ())
    }


COMPARED = compared_figures(Ratios)
