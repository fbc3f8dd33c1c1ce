"""Steps of a language model: what their laws read, who pays for them, and what their receipts say."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import factorial

import numpy as np
import pytest

from tests.fixtures.lawful_device import LawfulDevice
from tests.fixtures.windows import entry, receipt, step, window
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.costlaw import (
    NODES,
    Coefficients,
    Features,
    LawView,
    features_of,
    foreseen_uj,
    provisional_uj,
    split_weights,
)
from wattserve_server.energy.ledger import Books, Ledger
from wattserve_server.energy.openbatches import entries_of
from wattserve_server.energy.receipt import Charge, Line, Outcome, Receipt, Role, State, Window, Work
from wattserve_server.engine.book import ReceiptBook

LAW = Coefficients(0.004, 2e-5, 1e-8, per_logits_j=1e-4, per_read_j=2e-7)
VIEW = LawView({"fp32": LAW})

READS = Work(computed=30, pairs=465, logits=1, begins=True)
READS_AGAIN = READS._replace(begins=False)
WRITES = Work(computed=1, logits=1, read=100)
MIXED = (READS, WRITES, Work(1, logits=1, read=900))


def lines_of(owner: Receipt, *roles: Role) -> tuple[Line, ...]:
    lines = tuple(Line(owner, 10, batch_size=1, windows=1, role=role) for role in roles)
    owner.lines.extend(lines)
    return lines


def charged(*charges: tuple[Line, int | None]) -> None:
    for line, energy_uj in charges:
        reason = "why" if energy_uj is None else ""
        line.receipt.charge(Charge(line, energy_uj, 1.0, 0, reason), "accelerator")


def test_a_law_reads_what_all_sequences_of_a_step_did_together() -> None:
    assert features_of(step(0, 10, MIXED)) == Features(1.0, 32.0, 465.0, 3.0, 1000.0)
    expected_j = 0.004 + 32 * 2e-5 + 465e-8 + 3e-4 + 1000 * 2e-7
    assert LAW.cost_j(features_of(step(0, 10, MIXED))) == pytest.approx(expected_j)


def shapley_j(law: Coefficients, members: tuple[Work, ...]) -> list[float]:
    """By their definition: what each adds to those before it, over all orders."""

    def cost_j(company: tuple[Work, ...]) -> float:
        return law.cost_j(features_of(step(0, 10, company))) if company else 0.0

    values = np.zeros(len(members))
    for order in permutations(range(len(members))):
        for at, index in enumerate(order):
            before = tuple(members[each] for each in order[:at])
            values[index] += cost_j((*before, members[index])) - cost_j(before)
    return list(values / factorial(len(members)))


def test_its_shares_are_the_shapley_values_of_the_law() -> None:
    assert split_weights(VIEW, step(0, 10, MIXED)) == pytest.approx(shapley_j(LAW, MIXED))


# The straight line of LAW once more, told otherwise: too little of it goes with tokens, and the correction,
# which grows with the doublings of their number, makes up for that between 8 and 128 of them.
BENT = Coefficients.of(
    (0.00412, 16e-6, 1e-8, 3e-4, 2e-7),
    (0.0047, 0.0, 0.0, 0.0, 0.0),
    tuple(0.04 * min(max(node - 1, 0), 3) for node in range(NODES)),
)
SIX = (Work(100, 5050, 1), Work(20, 2000), *(Work(1, 0, 1, read) for read in (30, 100, 200, 400)))


def test_what_a_correction_adds_is_shared_by_those_whose_tokens_add_it() -> None:
    shares = split_weights(LawView({"fp32": BENT}), step(0, 10, SIX))
    assert sum(shares) == pytest.approx(BENT.cost_j(features_of(step(0, 10, SIX))))
    assert shares == pytest.approx(shapley_j(BENT, SIX), rel=0.05)
    straight = BENT._replace(corrections=(0.0,) * NODES)
    assert shares[0] > 1.1 * split_weights(LawView({"fp32": straight}), step(0, 10, SIX))[0]


def test_nobody_who_computed_tokens_is_left_without_a_part() -> None:
    """By a law that says that more tokens cost less, as a young one may."""
    falling = Coefficients.of(
        (0.004, 2e-5, 1e-8, 1e-4, 2e-7),
        (0.02, 0.0, 0.0, 0.0, 0.0),
        tuple(0.4 if node == 0 else -0.6 for node in range(NODES)),
    )
    work = (*[Work(computed=1, logits=1, read=20)] * 6, Work(computed=6, pairs=21, logits=1, begins=True))
    *decoding, prompt = split_weights(LawView({"fp32": falling}), step(0, 10, work))
    assert 0.9 * max(decoding) < prompt < 2 * min(decoding)
    nothing_but_choosing = Coefficients(0.0, -1e-3, per_logits_j=0.1)
    one, other = split_weights(
        LawView({"fp32": nothing_but_choosing}), step(0, 10, (Work(10, logits=1), Work(10, 55)))
    )
    assert other / one == pytest.approx(0.025)


@pytest.mark.parametrize(("rule", "first"), [("stand-alone", 0.0047046), ("tokens", 30.0)])
def test_a_step_is_split_by_the_rule_that_receipts_name(rule: str, first: float) -> None:
    weights = split_weights(replace(VIEW, split_rule=rule), step(0, 10, MIXED))
    assert weights[0] == pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("laws", [{}, {"fp32": Coefficients(0.0, 0.0)}], ids=["unknown", "nothing"])
def test_without_a_law_a_step_is_split_by_its_tokens(laws: dict[str, Coefficients]) -> None:
    assert split_weights(LawView(laws), step(0, 10, MIXED)) == [30.0, 1.0, 1.0]


def test_a_step_is_foreseen_by_its_law() -> None:
    shares = provisional_uj(VIEW, step(0, 10, MIXED))
    assert sum(share or 0 for share in shares) == round(LAW.cost_j(features_of(step(0, 10, MIXED))) * 1e6)


def test_a_sequence_is_counted_once_and_its_tokens_in_every_step() -> None:
    ledger = Ledger()
    ledger.meter(1000)
    books = Books(ledger)
    books.count(1000)
    owner = receipt()
    prompt, output = lines_of(owner, Role.PROMPT, Role.OUTPUT)
    books.charge(entry(step(0, 10, (READS,), (prompt,))), 300e-6, 1e-6, VIEW)
    for _ in range(3):
        books.charge(entry(step(20, 30, (WRITES,), (output,))), 100e-6, 1e-6, VIEW)
    totals = ledger.active["fp32"]
    assert (totals.active_uj, totals.sequences, totals.tokens, totals.padded_tokens) == (600, 1, 33, 33)


def test_what_a_preemption_lost_is_computed_again_at_the_servers_expense() -> None:
    book = ReceiptBook(600, 100, on_final=lambda _: None)
    owner = book.open("", "fp32", "cpu")
    output, again = lines_of(owner, Role.OUTPUT, Role.RECOMPUTED)
    ledger = Ledger()
    ledger.meter(2_000_000)
    books = Books(ledger)
    books.count(2_000_000)
    books.to_idle(1.0)
    both = entry(step(0, 10, (WRITES, READS_AGAIN), (output, again)), idle_j=0.5)
    books.charge(both, 0.1, 1e-6, VIEW)
    charges = books.take_charges()
    book.settle("counter", "accelerator", charges, ledger.active_uj)
    assert ledger.active_uj + ledger.warmup_uj == 100_000
    assert ledger.residual_uj() == book.residual_uj("counter") == 0
    assert (owner.energy_uj, owner.overhead_uj) == (ledger.active_uj, ledger.warmup_uj)
    assert 0 < ledger.active_uj < ledger.warmup_uj  # 30 tokens against one
    owner.end(Outcome.COMPLETED)
    assert owner.idle_share_uj == ledger.idle_shared_uj == 500_000
    assert (ledger.active["fp32"].sequences, ledger.active["fp32"].tokens) == (0, 1)


def test_of_a_step_that_only_computes_again_no_idle_draw_is_shown() -> None:
    ledger = Ledger()
    ledger.meter(2_000_000)
    books = Books(ledger)
    books.count(2_000_000)
    books.to_idle(1.0)
    again = lines_of(receipt(), Role.RECOMPUTED)
    books.charge(entry(step(0, 10, (READS_AGAIN,), again), idle_j=0.5), 0.1, 1e-6, VIEW)
    assert (ledger.warmup_uj, ledger.active_uj, ledger.idle_shared_uj) == (100_000, 0, 0)


def test_a_receipt_is_settled_once_its_overhead_is_and_tells_it_apart() -> None:
    owner = receipt()
    prompt, output, again = lines_of(owner, Role.PROMPT, Role.OUTPUT, Role.RECOMPUTED)
    owner.end(Outcome.COMPLETED)
    charged((prompt, 500), (output, 300))
    assert (owner.state, owner.overhead_uj) == (State.PROVISIONAL, None)
    charged((again, 40))
    assert (owner.state, owner.energy_uj, owner.overhead_uj) == (State.SETTLED, 800, 40)
    assert [line.energy_uj for line in owner.of_role(Role.OUTPUT)] == [300]


def test_an_overhead_that_is_not_known_spoils_no_other_figure() -> None:
    owner = receipt()
    prompt, again = lines_of(owner, Role.PROMPT, Role.RECOMPUTED)
    owner.end(Outcome.COMPLETED)
    charged((prompt, 500), (again, None))
    assert (owner.state, owner.energy_uj, owner.overhead_uj) == (State.SETTLED, 500, None)


def test_steps_whose_cache_differs_by_little_are_followed_together() -> None:
    def decodes(read: int) -> Window:
        return step(0, 1, (Work(1, logits=1, read=read),))

    steps = [entry(decodes(read)).batches[0] for read in (*range(1000, 1030), *range(2000, 2040))]
    groups = entries_of(steps, among=1)
    assert sum(len(each.batches) for each in groups) == len(steps)
    assert len(groups) < len(steps) / 8
    assert all(max(reads) < 1.07 * min(reads) for reads in
               ([batch.window.work[0].read for batch in each.batches] for each in groups))  # fmt: skip
    assert len(entries_of(steps[:5])) == 5  # while there are few, each by itself


def trials(device: LawfulDevice, cpu_w: float | None = None) -> None:
    """A calibration: prompts, and decoding by few and many, of a short and a long cache."""
    device.rest(1000.0)
    reads = [Work(n, n * (n + 1) // 2, 1) for n in (8, 64, 256)]
    decoding = ((1, 16), (1, 900), (4, 200), (16, 16), (16, 900))
    writes = [(Work(1, logits=1, read=cached),) * sequences for sequences, cached in decoding]
    for work in (*((each,) for each in reads), *writes):
        until_ms = device.now_ms + 400.0
        while device.now_ms < until_ms:
            device.step("fp32", work, 5.0, cpu_w=cpu_w)
        device.rest(500.0)
    device.rest(1000.0)


@pytest.mark.parametrize("company", [1, 4, 16])
def test_joules_of_prompts_and_of_generations_are_told_apart_in_any_company(company: int) -> None:
    device = LawfulDevice(
        50.0, laws={"fp32": Coefficients(0.4, 0.005, 2e-6, per_logits_j=0.02, per_read_j=4e-5)}
    )
    trials(device)
    rng = np.random.default_rng(company)
    everyone: list[tuple[Line, Line]] = []
    for _ in range(2 if company > 1 else 8):
        members = []
        for _ in range(company):
            owner = receipt()
            prompt, output = (Line(owner, 1, role=role) for role in (Role.PROMPT, Role.OUTPUT))
            owner.lines.extend((prompt, output))
            members.append((prompt, output, int(rng.integers(16, 200))))
            everyone.append((prompt, output))
        waiting, decoding = list(members), list[tuple[Line, int]]()
        for _ in range(40):
            work, lines = [], []
            for output, read in decoding:
                work.append(Work(1, logits=1, read=read))
                lines.append(output)
            decoding = [(output, read + 1) for output, read in decoding]
            if waiting:
                prompt, output, length = waiting.pop()
                work.append(Work(length, length * (length + 1) // 2, 1, begins=True))
                lines.append(prompt)
                decoding.append((output, length + 1))
            for line in lines:
                line.enter(len(lines))
            device.step("fp32", tuple(work), 5.0, tuple(lines))
        device.rest(300.0)
    device.rest(1000.0)
    got: dict[int, int] = {}
    for charge in device.charges:
        got[id(charge.line)] = got.get(id(charge.line), 0) + (charge.energy_uj or 0)
    for mine in zip(*everyone, strict=True):
        told_uj = np.array([got[id(line)] for line in mine])
        true_uj = np.array([device.truth_uj[id(line)] for line in mine])
        assert np.median(np.abs(told_uj / true_uj - 1)) < 0.05
        assert told_uj.sum() == pytest.approx(true_uj.sum(), rel=0.03)


def test_where_cpu_time_is_counted_the_law_of_a_step_still_reads_its_work() -> None:
    device = LawfulDevice(
        5.0, 5.0, laws={"fp32": Coefficients(0.04, 5e-4, 2e-7, per_logits_j=2e-3, per_read_j=4e-6)}
    )
    device.books = Accountant(declared_idle_w=5.0, counts_server=True, cpu_watts=7.5)
    trials(device, cpu_w=7.5)
    foreseen = window(0, 0, (100,))
    (truth,) = device.laws.values()
    for work in ((Work(100, 5050, 1, begins=True),), MIXED):
        one = replace(foreseen, work=work)
        true_j = [truth.fixed_j / len(work) + truth.step_j(each) for each in work]
        assert foreseen_uj(device.books.law, one) == pytest.approx(sum(true_j) * 1e6, rel=0.05)
        weights = split_weights(device.books.law, one)
        assert np.divide(weights, sum(weights)) == pytest.approx(np.divide(true_j, sum(true_j)), rel=0.05)


def test_a_batch_of_rows_counts_as_before() -> None:
    rows = window(0, 10, (8, 24))
    assert (rows.sequences, rows.computed_tokens) == (2, 48)
