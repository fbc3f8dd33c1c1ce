"""The one room that knows everybody: it builds the server, runs it, and takes it down."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import signal
from contextlib import AsyncExitStack
from importlib.metadata import version

from wattserve_server.config import ServerConfig
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.inference import InferenceService
from wattserve_server.service.listen import Listener
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import Predictor
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, Ready, Serving
from wattserve_server.service.tls import Tls
from wattserve_server.service.watching import Watching
from wattserve_server.starting import make_plan, say, start
from wattserve_server.telemetry.exposition import Exposition
from wattserve_server.telemetry.failures import Failures
from wattserve_server.telemetry.metrics import Metrics
from wattserve_server.telemetry.statistics import Statistics

SIGNALS = (signal.SIGTERM, signal.SIGINT)

CLOSING_S = 1.0
"""For how long a drained server waits for streams that have nothing more to say."""

YOUNG_OBJECTS = 5000
"""New objects before Python looks for garbage among them: those of a few hundred requests."""


async def serve(config: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ConfigError or MeterError at start-up."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    plan = make_plan(config)
    gc.freeze()  # the 390,000 objects of what is imported: looking through them stopped everything for 0.2 s
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    async with AsyncExitStack() as undo:
        metrics = Metrics({"version": version("wattserve"), "python": platform.python_version()})
        serving, statistics, failures = Serving(), Statistics(), Failures()
        predictor = Predictor(serving, metrics, statistics, failures)
        watching = Watching(serving, statistics, failures)
        listener = Listener(
            InferenceService(serving, predictor),
            OipService(serving, predictor, statistics),
            metrics.calls,
            config.host,
            config.port,
            Tls(config.tls_cert, config.tls_key, config.tls_client_ca) if config.tls_cert else None,
        )
        pages = {"/": watching.page, "/metrics": metrics.page}
        exposition = Exposition(pages, config.metrics_address, config.metrics_port)
        undo.callback(exposition.close)
        await listener.start()
        undo.push_async_callback(listener.stop, 0)
        starting = asyncio.create_task(start(config, plan, metrics, statistics, undo))
        interrupted = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            say("interrupted while starting: nothing was accepted, nothing is lost")
            os._exit(130)  # loading and warming up run on threads that cannot be cancelled
        ready = starting.result()
        serving.ready = ready
        keeping = asyncio.create_task(watching.keep_history())
        undo.callback(keeping.cancel)
        listener.say(serving=True)
        if config.tls_cert:
            asked = "shows a certificate" if config.tls_client_ca else "likes"
            say(f"gRPC speaks TLS, with whoever {asked}; metrics are plain HTTP")
        print(f"wattserve ready: gRPC {listener.address}, metrics {exposition.url}", flush=True)
        await interrupted
        for number in SIGNALS:  # a second one ends the server at once
            loop.remove_signal_handler(number)
        await _drain(config, serving, ready, listener)


async def _drain(config: ServerConfig, serving: Serving, ready: Ready, listener: Listener) -> None:
    """Refuse new work, answer what was accepted, settle its energy, then end.

    The listener stays until the end: a call that met it closing would be told CANCELLED, which no client
    sends again, rather than UNAVAILABLE.
    """
    say("draining: accepted requests will be answered")
    serving.draining.set()
    listener.say(serving=False)
    try:
        async with asyncio.timeout(config.drain_seconds):
            await serving.until_idle()
            await ready.engine.until_idle()
    except TimeoutError:
        say(f"some requests did not end within {config.drain_seconds:g} s; they are cancelled")
        await listener.stop(0)
        await ready.engine.until_idle()  # what runs is still charged
    samplers = [meter.sampler for meter in ready.meters.values()]
    await asyncio.gather(
        *(asyncio.to_thread(sampler.wait_until_settled, SETTLEMENT_LIMIT_S) for sampler in samplers)
    )
    await asyncio.sleep(0)  # for the charges that the sampler has just handed over
    ready.engine.book.close()
    await listener.stop(CLOSING_S)
    for meter in ready.meters.values():
        say(_final_account(meter.sampler, f" on {meter.device}" if len(ready.meters) > 1 else ""))


def _final_account(sampler: Sampler, where: str) -> str:
    ledger = sampler.ledger
    if ledger.since_ns is None:
        return f"drained{where}: no energy figures ({sampler.status.last_error})"
    active_uj = sum(totals.active_uj for totals in ledger.active.values())
    accounts = (
        ("active", active_uj),
        ("warm-up", ledger.warmup_uj),
        ("idle", ledger.idle_uj),
        ("unattributed", ledger.unattributed_uj),
        ("gap", ledger.gap_uj),
        ("pending", ledger.pending_uj),
    )
    parts = " + ".join(f"{name} {amount_uj / 1e6:.3f}" for name, amount_uj in accounts)
    return f"drained{where}: {sampler.status.source.quality.value} {ledger.measured_uj / 1e6:.3f} J = {parts}"
