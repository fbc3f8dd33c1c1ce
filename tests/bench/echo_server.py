"""The servers that `echo` compares, as programs.

`python -m tests.bench.echo_server serve ...` is `wattserve serve` with one more kind of variant, `echo`,
which computes nothing and says so: what is left of a request is the way through the server. With `empty`
before `serve` it is the least that grpc.aio does for a call: no message, no interceptor, no work.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import torch

from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.port import Built, Kind, Materials, Support

PROXY = "nothing is computed: the same two numbers for every sequence"
SERVICE = "bench.Empty"
MOST_ROWS = 4096
ID_BYTES = 7
"""Of a request or a reply on a stream: its field `request_id`, of five characters."""


class Echo(torch.nn.Module):
    """As a classifier of two labels is called."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.tensor([[-1.0, 1.0]]).repeat(MOST_ROWS, 1)

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits[: len(input_ids)])


def _support(device: torch.device) -> Support:
    return Support(True, "there is nothing to run", "none", "fp32", "fp32")


def _build(materials: Materials, device: torch.device) -> Built:
    return Built(Echo(), "an echo, for benchmarks", ())


ECHO = Kind("echo", weights="none", support=_support, build=_build, proxy=PROXY)


async def _unary(request: bytes, context: Any) -> bytes:
    return b""


async def _stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request[:ID_BYTES]


async def serve_empty() -> None:
    """Until killed."""
    server = grpc.aio.server()
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Predict": grpc.unary_unary_rpc_method_handler(_unary),
        "ModelInfer": grpc.unary_unary_rpc_method_handler(_unary),
        "PredictStream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"wattserve ready: gRPC 127.0.0.1:{port}, metrics none", flush=True)
    await server.wait_for_termination()


def main() -> int:
    if sys.argv[1:2] == ["empty"]:
        asyncio.run(serve_empty())
        return 0
    KINDS[ECHO.name] = ECHO
    from wattserve_tools.cli import main as wattserve

    return wattserve()


if __name__ == "__main__":
    sys.exit(main())
