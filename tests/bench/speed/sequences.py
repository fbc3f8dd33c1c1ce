"""What is sent: token ids with lengths like SST-2's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattserve_proto.v1 import inference_pb2 as pb

VOCABULARY = 30_522
LONGEST = 128

Ids = list[int]


def sequences_like_sst2(count: int, seed: int) -> list[Ids]:
    """In order of arrival: lengths right-skewed, mean about 28, up to 128 tokens; ids are random."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.round(rng.lognormal(3.15, 0.6, count)), 3, LONGEST).astype(int)
    return [rng.integers(5, VOCABULARY, size=length).tolist() for length in lengths]


def sequences_of(length: int, count: int, seed: int) -> list[Ids]:
    rng = np.random.default_rng(seed)
    sequences: list[Ids] = rng.integers(5, VOCABULARY, size=(count, length)).tolist()
    return sequences


def requests_of(sequences: Sequence[Ids], variant: str) -> list[bytes]:
    """A serialised request for each."""
    return [
        pb.PredictRequest(
            variant=variant, tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=ids)])
        ).SerializeToString()
        for ids in sequences
    ]
