"""Steady load on servers from a few threads, with all the mistakes that a caller can make."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from wattserve_client import Client, InvalidRequest, NotFound

VARIANTS = ("fp32", "bf16")
THREADS = 3
PAUSE_S = 0.01
"""Between two requests of a thread: the two cores of a small machine have to serve and to scrape too."""

MISTAKES_EVERY = 20


class Load:
    """From entering it until leaving it. The first server serves all variants, the others fp32 and little."""

    def __init__(self, addresses: Iterable[str]) -> None:
        first, *others = addresses
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(first, VARIANTS, number), daemon=True)
            for number in range(THREADS)
        ] + [threading.Thread(target=self._ask, args=(each, VARIANTS[:1], 0), daemon=True) for each in others]

    def _ask(self, address: str, variants: tuple[str, ...], number: int) -> None:
        with Client(address) as client:
            turn = number
            while not self._stopped.wait(PAUSE_S):
                turn += 1
                tokens = [2, *([4] * (7 * turn % 50)), 3]
                variant = variants[turn % len(variants)]
                client.predict([tokens, tokens[: 2 + turn % 9]], variant=variant)
                if turn % MISTAKES_EVERY == 0:
                    with suppress(InvalidRequest):
                        client.predict([99_999], variant=variant)
                    with suppress(NotFound):
                        client.predict([2, 3], variant="no-such")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=60)
