"""Part-time sampling: caught by square waves, and only where it is there."""

from __future__ import annotations

import pytest

from tests.fixtures.verify_rig import VirtualRig, played
from wattserve_server.verify.verdicts import Status, Verdict
from wattserve_server.verify.waves import measure_waves, verdict_of

pytestmark = pytest.mark.long


def judged(rig: VirtualRig, period_s: float | None = 0.1, seconds: float = 24.0) -> Verdict:
    return verdict_of(played(measure_waves(rig, period_s, seconds)), 480.0)


def test_a_counter_that_samples_all_the_time_is_held() -> None:
    assert judged(VirtualRig()).status is Status.HELD


def test_a_counter_that_looks_for_a_quarter_of_its_period_is_caught() -> None:
    verdict = judged(VirtualRig(sampled=0.25))
    assert verdict.status is Status.MISSED
    assert "waves at 1 of its period" in verdict.name


def test_a_continuous_counter_has_no_period_to_beat_with() -> None:
    verdict = judged(VirtualRig(), period_s=None)
    assert (verdict.status, "changes with every read" in verdict.why) == (Status.NOT_MEASURED, True)


def test_batches_longer_than_the_waves_say_so() -> None:
    verdict = judged(VirtualRig(period_s=0.01), period_s=0.01)
    assert (verdict.status, "the shortest batch takes" in verdict.why) == (Status.NOT_MEASURED, True)


def test_waves_too_short_for_two_batches_are_left_out_by_name() -> None:
    found = played(measure_waves(VirtualRig(period_s=0.04, lag_s=0.0), 0.04, 6.0))
    assert list(found.skipped) == ["0.25"]
    assert "1" in found.by_factor


def test_a_board_that_shows_no_work_says_so() -> None:
    rig = VirtualRig(period_s=1e6)
    assert judged(rig).why == "the counter did not show the work"
