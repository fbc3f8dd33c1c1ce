"""`python -m wattserve_loadgen.drive.worker`: one process of a load that several share.

It is told a job, then the instant to begin, then perhaps to stop; it says that it is ready, how it goes, and
what it found. When its standard input ends, whoever started it is gone, and it ends too.
"""

from __future__ import annotations

import asyncio
import os
import sys

from wattserve_loadgen.drive.job import Job
from wattserve_loadgen.drive.messages import TICK_SECONDS, Begin, Ready, Stop, Tick, packed, receive
from wattserve_loadgen.drive.outcome import LoopResult
from wattserve_loadgen.target.channel import open_calls


async def _work() -> None:
    inbox = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(inbox), sys.stdin.buffer
    )
    outbox = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no message

    def say(message: object) -> None:
        outbox.write(packed(message))
        outbox.flush()

    job: Job = await receive(inbox)
    calls, close = open_calls(job.connection, job.slots())
    loop = job.make_loop(calls)
    say(Ready())
    while not isinstance(order := await receive(inbox), Begin):
        loop.stop(order.reason)

    async def obey() -> None:
        try:
            while True:
                stop: Stop = await receive(inbox)
                loop.stop(stop.reason)
        except asyncio.IncompleteReadError:
            os._exit(1)  # nobody is left to tell

    async def report() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            say(Tick(loop.rate_per_second(), loop.recent_services_ns()))

    helpers = [asyncio.create_task(obey()), asyncio.create_task(report())]
    result: LoopResult = await loop.run(order.at_ns)
    helpers[1].cancel()
    say(result)
    helpers[0].cancel()
    await close()


if __name__ == "__main__":
    try:
        asyncio.run(_work())
    except asyncio.IncompleteReadError:
        raise SystemExit(1) from None
