"""How the next token is chosen of a row of logits. Pure; on the host.

What is drawn depends on the request's seed and on the token's position alone: a generator that counts
(Philox) is asked for the number of that position.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from wattserve_server.engine.generation.port import Sampling, TokenScore

Logits = NDArray[np.float32]  # [vocabulary]

COLDEST = 1e-6  # temperature: below it the likeliest token is drawn all the same

LIKELY = 256  # of so many of the best tokens top_p looks first


def choose(logits: Logits, how: Sampling, seen: Collection[int], position: int) -> int:
    """The next token. seen: those of the prompt and of the answer so far. position: of the new one."""
    if how.repetition_penalty != 1.0 and seen:
        logits = penalised(logits, how.repetition_penalty, seen)
    if not how.temperature:
        return int(logits.argmax())
    ids = None
    scaled = (logits.astype(np.float64) - float(logits.max())) / max(how.temperature, COLDEST)
    if 0 < how.top_k < len(scaled):
        ids = np.argpartition(scaled, -how.top_k)[-how.top_k :]
        scaled = scaled[ids]
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    if how.top_p < 1.0:
        kept = _likeliest(weights, how.top_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    order = np.argsort(ids) if ids is not None else slice(None)  # so that ties are drawn alike
    cumulated = np.cumsum(weights[order])
    at = int(np.searchsorted(cumulated, _uniform(how.seed, position) * cumulated[-1], side="right"))
    at = min(at, len(cumulated) - 1)
    return at if ids is None else int(ids[order][at])


def penalised(logits: Logits, penalty: float, seen: Collection[int]) -> Logits:
    """Less likely are the tokens that were there, as CTRL and transformers do it."""
    at = np.fromiter(seen, dtype=np.int64)
    changed = logits.copy()
    wide = changed[at].astype(np.float64)
    most = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):  # by a penalty next to nothing; it is clipped
        changed[at] = np.clip(np.where(wide < 0, wide * penalty, wide / penalty), -most, most)
    return changed


def score(logits: Logits, token: int, best: int) -> TokenScore:
    """The log-probability of a token, and of so many of the best."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logs = wide - np.log(np.exp(wide).sum())
    top: tuple[tuple[int, float], ...] = ()
    if best:
        found = np.argpartition(-logs, min(best, len(logs) - 1))[:best].tolist()
        top = tuple((each, float(logs[each])) for each in sorted(found, key=lambda each: (-logs[each], each)))
    return TokenScore(token, float(logs[token]), top)


def log_likelihoods(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """[tokens, vocabulary] and [tokens] -> [tokens]: of each under its row."""
    highest = logits.max(axis=1)
    sums = np.log(np.exp(logits - highest[:, None], dtype=np.float64).sum(axis=1))
    return np.asarray(logits[np.arange(len(tokens)), tokens] - highest - sums, dtype=np.float32)


def _likeliest(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """The fewest of the likeliest that have that probability together."""
    if len(weights) > LIKELY:
        few = np.argpartition(weights, -LIKELY)[-LIKELY:]
        if weights[few].sum() >= top_p:
            return few[_likeliest(weights[few], top_p)]
    order = np.argsort(-weights, kind="stable")
    enough = int(np.searchsorted(np.cumsum(weights[order]), top_p, side="left")) + 1
    return order[:enough]


def _uniform(seed: int, position: int) -> float:
    """In [0, 1)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())
