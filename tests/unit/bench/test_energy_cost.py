"""The benchmark of what the accounting costs still drives the shipped code; its figures are not looked at."""

from __future__ import annotations

import pytest

from tests.bench.energy_cost.memory import growth, look
from tests.bench.energy_cost.rig import PARTS, SENSORS, Load, Rig


def test_every_request_is_charged_and_every_part_is_on_the_clock() -> None:
    rig = Rig(SENSORS[2])
    rig.start()
    block = rig.serve(Load(8, 0.02), 0.5)
    rig.rest(0.2)
    assert block.requests > 100
    assert rig.book.pending == 0
    assert all(block.ns[part] > 0 for part in PARTS)
    assert rig.sampler.ledger.residual_uj() == 0


@pytest.mark.long
def test_what_grows_is_found() -> None:
    rig = Rig(SENSORS[2])
    rig.rest(0.1)
    hoard: list[int] = []
    vars(rig.sampler)["hoard"] = hoard
    found = []
    for _ in range(4):
        hoard += range(100)
        found.append(look("", rig))
    assert growth(found) == ["sampler.hoard"]
