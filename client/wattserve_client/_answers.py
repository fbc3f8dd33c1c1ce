"""The loop of the blocking client's `predict_many`; the asyncio client's is in `_astream`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc

from wattserve_client._channel import Link
from wattserve_client._requests import Inputs
from wattserve_client._stream import StreamBook
from wattserve_client.results import Answer
from wattserve_proto.v1 import inference_pb2 as pb


def answers(
    link: Link,
    start: Callable[[Iterator[pb.PredictRequest]], Any],
    inputs: Iterator[Inputs],
    book: StreamBook,
    timeout_s: float,
) -> Generator[Answer, None, None]:
    """The answers of one stream; `start` opens it, given its requests."""
    # grpc takes requests on a thread of its own, and waits for responses; a thread that forwards
    # responses leaves the caller's thread free to look for an answer without waiting for one.
    requests: queue.SimpleQueue[pb.PredictRequest | None] = queue.SimpleQueue()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = start(iter(requests.get, None))
    threading.Thread(target=_forward, args=(call, events), daemon=True, name="wattserve-answers").start()
    try:
        while True:
            if book.has_room and events.empty():
                try:
                    asked = book.ask(next(inputs))
                except StopIteration:
                    book.all_sent = True
                    requests.put(None)
                    continue
                if isinstance(asked, Answer):
                    yield asked
                else:
                    requests.put(asked)
                continue
            try:
                event = events.get(timeout=timeout_s)
            except queue.Empty:
                raise book.silent(timeout_s) from None
            match event:
                case pb.PredictStreamResponse():
                    yield book.answer(event)
                case grpc.RpcError():
                    raise book.broken(link.failure(event)) from event
                case None:
                    book.ended()
                    return
    finally:
        requests.put(None)
        call.cancel()


def _forward(call: Any, events: queue.SimpleQueue[Any]) -> None:
    """Put each response of a stream into `events`, then the grpc error that ended it, or None."""
    try:
        for response in call:
            events.put(response)
    except grpc.RpcError as error:
        events.put(error)
    else:
        events.put(None)
