"""The ledger's bookings and the states of a receipt."""

import pytest

from wattserve_server.energy.ledger import Ledger
from wattserve_server.energy.reading import Energy
from wattserve_server.energy.receipt import ACCELERATOR, NEVER_RAN, Charge, Line, Outcome, Receipt, State


def receipt_with(*tokens: int) -> Receipt:
    receipt = Receipt("r-1", "mine", "fp32", "cpu", 0)
    receipt.lines.extend(Line(receipt, count) for count in tokens)
    return receipt


def test_energy_is_whole_microjoules() -> None:
    assert Energy.from_joules(1.2345678) == Energy(1_234_568)
    assert Energy.from_millijoules(7) == Energy(7000)
    assert Energy(1) + Energy(2) - Energy(4) == Energy(-1)
    assert Energy(2_500_000).joules == 2.5


def test_nothing_leaves_pending_that_is_not_there() -> None:
    ledger = Ledger()
    ledger.meter(10)
    with pytest.raises(ValueError, match="cannot book 11 uJ: 10 uJ are pending"):
        ledger.to_idle(11)
    with pytest.raises(ValueError, match="cannot book -1 uJ"):
        ledger.to_idle(-1)


def test_the_accounts_and_what_is_pending_sum_to_the_meter() -> None:
    ledger = Ledger()
    ledger.meter(100)
    ledger.to_idle(1)
    ledger.to_unattributed(2)
    ledger.to_warmup(3)
    ledger.to_gap(4)
    ledger.to_active("fp32", 5, 1, 5, 8)
    assert (ledger.pending_uj, ledger.residual_uj()) == (85, 0)
    ledger.show_idle(1)  # of the idle account: shown on receipts, and still idle
    assert (ledger.idle_uj, ledger.idle_shared_uj, ledger.residual_uj()) == (1, 1, 0)


def test_a_gap_that_is_not_open_cannot_end() -> None:
    ledger = Ledger()
    ledger.begin_gap(10, "lost")
    ledger.end_gap(30)
    assert (ledger.gap_count, ledger.gap_ns, len(ledger.recent_gaps)) == (1, 20, 1)
    with pytest.raises(ValueError, match="no open gap"):
        ledger.end_gap(40)


def test_a_copy_of_the_ledger_does_not_change_with_it() -> None:
    ledger = Ledger()
    ledger.meter(10)
    ledger.to_active("fp32", 4, 1, 5, 8)
    copy = ledger.copy()
    ledger.to_active("fp32", 6, 1, 5, 8)
    assert copy.active["fp32"].active_uj == 4
    assert copy.residual_uj() == 0


def test_a_receipt_is_provisional_until_every_line_that_ran_is_settled() -> None:
    receipt = receipt_with(5, 6)
    first, second = receipt.lines
    for line in receipt.lines:
        line.enter(2)
        line.ran(7, 1000, (100,))
    receipt.end(Outcome.COMPLETED)
    assert (receipt.state, receipt.energy_uj) == (State.PROVISIONAL, 200)
    receipt.charge(Charge(first, 70, 3.0, 7, ""), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj, receipt.interval_uj()) == (State.PROVISIONAL, 170, None)
    receipt.charge(Charge(second, 80, 4.0, 8, ""), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj, receipt.idle_share_uj) == (State.SETTLED, 150, 15)
    assert receipt.interval_uj() == (136, 164)  # 1.96 x (3 + 4) = 13.7 either way


def test_of_a_generation_that_runs_no_idle_share_is_told() -> None:
    """That of its steps so far would look like all of it."""
    receipt = receipt_with(5)
    (line,) = receipt.lines
    line.enter(1)
    line.ran(7, 1000, (100,))
    receipt.charge(Charge(line, 70, 3.0, 7, ""), ACCELERATOR)
    assert receipt.idle_share_uj is None
    receipt.end(Outcome.COMPLETED)
    assert receipt.idle_share_uj == 7


def test_one_unknown_line_makes_the_receipt_unknown_with_its_reason() -> None:
    receipt = receipt_with(5, 6)
    for line in receipt.lines:
        line.enter(1)
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(receipt.lines[0], 70, 0.0, 1, ""), ACCELERATOR)
    receipt.charge(Charge(receipt.lines[1], None, 0.0, None, "the GPU is lost"), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj, receipt.reason) == (State.UNKNOWN, None, "the GPU is lost")


def in_steps(count: int) -> tuple[Receipt, Line]:
    """Of one sequence that ran in so many windows, of 100 uJ each as foreseen."""
    receipt = receipt_with(5)
    (line,) = receipt.lines
    for _ in range(count):
        line.enter(2)
        line.ran(7, 1000, (100,))
    return receipt, line


def test_a_line_that_runs_in_steps_is_settled_when_all_its_windows_are() -> None:
    receipt, line = in_steps(3)
    assert (receipt.energy_uj, line.padded_tokens, line.compute_ns) == (300, 21, 3000)
    receipt.charge(Charge(line, 70, 3.0, 7, ""), ACCELERATOR)
    receipt.charge(Charge(line, 80, 4.0, 8, ""), ACCELERATOR)
    line.enter(1)  # the next step begins before the last one is charged
    line.ran(7, 1000, (100,))
    receipt.end(Outcome.COMPLETED)
    assert (receipt.state, receipt.energy_uj, line.is_settled) == (State.PROVISIONAL, 400, False)
    receipt.charge(Charge(line, 60, 5.0, 6, ""), ACCELERATOR)
    receipt.charge(Charge(line, 90, 0.0, 9, ""), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj, receipt.idle_share_uj) == (State.SETTLED, 300, 30)
    assert receipt.interval_uj() == (276, 324)  # 1.96 x (3 + 4 + 5) = 23.5: windows are wrong together


def test_one_window_without_a_figure_makes_a_line_of_many_unknown_with_its_reason() -> None:
    receipt, line = in_steps(3)
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(line, 70, 3.0, 7, ""), ACCELERATOR)
    receipt.charge(Charge(line, None, 0.0, None, "the GPU is lost"), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj) == (State.PROVISIONAL, None)
    receipt.charge(Charge(line, 80, 4.0, 8, ""), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj, receipt.reason) == (State.UNKNOWN, None, "the GPU is lost")


def test_a_step_that_no_law_foresees_leaves_the_line_without_a_provisional_figure() -> None:
    receipt, line = in_steps(1)
    line.enter(1)
    line.ran(7, 1000, (None,))
    line.enter(1)
    line.ran(7, 1000, (100,))
    assert receipt.provisional_uj is None


def test_a_line_is_charged_once_by_a_window() -> None:
    receipt = receipt_with(5)
    receipt.lines[0].enter(1)
    receipt.charge(Charge(receipt.lines[0], 70, 0.0, 1, ""), ACCELERATOR)
    with pytest.raises(ValueError, match="charged twice"):
        receipt.charge(Charge(receipt.lines[0], 70, 0.0, 1, ""), ACCELERATOR)


def test_a_receipt_ends_once() -> None:
    receipt = receipt_with(5)
    receipt.end(Outcome.CANCELLED)
    with pytest.raises(ValueError, match="has ended already, as cancelled"):
        receipt.end(Outcome.COMPLETED)


def test_a_cancelled_request_is_charged_for_what_had_run() -> None:
    receipt = receipt_with(5, 6)
    receipt.lines[0].enter(1)
    receipt.end(Outcome.CANCELLED)
    assert receipt.state is State.PROVISIONAL
    receipt.charge(Charge(receipt.lines[0], 70, 0.0, 1, ""), ACCELERATOR)
    assert (receipt.state, receipt.energy_uj) == (State.SETTLED, 70)


def test_a_request_that_never_ran_has_no_figure_and_says_so() -> None:
    receipt = receipt_with(5)
    receipt.end(Outcome.CANCELLED)
    assert (receipt.state, receipt.energy_uj, receipt.reason) == (State.UNKNOWN, None, NEVER_RAN)
