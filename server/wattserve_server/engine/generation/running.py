"""A generation in progress, as its caller sees it: pieces as they come, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from wattserve_server.energy.receipt import Receipt
from wattserve_server.engine.generation.members import Member
from wattserve_server.engine.generation.port import Ended, FinishReason, Piece, TokenScore
from wattserve_server.engine.generation.text import TextStream
from wattserve_server.engine.queued import Answer, Request
from wattserve_server.errors import WattserveError


class RunningGeneration:
    """Implements `port.Generation`. What has come and was not read is one piece, whatever its size: a slow
    reader gets all of it at once. Lives on the event loop. withdraw: takes it out of where it waits or runs.
    refuse: see `port.Generation`.
    """

    def __init__(
        self,
        request: Request,
        member: Member,
        text: TextStream,
        withdraw: Callable[[], None],
        refuse: Callable[[WattserveError], bool],
    ) -> None:
        self.receipt: Receipt = request.receipt
        self.request = request
        self.member = member
        self._text = text
        self._withdraw = withdraw
        self.refuse = refuse
        self._tokens: list[TokenScore] = []  # that have come and were not read
        self._news = asyncio.Event()
        self._ended: Ended | None = None
        self._first_token_ns = 0
        self._output_tokens = 0
        self.reason: FinishReason | None = None  # where something else than a token has ended it
        self.on_used: Callable[[int], object] | None = None
        request.answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Answer]) -> None:
        if not answer.cancelled():
            answer.exception()  # of which a reader is told, if there is one
        self._news.set()

    def arrived(self, scores: Sequence[TokenScore], at_ns: int) -> None:
        """A step has chosen tokens of it."""
        if scores:
            self._first_token_ns = self._first_token_ns or at_ns
            self._output_tokens += len(scores)
            self._tokens += scores
            self._news.set()
        if self.on_used is not None and (used_uj := self.energy_uj) is not None:
            self.on_used(used_uj)

    @property
    def energy_uj(self) -> int | None:
        """That the steps that have ended used of it; None while that is not known."""
        total_uj: int | None = None
        for line in self.receipt.lines:
            if line.is_overhead or not line.tallies[0].ended:  # its first step still runs
                continue
            if (line_uj := line.energy_uj) is None:
                return None
            total_uj = (total_uj or 0) + line_uj
        return total_uj

    @property
    def has_cost_enough(self) -> bool:
        """Whether it has used what it may."""
        most_uj = None if self.member.wish is None else self.member.wish.max_energy_uj
        return most_uj is not None and (self.energy_uj or 0) >= most_uj

    @property
    def ended(self) -> Ended:
        if self._ended is None:
            raise RuntimeError("the generation has not ended yet")
        return self._ended

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while True:
            if self._tokens:
                return self._piece()
            if self.request.answer.done():
                await self.request.answer  # raises what it failed with
                if self._ended is None:
                    return self._last_piece()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    async def aclose(self) -> None:
        """Its caller wants no more."""
        if not self.request.answer.done():
            self.request.answer.cancel()
            self._withdraw()

    def _piece(self) -> Piece:
        tokens, self._tokens = self._tokens, []
        ids = tuple(token.token_id for token in tokens)
        told = self.member.wish is not None and self.member.wish.best is not None
        return Piece(ids, self._text.add(ids), tuple(tokens) if told else (), self.energy_uj)

    def _last_piece(self) -> Piece:
        """The text that was held back; from now on it is known how it ended."""
        answer = self.request.answer.result()
        accepted_ns = self.request.accepted_ns
        reason = self.reason or self.member.reason
        assert reason is not None
        self._ended = Ended(
            reason,
            self._text.stop,
            len(self.member.prompt),
            self._output_tokens,
            self.member.preemptions,
            max(0, self.member.first_ns - accepted_ns),
            max(0, self._first_token_ns - accepted_ns),
            answer.compute_ns,
        )
        return Piece((), self._text.end(), (), self.energy_uj)
