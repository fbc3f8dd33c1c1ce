"""A generation's way through the one Predictor: begun, told piece by piece, ended, counted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.alarms import Alarms
from wattserve_server.engine.generation.port import Ended, Generation, Piece, TokenIds, Wish
from wattserve_server.errors import InvalidRequest, NotPossibleHere, OverdueError
from wattserve_server.service.methods import UNREAD_S, CountedCall
from wattserve_server.service.prediction import AcceptedRequest, Options
from wattserve_server.service.wishes import Places, fitted
from wattserve_server.telemetry.observer import Times


class AskedGeneration(NamedTuple):
    """What a request asks for; all is checked but whether prompt and answer fit into the context."""

    options: Options
    prompt: str | TokenIds
    prompt_place: str  # where the request has it
    wish: Wish
    places: Places
    variant_field: str = "variant"


class Generated(NamedTuple):
    """What a generation that has ended is told at last."""

    receipt: Receipt
    times: Times
    first_token_ns: int  # from being received until its first token was there
    ended: Ended
    seed: int | None  # None where nothing was drawn

    @property
    def sequences(self) -> int:
        return 1


class Running:
    """A generation in progress, for `aclosing`: who leaves frees its place at once."""

    def __init__(
        self, prediction: AcceptedRequest, asked: AskedGeneration, generation: Generation, begun_ns: int
    ) -> None:
        """begun_ns: when the engine was given it."""
        self._prediction = prediction
        self._asked = asked
        self._generation = generation
        self._begun_ns = begun_ns
        self.receipt = generation.receipt
        if prediction.spending is not None:
            generation.on_used = prediction.spending.used
            prediction.spending.waits(generation.refuse)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for piece in self._generation:
            if piece.token_ids:
                self._prediction.tokens_came(len(piece.token_ids))
            yield piece

    async def end(self) -> Generated:
        """Once all pieces are told; waits for settled energy where that was asked for."""
        prediction, asked, ended = self._prediction, self._asked, self._generation.ended
        ran_ns = time.monotonic_ns()
        if asked.options.waits_for_energy:
            await prediction.host.until_settled(self.receipt)
        before_ns = self._begun_ns - prediction.begun_ns
        output_ns = max(0, ran_ns - self._begun_ns - ended.queue_ns - ended.compute_ns)
        total_ns = time.monotonic_ns() - prediction.begun_ns
        tokenize_ns = before_ns if isinstance(asked.prompt, str) else 0
        times = Times(tokenize_ns, ended.queue_ns, ended.compute_ns, output_ns, total_ns)
        sampling = asked.wish.sampling
        seed = sampling.seed if sampling.temperature > 0 else None
        generated = Generated(self.receipt, times, before_ns + ended.first_token_ns, ended, seed)
        prediction.answered = generated
        return generated

    async def aclose(self) -> None:
        await self._generation.aclose()


async def begin(prediction: AcceptedRequest, asked: AskedGeneration) -> Running:
    """Raises WattserveError."""
    assert prediction.hosted is not None
    engine, options, prompt = prediction.host.engine, asked.options, asked.prompt
    if isinstance(prompt, str):
        (prompt,), _ = await prediction.encoded([prompt], None, asked.prompt_place, "; shorten it")
    wish = fitted(asked.wish, prompt, engine.model.facts, asked.prompt_place, asked.places)
    prediction.allow([prompt], wish.max_energy_uj, asked.places.max_energy_uj)
    begun_ns = time.monotonic_ns()
    try:
        generation = await engine.generate(prompt, prediction.hosted, wish, prediction.order(options))
    except InvalidRequest as error:
        error.field = error.field or asked.places.max_new_tokens
        raise
    except NotPossibleHere as error:
        error.field = error.field or asked.variant_field
        raise
    return Running(prediction, asked, generation, begun_ns)


class Unread:
    """Ends the streams whose readers do not read. limit_s: for which a message may wait."""

    def __init__(self, limit_s: float = UNREAD_S) -> None:
        self._limit_s = limit_s
        self._alarms = Alarms(self._cut)

    @contextmanager
    def waiting(self, call: CountedCall) -> Iterator[None]:
        """Within the block a message of it waits to be read."""
        alarm = self._alarms.set(call, time.monotonic_ns() + int(self._limit_s * 1e9))
        try:
            yield
        finally:
            self._alarms.clear(call, alarm)

    def _cut(self, call: CountedCall) -> None:
        call.cut(
            OverdueError(f"a message of this stream waited {self._limit_s:g} s to be read, and no longer is")
        )
