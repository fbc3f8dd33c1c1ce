"""Prompts and answers of a model that generates, before the shipped accountant: a short world."""

from __future__ import annotations

import pytest

from tests.bench.attribution.steps import run
from wattserve_server.energy.receipt import Role

pytestmark = pytest.mark.long


def test_prompts_and_answers_are_told_apart_behind_a_real_counter() -> None:
    found, outcome = run(company=4, seed=3, for_s=12.0)
    assert outcome.checks.violations == 0, outcome.checks.first
    assert outcome.checks.worst_residual_uj == 0
    assert found[Role.PROMPT].generations > 20
    assert found[Role.PROMPT].median < 6
    assert found[Role.OUTPUT].median < 3
    assert found[Role.OUTPUT].bias < 3
