"""Runs one cell: check that the server is the one we know; wait until nothing is pending; load; wait until
the cell's energy is final; make its records and its figures.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from wattserve_loadgen.data.dataset import Dataset
from wattserve_loadgen.drive.outcome import Failure, LoopResult
from wattserve_loadgen.errors import TargetError
from wattserve_loadgen.figures import account
from wattserve_loadgen.figures.measure import measure_cell
from wattserve_loadgen.plan import schedule
from wattserve_loadgen.plan.load import OFFLINE
from wattserve_loadgen.plan.schedule import Cell, Plan
from wattserve_loadgen.results.schema import CellResult, Record
from wattserve_loadgen.results.standing import standing_of
from wattserve_loadgen.sweeping import preflight
from wattserve_loadgen.sweeping.conditions import conditions_now
from wattserve_loadgen.sweeping.loading import Loading
from wattserve_loadgen.sweeping.site import Site
from wattserve_loadgen.target import answers

_RETENTION_USED = 0.5  # of what the server keeps of receipts, before they are fetched while they settle
_SPREAD = 1.5  # a cell may be faster than its heat-up was
_LOST = "the server was lost before the cell's receipts settled"
_SLACK = 1.1  # of an offline cell, whose length is not known before
_FAST = 3000.0  # requests per second of a cell that has not been seen yet


@dataclass(frozen=True)
class Ran:
    """What a cell left. `result` None: its window did not open."""

    records: list[Record]
    result: CellResult | None


class CellLost(TargetError):
    """The server went away in a cell, or is another one since; its cause says which. `ran`: what there is."""

    def __init__(self, text: str, ran: Ran) -> None:
        super().__init__(text)
        self.ran = ran


class CellRunner:
    """Runs the cells of one plan against its sites."""

    def __init__(
        self, plan: Plan, dataset: Dataset, sites: dict[str, Site], loading: Loading, origin_ns: int
    ) -> None:
        self._plan, self._dataset, self._sites = plan, dataset, sites
        self._loading, self._origin_ns = loading, origin_ns
        self._lengths = len(set(dataset.lengths.tolist()))
        self._rates: dict[tuple[str, str], float] = {}  # the highest seen, by arm and load

    async def heat_up(self, cell: Cell) -> None:
        """A cell that is not counted. A closed loop meets a row of every length before it ends. It runs once
        more where nothing was answered, as by an engine that is slow the first time.
        """
        loop = await self.trial(cell)
        if all(isinstance(one, Failure) for one in loop.outcomes):
            await self.trial(cell)

    async def trial(self, cell: Cell) -> LoopResult:
        """Load without accounts. Raises TargetError when the server is lost before its end."""
        site = self._sites[cell.arm.target]
        site.info = await site.check()
        await site.witness.before()
        async with site.witness.watching(harvest=False):
            requests = self._requests(cell, site, self._groups(cell))
            loop = await self._loading.run(self._plan, cell, site, requests, self._lengths)
        await site.check()
        self._note_rate(cell, loop)
        return loop

    def scheduled_requests(self, cell: Cell) -> int:
        """How many requests an open loop's schedule holds, warm-up included."""
        return len(self._loading.schedule_of(self._plan, cell))

    async def run(self, cell: Cell) -> Ran:
        """A cell that counts. Raises CellLost when the server is lost in it, and TargetError when it is lost
        before any load is on it.
        """
        site = self._sites[cell.arm.target]
        site.info = await site.check()
        await site.witness.before()
        conditions = conditions_now()
        groups = self._groups(cell)
        requests = self._requests(cell, site, groups)
        async with site.witness.watching(harvest=self._outlives_receipts(cell, site)):
            loop = await self._loading.run(self._plan, cell, site, requests, self._plan.cell_requests())
        self._note_rate(cell, loop)
        parsed = answers.parse(loop.outcomes, cell.arm.variant, site.target.read)
        start, end = self._seconds(loop.window_start_ns), self._seconds(loop.window_end_ns)
        lost, receipts = None, {}
        growth = account.unknown_growth(_LOST, site.witness.method)
        try:
            await site.check()
            told = await site.witness.after(cell.arm.variant, parsed, start, end)
            receipts, growth = told.receipts, told.growth
        except TargetError as error:
            lost = error
        records = answers.make_records(cell, self._dataset, groups, loop, parsed, receipts, self._origin_ns)
        result = None
        if loop.window_start_ns:
            result = measure_cell(
                cell,
                loop,
                records,
                growth,
                meter=site.witness.window(cell.arm.variant, start, end) if end > start else None,
                objective=self._plan.objective,
                stopped=loop.stopped or ("" if lost is None else str(lost)),
                standing=standing_of(preflight.plain_variants(site.info), cell.arm.variant),
                conditions=conditions,
                floors_by_effective=self._plan.withholds,
            )
            result = replace(result, window_start_seconds=start)
        if lost is not None:
            raise CellLost(str(lost), Ran(records, result)) from lost
        return Ran(records, result)

    def _groups(self, cell: Cell) -> list[list[int]]:
        """The rows of each request, in the order of sending."""
        order = schedule.row_order(self._plan, cell.block, len(self._dataset.rows))
        if cell.discarded:
            order = _every_length_first(order, self._dataset.lengths.tolist())
        groups = schedule.row_groups(order, cell.load.sequences)
        if cell.load.shape == OFFLINE and not cell.discarded:
            rate = self._rates.get((cell.arm.name, cell.load.name), 0.0)
            wanted = max(self._plan.cell_requests(), math.ceil(rate * cell.seconds * _SLACK))
            groups = groups * max(1, -(-wanted // len(groups)))
        return groups

    def _requests(self, cell: Cell, site: Site, groups: list[list[int]]) -> list[bytes]:
        return site.target.make_requests(self._dataset, groups, cell.arm.variant)

    def _outlives_receipts(self, cell: Cell, site: Site) -> bool:
        """Whether the server might forget the cell's first receipts before its last are asked for."""
        limits = site.info.limits
        rate = cell.load.rate or self._rates.get((cell.arm.name, cell.load.name), _FAST) * _SPREAD
        seconds = schedule.load_seconds(cell)
        count = max(rate * seconds, float(self._plan.cell_requests()))
        many = limits.receipt_retention_count
        long = limits.receipt_retention_seconds
        return bool((many and count > many * _RETENTION_USED) or (long and seconds > long * _RETENTION_USED))

    def _note_rate(self, cell: Cell, loop: LoopResult) -> None:
        if loop.window_seconds > 0:
            key = cell.arm.name, cell.load.name
            self._rates[key] = max(loop.done_per_second, self._rates.get(key, 0.0))

    def _seconds(self, stamp_ns: int) -> float:
        return (stamp_ns - self._origin_ns) / 1e9 if stamp_ns else 0.0


def _every_length_first(order: list[int], lengths: list[int]) -> list[int]:
    """One row of each length, then the others: a server prepares itself for shapes."""
    first: dict[int, int] = {}
    for row in order:
        first.setdefault(lengths[row], row)
    ahead = list(first.values())
    random.Random("heat-up").shuffle(ahead)
    taken = set(ahead)
    return ahead + [row for row in order if row not in taken]
