"""One call on the wire, with raw bytes, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc._cython.cygrpc import InternalError

from tests.fuzz.calls import ENDLESS, LOADING, Call

LIMIT_S = 30.0
"""A call that takes longer hangs."""

LOADING_LIMIT_S = 90.0
"""Variants are loaded one at a time."""

LOST = "Internal error from Core"
"""What grpc's own client says when it was writing at the moment the call ended: the status is lost."""

TRIES = 5

PATIENCE_S = 0.03
"""How long a stream that may have nothing to say for ever is listened to."""


@dataclass
class Outcome:
    """code: None for a call that hangs. left: whether its caller cancelled it. details: google.rpc.Status as
    bytes, or empty."""

    code: grpc.StatusCode | None
    message: str = ""
    details: bytes = b""
    replies: list[bytes] = field(default_factory=list)
    left: bool = False


async def send(channel: grpc.aio.Channel, call: Call) -> Outcome:
    """Send it; again and more slowly, should this side have lost what came of it."""
    for turn in range(TRIES):
        outcome = await _send(channel, call, turn * 0.02)
        if outcome.message != LOST:
            break
        if call.ending == "cancel":  # nor did its caller want to know
            return Outcome(grpc.StatusCode.CANCELLED, replies=outcome.replies, left=True)
    return outcome


async def _send(channel: grpc.aio.Channel, call: Call, pause_s: float) -> Outcome:
    method = call.method
    limit_s = LOADING_LIMIT_S if method.name in LOADING else LIMIT_S
    outcome = Outcome(None)
    try:
        async with asyncio.timeout(limit_s):
            if method.takes_stream:
                await _converse(channel, call, outcome, pause_s)
            elif method.gives_stream:
                await _listen(channel, call, outcome)
            else:
                await _ask(channel, call, outcome)
    except TimeoutError:
        outcome.code = None
    return outcome


async def _ask(channel: grpc.aio.Channel, call: Call, outcome: Outcome) -> None:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(call.path)
    active = method(call.messages[0], timeout=call.timeout_s)
    if call.ending == "cancel":
        await asyncio.sleep(call.after / 1000)
        outcome.left = active.cancel()
    await _end(active, outcome)
    if outcome.code is grpc.StatusCode.OK:
        outcome.replies.append(await active)


async def _listen(channel: grpc.aio.Channel, call: Call, outcome: Outcome) -> None:
    method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(call.path)
    active = method(call.messages[0], timeout=call.timeout_s)
    await _read(active, call, outcome, is_endless=call.path in ENDLESS)
    await _end(active, outcome)


async def _converse(channel: grpc.aio.Channel, call: Call, outcome: Outcome, pause_s: float) -> None:
    """pause_s: before each message; one that comes to a call that has ended costs this side the status."""
    active: Any = channel.stream_stream(call.path)(timeout=call.timeout_s)
    if call.ending == "read":  # the status comes after the last reply, so somebody has to read
        reading = asyncio.create_task(_read(active, call, outcome, is_endless=False))
        await _write(active, call, outcome, pause_s, reading.done)
        await reading
    else:
        await _write(active, call, outcome, pause_s, active.done)
        await _read(active, call, outcome, is_endless=False)
    await _end(active, outcome)


async def _write(
    active: Any, call: Call, outcome: Outcome, pause_s: float, is_over: Callable[[], bool]
) -> None:
    """Until all is written or there is nobody any more to read it."""
    try:
        for data in call.messages:
            await asyncio.sleep(pause_s)
            if is_over():
                return
            await active.write(data)
            if call.ending == "answer" and not await _read_one(active, outcome):
                return
        await asyncio.sleep(pause_s)
        if call.ending != "cancel" and not is_over():
            await active.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, InternalError):
        pass  # it has ended already; why is asked later


async def _read(active: Any, call: Call, outcome: Outcome, is_endless: bool) -> None:
    """Until the end, or until this caller leaves."""
    wanted = call.after if call.ending == "cancel" else None
    while wanted is None or len(outcome.replies) < wanted:
        reading = asyncio.ensure_future(_read_one(active, outcome))
        done, _ = await asyncio.wait((reading,), timeout=PATIENCE_S if is_endless or wanted else None)
        if not done:
            outcome.left = active.cancel()
            await asyncio.wait((reading,))
            return
        if not reading.result():
            return
    outcome.left = active.cancel()


async def _read_one(active: Any, outcome: Outcome) -> bool:
    """Whether there was a reply."""
    try:
        reply = await active.read()
    except grpc.aio.AioRpcError:
        return False
    except asyncio.CancelledError:
        if active.done():
            return False
        raise
    if reply is grpc.aio.EOF:
        return False
    outcome.replies.append(reply)
    return True


async def _end(active: Any, outcome: Outcome) -> None:
    outcome.code = await active.code()
    if outcome.code is grpc.StatusCode.CANCELLED and outcome.left:
        return
    outcome.message = await active.details() or ""
    for key, value in await active.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            outcome.details = value


async def send_all(
    address: str, calls: Sequence[Call], at_once: int, see: Callable[[Call, Outcome], Awaitable[None]]
) -> None:
    """Send every call, `at_once` at a time, over a few connections. see: given each with its outcome."""
    waiting = iter(calls)
    options = (("grpc.use_local_subchannel_pool", 1),)  # else channels would share a connection

    async def work(channel: grpc.aio.Channel) -> None:
        for call in waiting:
            await see(call, await send(channel, call))

    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(4)]
    try:
        await asyncio.gather(*(work(channels[index % len(channels)]) for index in range(at_once)))
    finally:
        for channel in channels:
            await channel.close()
