"""A call that has ended leaves nothing behind, however it ended: no cycle of references holds its message."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.garbage import unreachable
from tests.unit.server.service.test_metrics_grpc import Rig, ended_as, read
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service.weight import SMALL_BYTES

CALLS = 5

# What grpc makes for each call of its own accord, whether it is refused or answered: nothing of the message.
OF_GRPC = ("__pyx_scope_struct", "_HandlerCallDetails", "cython_function_or_method", "_Metadatum", "tuple")


async def ended(rig: Rig, how: str) -> None:
    message = pb.PredictRequest(request_id=how).SerializeToString()
    for _ in range(CALLS):
        await asyncio.gather(ended_as(rig.predict(how)), read(rig.watch("", how)), read(rig.stream(message)))
    await rig.handled("Predict", "WatchReceipts", "PredictStream")
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["", "not found", "overloaded", "bug", "abort"])
async def test_a_call_leaves_nothing_behind(how: str) -> None:
    async with Rig() as rig:
        await ended(rig, how)  # the first calls make what is kept
        with unreachable() as found:
            await ended(rig, how)
        kinds = [type(left).__qualname__ for left in found]
        assert not [kind for kind in kinds if not any(name in kind for name in OF_GRPC)]


UNREAD = {"no message": b"\x0a\xff\xff\xff\xff\x7f rubbish", "too many parts": b"\x7a\x00" * SMALL_BYTES}


@pytest.mark.parametrize("why", UNREAD)
async def test_a_message_that_is_refused_unread_leaves_nothing_behind(why: str) -> None:
    async def refused(rig: Rig) -> None:
        for _ in range(CALLS):
            await asyncio.gather(ended_as(rig.predict(UNREAD[why])), read(rig.stream(UNREAD[why])))
        await rig.handled("Predict", "PredictStream")
        await asyncio.sleep(0)

    async with Rig() as rig:
        await refused(rig)  # the first calls make what is kept
        with unreachable() as found:
            await refused(rig)
        kinds = [type(left).__qualname__ for left in found]
        assert not [kind for kind in kinds if not any(name in kind for name in OF_GRPC)]
