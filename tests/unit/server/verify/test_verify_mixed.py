"""Solo against mixed, and closure: on a board whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.verify_rig import VirtualRig, played
from wattserve_common.stats import Interval
from wattserve_server.verify.mixed import (
    CLOSURE,
    TOGETHER,
    Company,
    Mixed,
    measure_mixed,
    mixed_of,
    verdicts_of,
)
from wattserve_server.verify.verdicts import Status, Verdict

pytestmark = pytest.mark.long

TOOK_S = 480.0


def measured(rig: VirtualRig, seconds: float) -> Mixed:
    async def run() -> Mixed:
        await rig.calibrate()
        return await measure_mixed(rig, seconds)

    return played(run())


def by_name(mixed: Mixed) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in verdicts_of(mixed, TOOK_S)}


def test_on_a_board_that_keeps_to_its_laws_receipts_agree_and_accounts_close() -> None:
    found = measured(VirtualRig(), 40.0)
    verdicts = by_name(found)
    assert verdicts[CLOSURE].status is Status.HELD
    for variant in VirtualRig.variants:
        verdict = verdicts[f"solo against mixed: {variant}"]
        assert verdict.status is not Status.MISSED
        assert verdict.value == pytest.approx(0.0, abs=2.5)
        assert found.by_variant[variant].withheld == 0
    assert found.company is not None
    assert found.company.mean == pytest.approx(1.0, abs=0.01)


def test_a_gain_that_differs_between_solo_and_mixed_is_caught() -> None:
    verdicts = by_name(measured(VirtualRig(in_company=1.3), 24.0))
    assert verdicts[TOGETHER].status is Status.MISSED
    assert verdicts[CLOSURE].status is Status.HELD  # the books are right about a counter that is not


def test_receipts_that_tell_one_variant_too_much_are_caught_by_its_name_and_do_not_close() -> None:
    verdicts = by_name(measured(VirtualRig(told={"bf16": 1.2}), 24.0))
    assert verdicts["solo against mixed: bf16"].status is Status.MISSED
    assert verdicts["solo against mixed: fp32"].status is not Status.MISSED
    assert verdicts[TOGETHER].status is Status.HELD
    assert verdicts[CLOSURE].status is Status.MISSED


def test_a_run_too_short_to_tell_is_undecided_and_says_how_long_would_do() -> None:
    verdicts = by_name(measured(VirtualRig(jitter=0.3), 8.0))
    undecided = [verdict for verdict in verdicts.values() if verdict.status is Status.UNDECIDED]
    assert max(verdict.decides_s or 0.0 for verdict in undecided) > TOOK_S
    assert any("would decide it" in verdict.why for verdict in undecided)


AGREES = Company(1.0, 1.0, Interval(1.0, 0.99, 1.01, 8), 0.001, 400, 0)


@pytest.mark.parametrize(("withheld", "status"), [(4, Status.HELD), (40, Status.UNDECIDED)])
def test_receipts_without_a_figure_leave_it_undecided(withheld: int, status: Status) -> None:
    mixed = Mixed(8, 50.0, {"fp32": replace(AGREES, withheld=withheld)})
    assert by_name(mixed)["solo against mixed: fp32"].status is status


def test_what_the_idle_draw_may_be_off_widens_the_interval() -> None:
    mixed = Mixed(8, 50.0, {"fp32": replace(AGREES, common_error=0.05)})
    assert by_name(mixed)["solo against mixed: fp32"].status is Status.UNDECIDED


def test_where_the_meter_declares_an_idle_draw_joules_are_above_that_one() -> None:
    rig = VirtualRig()
    rig.declared_idle_w = 40.0
    assert mixed_of(rig, [], rests_w=[50.0, 51.0]).idle_w == 40.0


def test_a_counter_that_stands_still_measures_nothing() -> None:
    verdicts = verdicts_of(mixed_of(VirtualRig(), [], rests_w=[]), TOOK_S)
    assert {verdict.status for verdict in verdicts} == {Status.NOT_MEASURED}
