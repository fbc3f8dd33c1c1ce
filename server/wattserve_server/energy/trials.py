"""The calibration's plan: which batches to run, for how long, with which pauses.

Pure. The engine runs them after the warm-up; `calibration` learns from what the meter says meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wattserve_server.energy.receipt import Work

# A calibration runs each shape for so long, and over so many updates of the sensor; then the device rests.
LEAST_TRIAL_S, TRIAL_PERIODS = 0.15, 3
LEAST_PAUSE_S, PAUSE_PERIODS = 0.2, 5

SHORTEST = 8  # tokens of the shortest warm-up sequence


class StepShape(NamedTuple):
    """A step of a language model, whose sequences are alike: each has so many tokens in the cache, and reads
    so many of its prompt, or of a text that is scored; or it decodes one."""

    sequences: int
    cached: int
    prompt: int = 0  # 0: they decode
    is_scored: bool = False

    @property
    def tokens(self) -> int:
        """That each computes."""
        return self.prompt or 1

    @property
    def work(self) -> Work:
        """What each does."""
        if not self.prompt:
            return Work(1, logits=1, read=self.cached + 1)
        pairs = self.prompt * self.cached + self.prompt * (self.prompt + 1) // 2
        return Work(self.prompt, pairs, self.prompt if self.is_scored else 1)

    def __str__(self) -> str:
        what = "decoding sequences"
        if self.prompt:
            what = f"{'scored texts' if self.is_scored else 'prompts'} of {self.prompt} tokens"
        return f"{self.sequences} {what} behind {self.cached}"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Which batches, or steps, a calibration runs of each variant."""

    shapes: tuple[tuple[int, int], ...]  # (sequences, length)
    trial_s: float  # for how long each is repeated
    pause_s: float  # for how long the device rests after each
    steps: tuple[StepShape, ...] = ()  # of a model that generates, in place of batches

    @property
    def seconds(self) -> float:
        """That it takes, where no batch takes longer than a trial."""
        return (len(self.shapes) + len(self.steps)) * (self.trial_s + self.pause_s)


def plan_trials(
    max_tokens: int,
    max_sequences: int,
    max_batch_tokens: int,
    update_period_s: float | None,
    budget_s: float,
    averages_s: float = 0.0,
) -> TrialPlan:
    """A plan that takes about `budget_s` seconds per variant, or less where the sensor is fast enough.

    update_period_s: of the sensor; None for a continuous one. averages_s: over which it tells a mean; each
    trial and each rest lasts for so long besides, whatever the budget. The shapes span what may be computed
    in one batch, from one short sequence to a full batch, in four even steps of the logarithm.
    """
    period_s = update_period_s or 0.0
    trial_s = max(LEAST_TRIAL_S, TRIAL_PERIODS * period_s)
    pause_s = max(LEAST_PAUSE_S, PAUSE_PERIODS * period_s)
    shapes = _trial_shapes(max_tokens, max_sequences, max_batch_tokens)
    scale = min(1.0, budget_s / (len(shapes) * (trial_s + pause_s)))
    return TrialPlan(shapes, averages_s + scale * trial_s, averages_s + scale * pause_s)


def plan_step_trials(
    most_tokens: int,
    most_members: int,
    step_tokens: int,
    cache_tokens: int,
    update_period_s: float | None,
    budget_s: float,
    averages_s: float = 0.0,
) -> TrialPlan:
    """The same of a model that generates, of which trials are shorter: there are more of them. most_tokens:
    of prompt and answer. step_tokens: of a step. cache_tokens: that the cache holds."""
    period_s = update_period_s or 0.0
    trial_s = max(LEAST_TRIAL_S, TRIAL_PERIODS * period_s)
    pause_s = max(LEAST_PAUSE_S, PAUSE_PERIODS * period_s)
    shapes = step_shapes(most_tokens, most_members, step_tokens, cache_tokens)
    scale = min(1.0, budget_s / (len(shapes) * (trial_s + pause_s)))
    return TrialPlan((), averages_s + scale * trial_s, averages_s + scale * pause_s, shapes)


def step_shapes(
    most_tokens: int, most_members: int, step_tokens: int, cache_tokens: int
) -> tuple[StepShape, ...]:
    """Short and long prompts, at the begin and far behind it; a text that is scored; decoding by few and
    many, with little and much in the cache: what a law's features are told apart by."""
    longest = max(2, min(most_tokens, cache_tokens) - 1)
    part = max(1, min(step_tokens, longest))
    short, far = min(SHORTEST, part), max(0, longest - part)
    middle = max(1, round((short * part) ** 0.5))
    few = max(1, round(most_members**0.5))

    def cached(members: int, tokens: int) -> int:
        return max(1, min(tokens, cache_tokens // members - 1, longest))

    shapes = [
        StepShape(1, 0, short),
        StepShape(1, 0, middle),
        StepShape(1, 0, part),
        StepShape(1, far, part),
        StepShape(1, 0, part, is_scored=True),
        StepShape(1, cached(1, short)),
        StepShape(1, cached(1, longest)),
        StepShape(few, cached(few, longest // 4)),
        StepShape(most_members, cached(most_members, short)),
        StepShape(most_members, cached(most_members, longest // 2)),
    ]
    return tuple(dict.fromkeys(shapes))


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
