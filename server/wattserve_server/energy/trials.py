"""The calibration's plan: which batches to run, for how long, with which pauses.

Pure. The engine runs them after the warm-up; `calibration` learns from what the meter says meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

# A calibration runs each shape for so long, and over so many updates of the sensor; then the device rests.
LEAST_TRIAL_S, TRIAL_PERIODS = 0.15, 3
LEAST_PAUSE_S, PAUSE_PERIODS = 0.2, 5

SHORTEST = 8  # tokens of the shortest warm-up sequence


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Which batches a calibration runs of each variant."""

    shapes: tuple[tuple[int, int], ...]  # (sequences, length)
    trial_s: float  # for how long each is repeated
    pause_s: float  # for how long the device rests after each

    @property
    def seconds(self) -> float:
        """That it takes, where no batch takes longer than a trial."""
        return len(self.shapes) * (self.trial_s + self.pause_s)


def plan_trials(
    max_tokens: int, max_sequences: int, max_batch_tokens: int, update_period_s: float | None, budget_s: float
) -> TrialPlan:
    """A plan that takes about `budget_s` seconds per variant, or less where the sensor is fast enough.

    update_period_s: of the sensor; None for a continuous one. The shapes span what may be computed in
    one batch, from one short sequence to a full batch, in four even steps of the logarithm.
    """
    period_s = update_period_s or 0.0
    trial_s = max(LEAST_TRIAL_S, TRIAL_PERIODS * period_s)
    pause_s = max(LEAST_PAUSE_S, PAUSE_PERIODS * period_s)
    shapes = _trial_shapes(max_tokens, max_sequences, max_batch_tokens)
    scale = min(1.0, budget_s / (len(shapes) * (trial_s + pause_s)))
    return TrialPlan(shapes, scale * trial_s, scale * pause_s)


def _trial_shapes(max_tokens: int, max_sequences: int, max_batch_tokens: int) -> tuple[tuple[int, int], ...]:
    shortest = min(SHORTEST, max_tokens)
    longest_full = min(max_tokens, max(shortest, max_batch_tokens // max_sequences))
    most = max(1, min(max_sequences, max_batch_tokens // longest_full))
    middle = max(shortest, round((shortest * longest_full) ** 0.5))
    shapes = [
        (1, shortest),
        (1, longest_full),
        (max(1, round(most**0.5)), middle),
        (most, middle),
        (most, longest_full),
    ]
    if max_tokens > longest_full:
        shapes.append((1, max_tokens))
    return tuple(dict.fromkeys(shapes))
