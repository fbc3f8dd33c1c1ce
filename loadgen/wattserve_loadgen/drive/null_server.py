"""`python -m wattserve_loadgen.drive.null_server`: answers the same bytes to everything, and parses nothing.

What a client reaches against it is the client's own ceiling. It prints its port and serves until its standard
input ends, so that it never outlives the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

GENERATION = "generation"  # to each request a stream of `PIECES` messages, a token in each
KINDS = ("unary", "stream", "oip", GENERATION)
PIECES = 32
_THREADS = 4  # more only take turns: 4 served 11,000 requests a second, 64 served 5,000
_NICENESS = 10  # where both share a core, it is the client that is to be measured
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
_LOGITS = bytes(8)


def canned_answer(kind: str) -> bytes:
    """One sequence, classified, of the size that a metered server answers."""
    if kind == "oip":
        tensor = oip.ModelInferResponse.InferOutputTensor(name="logits", datatype="FP32", shape=[1, 2])
        oip_answer = oip.ModelInferResponse(
            model_name="null", outputs=[tensor], raw_output_contents=[_LOGITS]
        )
        return oip_answer.SerializeToString()
    source = pb.EnergySource(name="null", method="apportioned counter", quality=pb.ENERGY_QUALITY_MEASURED)
    line = pb.ReceiptLine(energy_uj=12_345, tokens=17, padded_tokens=32, batch_size=8, compute_ns=4_321_000)
    receipt = pb.Receipt(
        receipt_id="0123456789ab-123456",
        variant="null",
        device="cpu",
        outcome=pb.OUTCOME_COMPLETED,
        state=pb.ENERGY_STATE_PROVISIONAL,
        source=source,
        energy_uj=12_345,
        energy_low_uj=11_111,
        energy_high_uj=13_579,
        idle_policy="none",
        split_rule="shapley",
        lines=[line],
        created_unix_ns=1_700_000_000_000_000_000,
    )
    answer = pb.PredictResponse(
        variant="null",
        output=pb.Tensor(name="logits", datatype="FP32", shape=[1, 2], data=_LOGITS),
        classifications=[pb.Classification(label_index=1, label="positive", scores=[0.25, 0.75])],
        receipt=receipt,
        timing=pb.Timing(tokenize_ns=1, queue_ns=1_000_000, compute_ns=4_321_000, total_ns=6_000_000),
    )
    return answer.SerializeToString()


class _Everything(grpc.GenericRpcHandler):
    """Whatever the method's name, one handler."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler


def _serve_unary(kind: str, say: Callable[[int], None]) -> None:
    """By threads: faster here than asyncio, at one answer per call."""
    answer = canned_answer(kind)

    def reply(request: bytes, context: grpc.ServicerContext) -> bytes:
        return answer

    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
    server.add_generic_rpc_handlers((_Everything(grpc.unary_unary_rpc_method_handler(reply)),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(port)
    sys.stdin.buffer.read()
    server.stop(0).wait()


async def _serve_stream(say: Callable[[int], None]) -> None:
    """By asyncio: faster here than threads, at many answers per call."""
    answer = pb.PredictStreamResponse(response=pb.PredictResponse.FromString(canned_answer("unary")))
    tail = answer.SerializeToString()

    async def reply(requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request[: 2 + request[1]] + tail)  # its request_id, then the answer

    await _serve_by_asyncio(grpc.stream_stream_rpc_method_handler(reply), say)


async def _serve_generation(say: Callable[[int], None]) -> None:
    """By asyncio: as the server that it stands for."""
    piece = pb.GenerateResponse(
        variant="null", receipt_id="0123456789ab-123456", piece=pb.GenerationPiece(token_ids=[7], text="a")
    ).SerializeToString()
    canned = pb.PredictResponse.FromString(canned_answer("unary"))
    end = pb.GenerationEnd(receipt=canned.receipt, timing=canned.timing)
    last = pb.GenerateResponse(variant="null", end=end).SerializeToString()

    async def reply(request: bytes, context: Any) -> None:
        for _ in range(PIECES):
            await context.write(piece)
        await context.write(last)

    await _serve_by_asyncio(grpc.unary_stream_rpc_method_handler(reply), say)


async def _serve_by_asyncio(handler: Any, say: Callable[[int], None]) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_Everything(handler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say(port)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    kind = parser.parse_args().kind
    os.nice(_NICENESS)

    def say(port: int) -> None:
        print(port, flush=True)

    if kind == "stream":
        asyncio.run(_serve_stream(say))
    elif kind == GENERATION:
        asyncio.run(_serve_generation(say))
    else:
        _serve_unary(kind, say)


if __name__ == "__main__":
    main()
