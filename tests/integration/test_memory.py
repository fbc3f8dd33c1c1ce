"""A server's memory does not grow with the calls that it has answered, nor with their batches' shapes."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench.memory.watched import PROGRAM, Watched
from tests.fixtures.models import MAX_TOKENS, save_classifier
from tests.fixtures.server import running_server
from wattserve_client import Client

CALLS = 1_200
VARIANTS = ("fp32", "bf16")
# Beside receipts, which have a bound of their own: the plans of 300 more shapes would take 100 MB and more.
MOST_BYTES = 40_000_000


def inputs(seed: int) -> Iterator[list[list[int]]]:
    """Of every length that the model takes."""
    rng = np.random.default_rng(seed)
    for length in rng.integers(2, MAX_TOKENS + 1, CALLS):
        yield [rng.integers(4, 64, length).tolist()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc says what it has given out")
def test_calls_of_every_length_take_no_more_memory_than_the_first_ones_did(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    with running_server(
        "--model", str(folder), "--variants", ",".join(VARIANTS), "--meter", "none", "--no-verify",
        "--max-batch-tokens", "1024", program=PROGRAM,
    ) as running, Client(running.address) as client:  # fmt: skip
        server = Watched(running, VARIANTS)

        def answered(seed: int) -> int:
            for number, variant in enumerate(VARIANTS):
                answers = client.predict_many(inputs(seed + number), variant=variant, in_flight=48)
                assert not [answer.error for answer in answers if answer.error]
            return server.look().other_allocated

        filled = answered(1)
        assert answered(3) - filled < MOST_BYTES
