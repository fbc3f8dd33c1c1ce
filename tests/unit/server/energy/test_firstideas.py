"""What is believed of batches before the counter has told anything of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.windows import batch, window
from wattserve_server.energy.costlaw import of_rows
from wattserve_server.energy.firstideas import FirstIdeas


def test_the_usual_draw_is_not_known_from_batches_that_were_told_nothing() -> None:
    ideas = FirstIdeas()
    assert ideas.usual_w is None
    ideas.settled(0.0, 0.1)
    assert ideas.usual_w is None  # a law of 0 W could never be corrected
    ideas.settled(3.0, 0.1)
    assert ideas.usual_w == pytest.approx(15.0, rel=0.01)  # the older a batch, the less it counts


def test_a_law_begins_from_the_time_that_its_batches_took() -> None:
    ideas = FirstIdeas()
    for tokens in (8, 64, 512):
        took_ms = 2.0 + tokens / 20
        for first_ms in (300.0, took_ms):  # the first run of a shape compiles
            ideas.hear(batch(window(0.0, first_ms, (tokens,), first_run=True, warmup=True)))
    smooth, _ = ideas.law("fp32", 50.0)
    for tokens in (8, 64, 512):
        row = np.array(of_rows(tokens, tokens))
        assert row @ smooth == pytest.approx(50.0 * (2.0 + tokens / 20) / 1e3, rel=0.2)
