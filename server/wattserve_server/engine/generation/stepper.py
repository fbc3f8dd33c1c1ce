"""A step of a language model: some tokens of each member, packed into one row, through the model once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wattserve_server.engine.generation.attention import Rows, attending
from wattserve_server.engine.generation.cache import SequenceCache
from wattserve_server.engine.generation.port import TokenIds
from wattserve_server.engine.variants.phase import decoding

if TYPE_CHECKING:  # variants are made of models, which are tried by steps
    from wattserve_server.engine.variants.variant import Variant


class Part(NamedTuple):
    """What a step computes of one member."""

    token_ids: TokenIds  # the next ones
    cache: SequenceCache  # which has room for them
    rows: int  # of the last so many the logits are wanted
    decodes: bool  # it is one token, behind all that the sequence has: such parts come first


class Prepared(NamedTuple):
    """A step that is ready to run: nothing is left to convert."""

    inputs: dict[str, torch.Tensor]
    rows: list[Rows]
    wanted: list[int]  # rows of logits of each part
    decoding: int  # parts that decode


def prepare(parts: Sequence[Part]) -> Prepared:
    """On the host."""
    rows, positions, kept, wanted, begin = [], [], [], [], 0
    for token_ids, cache, count, _ in parts:
        end = begin + len(token_ids)
        rows.append(Rows(begin, end, cache))
        positions.append(np.arange(cache.length, cache.length + len(token_ids)))
        kept.append(np.arange(end - count, end))
        wanted.append(count)
        begin = end
    inputs = {
        "input_ids": torch.from_numpy(np.concatenate([part.token_ids for part in parts]))[None],
        "position_ids": torch.from_numpy(np.concatenate(positions))[None],
        "logits_to_keep": torch.from_numpy(np.concatenate(kept)),
    }
    return Prepared(inputs, rows, wanted, sum(part.decodes for part in parts))


def run(
    variant: Variant, prepared: Prepared, timed: AbstractContextManager[object] | None = None
) -> list[NDArray[np.float32]]:
    """The logits of each part's last tokens: [rows, vocabulary]. The caches hold the new tokens, and are not
    advanced. Returns when it is done.

    timed: entered around what the device does, from the copy to it until only the copy back is left.
    """
    module: Any = variant.built.module
    with variant.at_work(), attending(prepared.rows), decoding(prepared.decoding):
        with timed or nullcontext():
            on_device = {
                name: tensor.to(variant.device, non_blocking=True) for name, tensor in prepared.inputs.items()
            }
            logits = module(**on_device, use_cache=False).logits[0].float()
        array: NDArray[np.float32] = logits.cpu().numpy()
    return np.split(array, np.cumsum(prepared.wanted)[:-1])
