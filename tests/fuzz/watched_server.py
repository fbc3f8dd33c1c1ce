"""The command `wattserve`, which tells on SIGUSR1 what it holds: one line of JSON on standard error.

Its receipts have the same ids every time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import signal
import sys
from typing import Any
from unittest.mock import patch

MARK = "FUZZ-SNAPSHOT "


def snapshot(ready: Any, serving: Any) -> dict[str, Any]:
    """What a server that nobody asks for anything holds."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "accepted": serving._accepted,
        "open": ready.engine._open_requests,
        "queued": ready.engine.queued,
        "pending": ready.engine.book.pending,
        "request_ids": len(ready.engine.book._by_request),
        "watches": len(ready.engine.book._watches),
        "waiters": len(ready.engine.book._waiters),
        "resident": {
            entry.choice.name: entry.resident.open_requests if entry.resident else None
            for entry in ready.engine.roster
        },
        "leaving": len(ready.engine.roster.leaving),
        "objects": len(gc.get_objects()),
    }


def watch() -> None:
    """Before the server starts: get hold of what it makes."""
    from wattserve_server import app, starting
    from wattserve_server.service.prediction import Serving

    started, token_hex = starting.start, secrets.token_hex
    made: list[Serving] = []

    def serving() -> Serving:
        made.append(Serving())
        return made[0]

    async def start(*given: Any) -> Any:
        ready, go_on = await started(*given)

        def tell() -> None:
            print(MARK + json.dumps(snapshot(ready, made[0])), file=sys.stderr, flush=True)

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
        return ready, go_on

    def token(size: int = 32) -> str:
        return "fuzz" * 3 if size == 6 else token_hex(size)

    patch.multiple(app, start=start, Serving=serving).start()
    patch.object(secrets, "token_hex", token).start()


if __name__ == "__main__":
    watch()
    from wattserve_tools.cli import main

    sys.exit(main())
