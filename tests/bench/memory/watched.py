"""A server that is loaded, and looked at."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from tests.bench.memory.parts import Parts, parts_of
from tests.bench.memory.told import MARK
from tests.bench.speed.load import Served, closed_loop
from tests.bench.speed.sequences import requests_of, sequences_like_sst2
from tests.fixtures.server import RunningServer, running_server

PROGRAM = ("-m", "tests.bench.memory.told")
SEQUENCES = 256
VOCABULARY = 1_000  # which every model has
TOLD_WITHIN_S = 30.0


class Watched:
    def __init__(self, server: RunningServer, variants: Sequence[str]) -> None:
        self._server = server
        sequences = [
            [5 + token % (VOCABULARY - 5) for token in ids] for ids in sequences_like_sst2(SEQUENCES, 0)
        ]
        asked = [requests_of(sequences, variant) for variant in variants]
        self._requests = [request for requests in zip(*asked, strict=True) for request in requests]

    def look(self) -> Parts:
        """Raises RuntimeError where it does not answer."""
        before = len(self._server.errors)
        self._server.process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + TOLD_WITHIN_S
        while time.monotonic() < until:
            for line in self._server.errors[before:]:
                if line.startswith(MARK):
                    return parts_of(self._server.process.pid, json.loads(line.removeprefix(MARK)))
            time.sleep(0.05)
        raise RuntimeError(f"the server did not tell what it holds: {self._server.error_text}")

    def load(self, seconds: float, concurrency: int) -> Served:
        """Closed loops from a process of their own; all variants in turns."""
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as client:
            return client.submit(
                closed_loop, self._server.address, self._requests, concurrency, seconds
            ).result()


@contextmanager
def watched_server(model: str, variants: Sequence[str], *settings: str) -> Iterator[Watched]:
    """On the CPU, with the calibration that users have."""
    chosen = ("--model", model, "--variants", ",".join(variants), "--device", "cpu", *settings)
    with running_server(*chosen, program=PROGRAM, fresh=True) as server:
        yield Watched(server, variants)
