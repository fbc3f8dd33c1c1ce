"""Bits per byte of a text: by a language model, and by two things that know nothing of language."""

from __future__ import annotations

import lzma
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

_STRIDE = 0.5  # of the context, by which it moves on in a chapter that is longer


def bits_per_byte(model: Any, tokenizer: Any, texts: Sequence[str], context_tokens: int) -> float:
    """Of each text after <s>, its end not among what is predicted. A token of a text longer than the context
    is predicted from at least half a context. In the model's own precision."""
    nats = sum(_nats(model, tokenizer(text)["input_ids"], context_tokens) for text in texts)
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)


@torch.inference_mode()
def _nats(model: Any, ids: list[int], context_tokens: int) -> float:
    total, known = 0.0, 1  # tokens that are given, or predicted already
    start = 0
    while known < len(ids):
        window = torch.tensor([ids[start : start + context_tokens]])
        logits = model(input_ids=window, use_cache=False).logits[0, known - start - 1 : -1].float()
        targets = window[0, known - start :]
        total += float(functional.cross_entropy(logits, targets, reduction="sum"))
        known = start + window.shape[1]
        start += int(context_tokens * _STRIDE)
    return total


def bits_by_xz(training: bytes, heldout: bytes) -> float:
    """What `xz -9` needs for the held-out text behind the training text, bits per byte."""
    both, first = (len(lzma.compress(text, preset=9)) for text in (training + heldout, training))
    return 8 * (both - first) / len(heldout)


def bits_by_counts(training: bytes, heldout: bytes, order: int) -> float:
    """What a byte costs that is predicted from the `order` bytes before it, as often as each followed them in
    the training text; shorter contexts fill up what longer ones have not seen (Witten and Bell's rule)."""
    padded = bytes(order) + heldout
    contexts = {padded[at - n : at] for at in range(order, len(padded)) for n in range(order + 1)}
    seen: dict[bytes, Counter[int]] = defaultdict(Counter)
    for at in range(order, len(training)):
        following = training[at]
        for n in range(order + 1):
            context = training[at - n : at]
            if context in contexts:
                seen[context][following] += 1
    bits = 0.0
    for at in range(order, len(padded)):
        chance = 1 / 256
        for n in range(order + 1):
            counts = seen.get(padded[at - n : at])
            if counts:
                chance = (counts[padded[at]] + len(counts) * chance) / (counts.total() + len(counts))
        bits -= math.log2(chance)
    return bits / len(heldout)
