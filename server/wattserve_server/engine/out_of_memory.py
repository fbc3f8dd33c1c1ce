"""Out of memory: how it is recognised, what is freed, how a batch is split (one that failed otherwise, too),
and the limit that is learned."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from wattserve_server.energy.receipt import Window
from wattserve_server.engine.batcher import Batcher
from wattserve_server.engine.heap import give_back
from wattserve_server.engine.queued import QueuedSequence
from wattserve_server.errors import NotPossibleHere

log = logging.getLogger(__name__)

# Of allocators that have no class of their own for it, torch's on a CPU among them.
_WORDS = ("allocate memory", "not enough memory", "out of memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")

# After so long a learned limit is forgotten: what took the memory may have left. Finding out costs a split
# batch, and nobody an answer.
LIMIT_HOLDS_S = 600.0


def memory_shortage(error: BaseException) -> str:
    """What the allocator said, if an error or what caused it is a want of memory; else empty."""
    cause: BaseException | None = error
    while cause is not None:
        words = str(cause)
        if isinstance(cause, MemoryError | torch.OutOfMemoryError) or any(word in words for word in _WORDS):
            return words or type(cause).__name__
        cause = cause.__cause__
    return ""


def too_large(variant: str, device: torch.device, tokens: int) -> NotPossibleHere:
    """The error of one sequence that does not fit even alone. Not one that clients answer by sending it again
    as it is, as with a full queue: every attempt costs energy and ends in the same place."""
    return NotPossibleHere(
        f"a sequence of {tokens} tokens does not fit into the memory that is free on {device}, not even "
        f"alone, with variant {variant!r}: send a shorter one, try another variant, or have memory freed"
    )


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was told: a failed batch's first operators may still run."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # of a broken device the next batch tells
            torch.cuda.synchronize(device)


def check_answers(device: torch.device) -> None:
    """Raises RuntimeError for a device that will run nothing any more: CUDA forgives no illegal access."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_unused(device: torch.device, generation: int = 2) -> None:
    """Give back what nothing refers to any more. generation: the oldest that is searched for cycles; the
    whole heap takes a fifth of a second, in which no other thread runs."""
    gc.collect(generation)
    give_back()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def halves(
    batch: Sequence[QueuedSequence], evenly: bool
) -> tuple[list[QueuedSequence], list[QueuedSequence]]:
    """Two or more sequences, the shorter ones and the longer ones. evenly: as many of either, so that what
    fails is found in the fewest splits; else the larger part computes the least tokens, padding included."""
    ordered = sorted(batch, key=lambda sequence: sequence.length)

    def larger_part(cut: int) -> int:
        return max(cut * ordered[cut - 1].length, (len(ordered) - cut) * ordered[-1].length)

    cut = len(ordered) // 2 if evenly else min(range(1, len(ordered)), key=larger_part)
    return ordered[:cut], ordered[cut:]


def most_splits(count: int) -> int:
    """How often a batch of so many sequences is split because the model raises: what finds any one of them,
    and once more. With a model that is simply broken it bounds what is run in vain."""
    return (count - 1).bit_length() + 1


def as_far_as_it_came(window: Window, ns_per_token: float | None) -> Window:
    """The window of an attempt that failed, with the tokens that its variant computes in that time. The laws
    would else learn that a full batch may cost next to nothing. None: no batch has told how long it takes."""
    if ns_per_token is None:
        return window
    tokens = min(window.computed_tokens, max(1, round(window.duration_ns / ns_per_token)))
    length = min(window.padded_length, tokens)
    lengths = (length,) * round(tokens / length)
    return replace(window, lengths=lengths, padded_length=length, packed_rows=0)


def token_limit(failed: Sequence[int], worked: Sequence[int]) -> int:
    """Computed tokens that a batch may have, from the sizes of the parts of one that failed and worked: half
    of the least that failed, or more where more has worked."""
    least = min(failed)
    return max([1, least // 2, *(size for size in worked if size < least)])


class LearnedLimits:
    """The token limits that one device's batches have taught, by variant. Belongs to the lane's thread."""

    def __init__(self, batcher: Batcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._batcher = batcher
        self._clock = clock
        self.tokens: dict[str, tuple[int, float]] = {}  # by variant, and until when

    def learn(self, variant: str, failed: Sequence[int], worked: Sequence[int]) -> None:
        """From a split batch: the computed tokens of its parts that failed, and of those that did not."""
        tokens = token_limit(failed, worked)
        if variant in self.tokens:
            tokens = min(tokens, self.tokens[variant][0])
        self.tokens[variant] = tokens, self._clock() + LIMIT_HOLDS_S
        self._batcher.limit_tokens(variant, tokens)
        log.warning(
            "variant %s ran out of memory on a batch of %d tokens, which was run in parts; for %.0f minutes "
            "its batches have no more than %d",
            variant, max(failed), LIMIT_HOLDS_S / 60, tokens,
        )  # fmt: skip

    def forget_old(self) -> None:
        now = self._clock()
        for variant in [name for name, (_, until) in self.tokens.items() if until <= now]:
            del self.tokens[variant]
            self._batcher.limit_tokens(variant, self._batcher.limits.max_tokens)
            log.info("variant %s may fill its batches again, after running out of memory", variant)
