"""How `predict_many` ends: by an error, by silence, by being left; asked of both clients."""

from __future__ import annotations

import asyncio
import itertools
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import (
    Refuse,
    ScriptedServer,
    answer_only,
    answered,
    texts,
    until_it_ends,
)
from wattserve_client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    ServerError,
    Unavailable,
    WattserveError,
    _stream,
)
from wattserve_client._channel import Link
from wattserve_client._stream import End, StreamBook
from wattserve_proto.v1 import inference_pb2 as pb


def test_what_ends_the_stream_is_raised_with_the_inputs_it_leaves_open(server: Any, client: Any) -> None:
    def drain(requests: Any, call: Any) -> Any:
        next(requests)
        raise RuntimeError("the script ends the stream")

    server.script["PredictStream"] = [answer_only(0, 2, then=drain)]
    answers = client.predict_many(texts(9), in_flight=2)
    assert [next(answers).index, next(answers).index] == [0, 2]
    with pytest.raises(ServerError) as caught:  # a servicer's exception is UNKNOWN
        next(answers)
    assert caught.value.__cause__ is not None
    assert caught.value.__notes__ == ["sent and not answered, so their fate is not known: inputs 1, 3"]


def test_a_refused_stream_raises(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [Refuse("UNAVAILABLE", "draining")]
    with pytest.raises(Unavailable, match="draining"):
        list(client.predict_many(texts(3)))
    assert len(server.calls["PredictStream"]) == 1


def test_the_servers_reason_is_not_lost_when_it_leaves_amid_the_sending(server: Any, client: Any) -> None:
    """grpc.aio often reports its own failed write in place of the server's status: so, many times."""

    def leave(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        yield answered(next(requests))
        call.refuse(Refuse("UNAVAILABLE", "draining"))

    server.script["PredictStream"] = [leave]
    for _ in range(30):
        with pytest.raises(Unavailable, match="draining"):
            list(client.predict_many(itertools.cycle(["a film"]), in_flight=500))


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
def test_no_server_raises_rather_than_hangs(kind: Any) -> None:
    with ScriptedServer() as gone:
        target = gone.target
    with kind(target) as client, pytest.raises(Unavailable) as caught:
        list(client.predict_many(texts(100)))
    assert not hasattr(caught.value, "__notes__")  # nothing was sent, so no fate is unknown


def test_a_stream_that_ends_too_early_raises(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [answer_only(0, then=lambda requests, call: [])]
    with pytest.raises(Unavailable, match="the server ended the stream before everything was answered"):
        list(client.predict_many(texts(9)))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once it is set, whoever waits for an answer has waited for long enough."""
    impatient, timeout = threading.Event(), asyncio.timeout

    class Events(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return super().get(block, 0.0 if timeout and impatient.is_set() else timeout)

    def timeout_at_once(seconds: float | None) -> asyncio.Timeout:
        return timeout(0.0 if impatient.is_set() else seconds)

    monkeypatch.setattr(_stream, "queue", SimpleNamespace(SimpleQueue=Events, Empty=queue.Empty))
    monkeypatch.setattr(asyncio, "timeout", timeout_at_once)
    return impatient


def test_a_stream_that_never_ends_raises_after_its_last_answer(
    server: Any, client: Any, impatient: threading.Event
) -> None:
    server.script["PredictStream"] = [answer_only(0, 1)]
    answers = client.predict_many(texts(2), timeout_s=60)
    assert [next(answers).index, next(answers).index] == [0, 1]
    impatient.set()
    with pytest.raises(DeadlineExceeded):
        next(answers)


def test_a_stream_that_ends_with_inputs_still_to_send_is_not_taken_for_complete() -> None:
    link = Link("host:1", timeout_s=1, retry=True)
    book = StreamBook(link, ["a", "b"], pb.PredictRequest(), in_flight=1)
    request = book.ask("a")
    assert isinstance(request, pb.PredictRequest)
    book.answer(answered(request))
    with pytest.raises(Unavailable, match="the server ended the stream before everything was answered"):
        book.end(End("", None))
    book.all_sent = True
    assert book.end(End("", None)) is None
    assert book.is_over


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (pb.PredictStreamResponse(request_id="7"), "it answers the request '7', which is not open"),
        (pb.PredictStreamResponse(request_id="0"), "neither a prediction nor an error"),
    ],
)
def test_an_answer_that_breaks_the_protocol_raises(
    server: Any, client: Any, response: Any, reason: str
) -> None:
    def wrong(requests: Iterator[Any], call: Any) -> Iterator[Any]:
        next(requests)
        yield response
        call.ended.wait(timeout=60)

    server.script["PredictStream"] = [wrong]
    with pytest.raises(ServerError, match=reason):
        list(client.predict_many(texts(3)))
    assert server.calls["PredictStream"][0].ended.wait(timeout=60)


def test_silence_beyond_the_deadline_raises_and_cancels(
    server: Any, client: Any, impatient: threading.Event
) -> None:
    server.script["PredictStream"] = [answer_only(0)]
    answers = client.predict_many(texts(2), timeout_s=60)
    assert next(answers).index == 0
    impatient.set()
    with pytest.raises(DeadlineExceeded, match=r"no answer within 60 s") as caught:
        next(answers)
    assert caught.value.__notes__ == ["sent and not answered, so their fate is not known: inputs 1"]
    assert server.calls["PredictStream"][0].ended.wait(timeout=60)


def test_leaving_the_loop_cancels_the_stream(server: Any, client: Any) -> None:
    server.script["PredictStream"] = [answer_only(0)]
    for answer in client.predict_many(itertools.cycle(["a film"]), in_flight=4):
        assert answer.index == 0
        break
    assert server.calls["PredictStream"][0].ended.wait(timeout=60)
    assert client.predict("still").label == "positive"


def test_an_exception_in_the_loop_cancels_the_stream(server: Any, client: Any) -> None:
    def loop() -> None:
        for _ in client.predict_many(itertools.cycle(["a film"]), in_flight=4):
            raise KeyError

    server.script["PredictStream"] = [answer_only(0)]
    with pytest.raises(KeyError):
        loop()
    assert server.calls["PredictStream"][0].ended.wait(timeout=60)


def test_an_exception_in_the_iterable_is_raised_as_it_is_and_cancels_the_stream(
    server: Any, client: Any
) -> None:
    def broken() -> Iterator[str]:
        yield "a film"
        raise LookupError("no more film")

    server.script["PredictStream"] = [answer_only(0)]
    with pytest.raises(LookupError, match="no more film"):
        list(client.predict_many(broken(), in_flight=1))
    assert server.calls["PredictStream"][0].ended.wait(timeout=60)


def test_an_abandoned_stream_leaves_no_thread_behind(server: ScriptedServer) -> None:
    def ours() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if not each.name.startswith("ThreadPoolExecutor")}

    server.script["PredictStream"] = [answer_only(0)]
    before = ours()
    with Client(server.target) as client:
        for _ in range(3):
            for _ in client.predict_many(itertools.cycle(["a film"]), in_flight=4):
                break
    for thread in ours() - before:
        thread.join(timeout=60)
    assert ours() <= before


def test_an_interpreter_ends_with_a_stream_left_open(server: ScriptedServer) -> None:
    """The hang that this guards against is rare, and less so with several at once."""
    server.script["PredictStream"] = [answer_only(0)]
    program = (
        "from wattserve_client import Client\n"
        f"client = Client({server.target!r})\n"
        "answers = client.predict_many(['a', 'b', 'c'])\n"
        "print(next(answers).index)\n"
    )
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(6)]
    try:
        said = [child.communicate(timeout=30) for child in children]
    finally:
        for child in children:
            child.kill()
    assert said == [("0\n", "")] * 6
    assert [child.returncode for child in children] == [0] * 6


async def test_an_abandoned_async_stream_leaves_no_task_behind(server: ScriptedServer) -> None:
    async def endless() -> AsyncIterator[str]:
        while True:
            yield "a film"

    server.script["PredictStream"] = [answer_only(0)]
    async with AsyncClient(server.target) as client:
        await client.server_info()
        before = asyncio.all_tasks()
        async with aclosing(client.predict_many(endless(), in_flight=4)) as answers:
            assert (await anext(answers)).index == 0
        left = asyncio.all_tasks() - before
        assert not any("wattserve_client" in repr(task) for task in left)
        if left:  # grpc's own take one more turn of the loop
            assert not (await asyncio.wait(left, timeout=60))[1]
        async for _ in client.predict_many(endless(), in_flight=4):
            break
        for call in server.calls["PredictStream"]:
            assert await asyncio.to_thread(call.ended.wait, 60)


async def test_cancelling_the_task_that_reads_a_stream_is_never_swallowed(server: ScriptedServer) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in client.predict_many(["a", "b"]):
            started.set()

    server.script["PredictStream"] = [answer_only(0)]
    async with AsyncClient(server.target) as client:
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await asyncio.to_thread(server.calls["PredictStream"][0].ended.wait, 60)


async def test_a_cancellation_from_the_iterable_ends_the_stream_instead_of_hanging(
    server: ScriptedServer,
) -> None:
    async def cancelled() -> AsyncIterator[str]:
        yield "a film"
        raise asyncio.CancelledError

    server.script["PredictStream"] = [until_it_ends]
    async with AsyncClient(server.target) as client:
        with pytest.raises(asyncio.CancelledError):
            async for _ in client.predict_many(cancelled()):
                pass


async def test_closing_the_async_client_ends_an_open_stream_as_cancelled(server: ScriptedServer) -> None:
    server.script["PredictStream"] = [answer_only(0)]
    client = AsyncClient(server.target)
    answers = client.predict_many(["a", "b"])
    await anext(answers)
    await client.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await anext(answers)


def test_closing_the_client_ends_an_open_stream_as_cancelled(server: ScriptedServer) -> None:
    server.script["PredictStream"] = [answer_only(0)]
    client = Client(server.target)
    answers = client.predict_many(["a", "b"])
    next(answers)
    client.close()
    with pytest.raises(WattserveError) as caught:
        next(answers)
    assert type(caught.value) is Cancelled
