"""A bound is held, missed or undecided by where the whole interval lies; and the exit code says which."""

from __future__ import annotations

import pytest

from wattserve_server.verify.verdicts import Status, Verdict, conclusion, exit_code, not_measured, within


def judged(low: float | None, high: float | None, value: float = 0.0) -> Verdict:
    return within("closure", value, low, high, 3.0, "%", 480.0)


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (-1.0, 2.0, Status.HELD),
        (-3.0, 3.0, Status.HELD),
        (3.1, 5.0, Status.MISSED),
        (-9.0, -3.5, Status.MISSED),
        (2.0, 4.0, Status.UNDECIDED),
        (-4.0, 4.0, Status.UNDECIDED),
    ],
)
def test_where_the_whole_interval_lies_decides(low: float, high: float, status: Status) -> None:
    assert judged(low, high, (low + high) / 2).status is status


def test_an_undecided_bound_says_how_long_would_decide_it() -> None:
    verdict = judged(1.0, 4.0, 2.5)
    assert verdict.decides_s == pytest.approx(480 * 9)  # half of 1.5 must become 0.5
    assert "--seconds 4320 would decide it" in verdict.why


def test_a_figure_that_lies_on_its_bound_is_decided_in_no_reasonable_time() -> None:
    verdict = judged(2.0, 4.0, 3.0)
    assert (verdict.status, verdict.decides_s) == (Status.UNDECIDED, None)
    assert "no reasonable time" in verdict.why


def test_a_figure_without_an_interval_is_undecided() -> None:
    assert judged(None, None).status is Status.UNDECIDED


def test_the_exit_code_tells_missed_before_interrupted_before_undecided() -> None:
    held, missed, undecided = judged(-1, 1), judged(4, 5, 4.5), judged(2, 4, 2.9)
    nothing = not_measured("windows", "no CUDA device")
    assert exit_code([held, nothing]) == 0
    assert exit_code([held, undecided]) == 3
    assert exit_code([undecided], is_interrupted=True) == 130
    assert exit_code([held, missed, undecided], is_interrupted=True) == 1


def test_the_conclusion_names_what_was_missed_and_what_would_decide() -> None:
    missed = within("solo against mixed: bf16", 8.0, 6.0, 10.0, 3.0, "%", 480.0)
    said = conclusion([judged(-1, 1), missed, judged(1.0, 4.0, 2.5)], is_interrupted=True)
    assert said.startswith(
        "MISSED: solo against mixed: bf16; undecided: closure (--seconds 4320 would decide)"
    )
    assert said.endswith("INTERRUPTED: what was not reached is not measured; held: closure")
