"""The messages of a generation, stamped as they come, and read after the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fixtures.fake_server.answers import Raw
from tests.fixtures.fake_server.child import listening
from wattserve_common.dataset import Dataset
from wattserve_loadgen.target.generation import make_generation, read_generation
from wattserve_loadgen.target.wire import (
    CALL_ERRORS,
    GENERATE,
    Connection,
    failure_of,
    open_calls,
    stamped_messages,
)
from wattserve_proto.v1 import inference_pb2 as pb

PIECE = pb.GenerateResponse(variant="fp32", piece=pb.GenerationPiece(token_ids=[7]))
END = pb.GenerateResponse(variant="fp32", end=pb.GenerationEnd(usage=pb.Usage(output_tokens=2)))


async def sent(*messages: bytes, code: grpc.StatusCode = grpc.StatusCode.OK) -> bytes:
    """What comes of a call that these answer."""

    async def reply(request: bytes, context: Any) -> AsyncIterator[bytes]:
        assert request == b"prompt"
        for message in messages:
            yield message
        if code is not grpc.StatusCode.OK:
            await context.abort(code, "so it ends")

    async with listening(Raw(Generate=reply)) as address:
        (call,), close = open_calls(Connection(address, GENERATE), 1)
        try:
            return await asyncio.ensure_future(call(b"prompt", timeout=20))
        finally:
            await close()


async def test_an_answer_is_its_messages_with_the_instants_at_which_they_came() -> None:
    before = time.perf_counter_ns()
    messages = [PIECE.SerializeToString(), PIECE.SerializeToString(), END.SerializeToString()]
    answer = await sent(*messages)
    stamps = [stamp for stamp, _ in stamped_messages(answer)]
    assert [data for _, data in stamped_messages(answer)] == messages
    assert before <= stamps[0] <= stamps[1] <= stamps[2] <= time.perf_counter_ns()
    told = read_generation(answer)
    assert (told.variant, told.arrivals_ns) == ("fp32", tuple(stamps[:2]))
    assert told.end.usage.output_tokens == 2


async def test_a_stream_that_breaks_is_a_failure_whatever_came_before() -> None:
    with pytest.raises(CALL_ERRORS) as raised:
        await sent(PIECE.SerializeToString(), code=grpc.StatusCode.UNAVAILABLE)
    assert isinstance(raised.value, CALL_ERRORS)
    assert failure_of(raised.value).code == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([PIECE.SerializeToString()], "the stream ended without saying how the generation did"),
        ([END.SerializeToString()], "no token came"),
        ([b"\xff\xff"], "a message of the answer is not a GenerateResponse"),
        ([], "the stream ended without saying how the generation did"),
    ],
)
async def test_what_is_no_whole_generation_is_told(messages: list[bytes], said: str) -> None:
    answer = await sent(*messages)
    with pytest.raises(ValueError, match=said):
        read_generation(answer)


def test_a_request_asks_for_as_many_tokens_as_the_dataset_says() -> None:
    rows = (np.array([1, 2, 3], dtype=np.int32), np.array([4], dtype=np.int32))
    data = Dataset(Path("p"), rows, np.array([-1, -1]), "ab", {}, max_new_tokens=(5, 9))
    request = pb.GenerateRequest.FromString(make_generation(data, 1, "bf16"))
    assert (request.variant, list(request.tokens.ids)) == ("bf16", [4])
    assert (request.max_new_tokens, request.ignore_eos) == (9, True)
