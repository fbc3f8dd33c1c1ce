"""The server from its start to its end: it listens, is started, runs until a signal, is drained."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wattserve_common.words import ACCOUNTS, counted
from wattserve_server.config import OFF, ServerConfig
from wattserve_server.console import say
from wattserve_server.engine.heap import keep_small
from wattserve_server.errors import ConfigError
from wattserve_server.meters.sampler import Sampler
from wattserve_server.meters.together import Together
from wattserve_server.service.certificates import CertificateFiles
from wattserve_server.service.gate import Gate, KeyFile
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.listen import ConnectionLimits, Listener
from wattserve_server.service.methods import Deadlines, Desk
from wattserve_server.service.native import InferenceService
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S, Host, Predictor, Serving, Unkeyed
from wattserve_server.service.quota import Quotas
from wattserve_server.service.status_page import StatusPage
from wattserve_server.starting import make_plan, start
from wattserve_server.telemetry.exposition import Exposition
from wattserve_server.telemetry.fresh import Fresh
from wattserve_server.telemetry.observer import Observer
from wattserve_server.telemetry.scrape import wants_openmetrics

if TYPE_CHECKING:
    from wattserve_server.http.front import Front

log = logging.getLogger(__name__)

BUDGETS_NEED_BOOK = "has budgets, which an account book keeps: give --account-book"
BUDGETS_NEED_METER = "has budgets, and --meter none counts no joules: give another --meter"

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

LOOK_AT_KEYS_S = 1.0
SENT_TWICE_S = 1.0  # as GNU timeout does, to its child and to its group
CLOSING_S = 1.0  # for how long a drained server waits for streams that have nothing more to say

# New objects before Python looks for garbage among them: those of a few hundred requests.
YOUNG_OBJECTS = 5000


async def serve(config: ServerConfig, audit: Path | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain: the exit code. Raises ConfigError or MeterError at
    start-up.

    audit: the file to make of all that its accountants are told; None: there is none."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = draining_signals()
    for number in numbers:
        loop.add_signal_handler(number, stopping.set)
    plan = make_plan(config, audit)
    be_ready_for_much()
    async with AsyncExitStack() as undo:
        if plan.recorder is not None:
            undo.callback(plan.recorder.close)
        most_bytes = plan.most_bytes(config)
        serving, observer = Serving(), Observer(version("wattserve"))
        quotas = Quotas(messages=HeldBytes(most_bytes))
        deadlines = Deadlines(config.default_deadline_seconds, config.max_deadline_seconds)
        predictor = Predictor(serving, observer, quotas, deadlines, Unkeyed(config.max_peer_in_flight))
        keys = KeyFile(config.keys_file) if config.keys_file else None
        budgets_need = _budgets_need(config)
        if keys is not None and budgets_need and (held := keys.first_with_budgets()):
            raise ConfigError(f"--keys-file {config.keys_file}: key {held} {budgets_need}")
        gate = Gate(keys, quotas, opens_admin=config.open_admin, trusts_header=config.trust_tenant_header)
        status_page = StatusPage(serving, observer)
        tls = None
        if config.tls_cert:
            tls = CertificateFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
        listener = Listener(
            InferenceService(serving, predictor),
            OipService(serving, predictor, observer),
            observer,
            gate,
            config.host,
            config.port,
            ConnectionLimits(
                most_bytes,
                config.max_connection_calls,
                config.max_connection_age_seconds,
                config.drain_seconds,
            ),
            deadlines,
            tls,
        )
        desk = Desk(observer, gate, listener.calls, most_bytes)
        front = _open_front(config, serving, predictor, desk, tls)
        pages = {"/": Fresh(status_page.page), "/metrics": Fresh(observer.page, wants_openmetrics)}
        may_read = gate.reads_all if config.metrics_need_key else None
        exposition = Exposition(
            pages,
            config.metrics_address,
            config.metrics_port,
            may_read,
            config.max_metrics_connections,
            partial(loop.call_soon_threadsafe, observer.refused, "metrics_connections"),
        )
        undo.callback(exposition.close)
        await listener.start()
        undo.push_async_callback(listener.stop, 0)
        if front is not None:
            front.start()
            undo.push_async_callback(front.stop)
        if keys is not None:
            observer.declare_tenants(keys.keys.tenants)
            looking = asyncio.create_task(_look_at_keys(keys, listener, observer, budgets_need))
            undo.callback(looking.cancel)
        starting = asyncio.create_task(start(config, plan, observer, quotas, undo, predictor, keys))
        interrupted = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            if plan.recorder is not None:
                plan.recorder.discard()
            say("interrupted while starting: nothing was accepted, nothing is lost")
            os._exit(130)  # loading and warming up run on threads that cannot be cancelled
        host, go_on = starting.result()
        going_on = asyncio.create_task(go_on())
        undo.callback(going_on.cancel)
        await asyncio.sleep(0)  # then every variant that is to be loaded says so, and its requests wait
        serving.host = host
        for lasting in (status_page.keep_history(), keep_small()):
            undo.callback(asyncio.create_task(lasting).cancel)
        listener.say(serving=True)
        if config.tls_cert:
            asked = "shows a certificate" if config.tls_client_ca else "likes"
            say(f"gRPC speaks TLS, with whoever {asked}; metrics are plain HTTP")
        if keys is not None:
            say(f"API keys are needed: {counted(len(keys.keys.by_id), 'key')} of {config.keys_file}")
            named = any(key.names for key in keys.keys.by_id.values())
            if named and not config.trust_tenant_header:
                say("a key may name tenants, and no header is believed without --trust-tenant-header")
        for_openai = "" if front is None else f", OpenAI {front.url}"
        print(f"wattserve ready: gRPC {listener.address}, metrics {exposition.url}{for_openai}", flush=True)
        await interrupted
        loop.call_later(SENT_TWICE_S, _end_at_once_by, numbers)  # but not by one that was only sent twice
        await drain(config, serving, host, listener)
        is_building = host.engine.loader.is_building
    code = 0 if plan.has_kept_all else 1
    if is_building:
        os._exit(code)  # on a thread that cannot be cancelled, for nobody any more
    return code


def _end_at_once_by(numbers: list[signal.Signals]) -> None:
    """Whatever runs: Python's own handler of SIGINT would wait for the batch that does."""
    for number in numbers:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def _open_front(
    config: ServerConfig, serving: Serving, predictor: Predictor, desk: Desk, tls: CertificateFiles | None
) -> Front | None:
    """For OpenAI's clients, where it is asked for: who does not ask needs none of its libraries. Raises
    ConfigError."""
    if config.http_port == OFF:
        return None
    try:
        from wattserve_server.http.front import open_front
    except ModuleNotFoundError as error:
        raise ConfigError(f"--http-port needs {error.name}: pip install 'wattserve[openai]'") from error
    return open_front(serving, predictor, desk, config.host, config.http_port, tls)


def draining_signals() -> list[signal.Signals]:
    """At which the server drains. A closed terminal ends nothing where that is ignored, as nohup has it."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if number != signal.SIGHUP or not is_ignored]


def _budgets_need(config: ServerConfig) -> str:
    """What is missing; empty: nothing."""
    if not config.account_book:
        return BUDGETS_NEED_BOOK
    return BUDGETS_NEED_METER if config.meter == "none" else ""


async def _look_at_keys(keys: KeyFile, listener: Listener, observer: Observer, budgets_need: str) -> None:
    """Take up what changes in the file, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_AT_KEYS_S)
        listener.revoke(await asyncio.to_thread(keys.look))  # thousands of keys take a second to read
        if budgets_need and (held := keys.first_with_budgets()):
            log.error("BUDGETS ARE NOT KEPT: key %s %s", held, budgets_need)
        observer.declare_tenants(keys.keys.tenants)


def be_ready_for_much() -> None:
    """Of this process. Each connection takes a file descriptor, and 1024 are what a shell gives; more may be
    taken."""
    gc.freeze()  # the 390,000 objects of what is imported: looking through them stopped everything for 0.2 s
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Listens(Protocol):
    """What calls come by, as far as a drain is concerned: see `Listener`."""

    def say(self, serving: bool) -> None: ...
    async def cut(self) -> None: ...
    async def stop(self, grace_s: float) -> None: ...


async def drain(config: ServerConfig, serving: Serving, host: Host, listener: Listens) -> None:
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
            await host.engine.until_idle()
    except TimeoutError:
        say(f"some requests did not end within {config.drain_seconds:g} s; they are told UNAVAILABLE")
        serving.is_cut = True
        await listener.cut()
        await host.engine.until_idle()  # what runs is still charged
    host.engine.loader.give_up()
    samplers = {sampler for meter in host.meters.values() for sampler in meter.booked.values()}
    # From here on no account grows: what is told at the end is what the account book holds.
    await asyncio.gather(*(asyncio.to_thread(_settle_and_stop, sampler) for sampler in samplers))
    await asyncio.sleep(0)  # for the charges that the samplers have just handed over
    host.engine.book.close()
    await listener.stop(CLOSING_S)
    for meter in host.meters.values():
        say(_final_account(meter.sampler, f" on {meter.device}" if len(host.meters) > 1 else ""))
    if len(host.meters) > 1:
        every = [sampler for meter in host.meters.values() for sampler in meter.booked.values()]
        say(_final_account(Together(every), " on all of them"))


def _settle_and_stop(sampler: Sampler) -> None:
    sampler.wait_until_settled(SETTLEMENT_LIMIT_S)
    sampler.stop()


def _final_account(sampler: Together, where: str) -> str:
    ledger = sampler.ledger
    if ledger.since_ns is None:
        return f"drained{where}: no energy figures ({sampler.status.last_error})"
    others = {name: getattr(ledger, field) for field, (name, _) in ACCOUNTS.items()}
    accounts = {"active": ledger.active_uj} | others
    parts = " + ".join(f"{name} {amount_uj / 1e6:.3f}" for name, amount_uj in accounts.items())
    return f"drained{where}: {sampler.status.source.quality.value} {ledger.measured_uj / 1e6:.3f} J = {parts}"
