"""The command `wattserve`, which tells on SIGUSR1 what it holds: a line of JSON on standard error."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any
from unittest.mock import patch

from tests.bench.memory.parts import allocated

MARK = "MEMORY "


def told(engine: Any) -> dict[str, int]:
    """Bytes."""
    from wattserve_server.engine.weights import tensor_bytes

    weights = tensor_bytes(*(variant.built.module for variant in engine.roster.ready))
    return {"weights": weights, "receipts": engine.book.kept_bytes, **allocated()}


def tell_on_signal() -> None:
    """Before the server starts: get hold of the engine that it makes."""
    from wattserve_server import app, starting

    started = starting.start

    async def start(*given: Any) -> Any:
        host, go_on = await started(*given)

        def tell() -> None:
            print(MARK + json.dumps(told(host.engine)), file=sys.stderr, flush=True)

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
        return host, go_on

    patch.object(app, "start", start).start()


if __name__ == "__main__":
    from wattserve_tools.cli import main

    tell_on_signal()
    sys.exit(main())
