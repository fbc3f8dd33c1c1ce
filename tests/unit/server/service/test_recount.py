"""What a stored receipt says it adds to the sums is what its server added, or it says that it cannot tell."""

from __future__ import annotations

import random

import pytest

from tests.fixtures.account_books import body_of, finished
from wattserve_server.accounts.rollups import count
from wattserve_server.accounts.schema import FIGURES
from wattserve_server.energy.attribution import BUSY_TIME, BY_TIME, NONE
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Charge, Line, Outcome, Receipt, Role
from wattserve_server.service.inference import receipt_message
from wattserve_server.service.recount import recount

SOURCE = Source("simulated", "apportioned counter", Quality.SIMULATED)
OUTCOMES = (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.FAILED)


def counted(receipt: Receipt) -> list[int]:
    figures = [0] * len(FIGURES)
    count(figures, receipt)
    return figures


def told(receipt: Receipt) -> list[int | None]:
    message = receipt_message(receipt, dict.fromkeys(receipt.parts, SOURCE))
    recounted = recount(message.SerializeToString())
    assert recounted[:3] == (receipt.receipt_id, receipt.request_id, receipt.variant)
    return [*recounted.figures]


def any_receipt(chance: random.Random) -> Receipt:
    """A final one, of one or two parts, whose lines ran in some windows, were charged or not, and may have
    left again what they had entered."""
    parts = chance.choice([(ACCELERATOR,), (HOST,), (ACCELERATOR, HOST)])
    roles = chance.choice([(None,), (None, None, None), (Role.PROMPT, Role.OUTPUT, Role.RECOMPUTED)])
    policy = chance.choice([BUSY_TIME, NONE, BY_TIME])
    receipt = Receipt("r", "q", "fp32", "cpu", 0, parts, idle_policy=policy)
    receipt.lines += [Line(receipt, chance.randrange(9), role=role) for role in roles]
    receipt.end(chance.choice(OUTCOMES))
    for at, line in enumerate(receipt.lines):
        for _ in range(chance.randrange(at == 0, 4)):
            line.enter(1)
            if chance.random() < 0.9:
                line.ran(3, chance.randrange(2), (None,) * len(parts))
        for part in parts:
            for _ in range(line.windows):
                uj = chance.choice([None, 0, 7, 100, 100, 100])
                idle_uj = None if policy == NONE or uj is None else chance.choice([None, 0, 5, 5, 5])
                reason = "no reading" if uj is None else ""
                receipt.charge(Charge(line, uj, 0.0, 0 if policy == BY_TIME else idle_uj, reason), part)
        if line.windows and line.role in (Role.PROMPT, Role.OUTPUT):
            line.chosen = chance.randrange(4)
        if chance.random() < 0.2:
            line.enter(2)
            line.left()
    if policy == BY_TIME:
        for part in parts:
            receipt.share_idle(chance.choice([None, 11, 12]), part)
    assert receipt.is_final
    return receipt


def test_what_it_tells_is_what_was_counted() -> None:
    chance = random.Random(1)
    tells_all = 0
    for _ in range(3000):
        receipt = any_receipt(chance)
        figures = counted(receipt)
        for name, figure, now in zip(FIGURES, figures, told(receipt), strict=True):
            assert now in (figure, None), (name, receipt)
        tells_all += None not in told(receipt)
    assert tells_all > 300


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("host_uj", [None, 30])
@pytest.mark.parametrize("output_tokens", [0, 7])
def test_one_of_known_energy_tells_all(outcome: Outcome, host_uj: int | None, output_tokens: int) -> None:
    receipt = finished("r", 100, 10, "shop", "q", "int8", outcome, host_uj, output_tokens)
    assert told(receipt) == counted(receipt)
    assert recount(body_of(receipt)) == (
        "r",
        "q",
        "int8",
        counted(receipt),
    )  # what stands for it in other tests


def test_what_is_no_receipt() -> None:
    assert None in recount(b"").figures
    with pytest.raises(ValueError, match="it is no receipt"):
        recount(b"\xff")
