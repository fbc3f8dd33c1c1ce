"""What several counters say together: the sum of their ledgers, and one status for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattserve_server.energy.ledger import Ledger, total
from wattserve_server.energy.reading import MeterStatus, Source, where_all_known
from wattserve_server.meters.composite import joined
from wattserve_server.meters.sampler import Sampler


class Together:
    """The samplers of a device, that of its accelerator first. Any thread."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.samplers = tuple(samplers)

    @property
    def source(self) -> Source:
        return joined(tuple(sampler.source for sampler in self.samplers))

    @property
    def ledger(self) -> Ledger:
        """Every joule once: exactly the sum of the parts' ledgers."""
        return total([sampler.ledger for sampler in self.samplers])

    @property
    def status(self) -> MeterStatus:
        """Amounts are of all together; what has no sum (pace, lag, ramp) is that of the first."""
        first, *others = every = [sampler.status for sampler in self.samplers]
        if not others:
            return first
        neighbours = [status.neighbours for status in every if status.neighbours is not None]
        origins = dict.fromkeys(status.idle_origin for status in every)
        return replace(
            first,
            source=self.source,
            idle_watts=where_all_known(sum, [status.idle_watts for status in every]),
            idle_origin="unknown" if "unknown" in origins else " + ".join(origins),
            unresolved="; ".join(
                f"{status.source.name}: {status.unresolved}" for status in every if status.unresolved
            ),
            last_error="; ".join(status.last_error for status in every if status.last_error),
            reads=sum(status.reads for status in every),
            failed_reads=sum(status.failed_reads for status in every),
            neighbours=sum(neighbours) if neighbours else None,
            others_at_work=where_all_known(sum, [status.others_at_work for status in every]),
            edges=sum(status.edges for status in every),
            covered_edges=sum(status.covered_edges for status in every),
            restarts=sum(status.restarts for status in every),
            last_restart="; ".join(status.last_restart for status in every if status.last_restart),
            last_read_ns=where_all_known(min, [status.last_read_ns for status in every]),
        )
