"""The server from its start to its end: planned from the settings, started, run until a signal, drained."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from wattserve_common.machine import usable_cores
from wattserve_common.words import ACCOUNTS, counted
from wattserve_server.config import OFF, ServerConfig, parse_bytes
from wattserve_server.console import say
from wattserve_server.devices import MeteredDevice, accounts_of, check_alike, open_devices
from wattserve_server.energy.receipt import Charge, IdleShare, Receipt
from wattserve_server.engine.book import ReceiptBook, Run
from wattserve_server.engine.device import resolve_devices
from wattserve_server.engine.engine import Engine, EngineLimits
from wattserve_server.engine.model import LoadedModel, kinds_of, load_model, task_of
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.roster import HostedVariant, LoadingRules
from wattserve_server.engine.rows import calibrated_scales, read_calibration
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.tasks.tokens import Tokenizer
from wattserve_server.engine.variants.catalogue import Choice, choose
from wattserve_server.engine.variants.port import ActivationScales, Materials
from wattserve_server.engine.variants.profile import begin_on_this_thread
from wattserve_server.errors import ConfigError
from wattserve_server.loading import FirstLoads
from wattserve_server.meters.sampler import Sampler
from wattserve_server.meters.together import Together
from wattserve_server.rare_lines import RARE_LINES
from wattserve_server.service.gate import Gate, KeyFile
from wattserve_server.service.held import HeldBytes
from wattserve_server.service.inference import receipt_message
from wattserve_server.service.listen import CertificateFiles, ConnectionLimits, Listener
from wattserve_server.service.methods import Deadlines, Desk
from wattserve_server.service.native import InferenceService
from wattserve_server.service.oip import OipService
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S, Host, Predictor, Serving, Unkeyed
from wattserve_server.service.quota import Quotas
from wattserve_server.service.report import static_info
from wattserve_server.service.status_page import StatusPage
from wattserve_server.telemetry.exposition import Exposition
from wattserve_server.telemetry.fresh import Fresh
from wattserve_server.telemetry.observer import Observer
from wattserve_server.telemetry.scrape import wants_openmetrics
from wattserve_server.telemetry.state import LaneState, ServedVariant, ServerState, TenantBudget

if TYPE_CHECKING:
    from wattserve_server.account_book import AccountBook
    from wattserve_server.audit.file import Header
    from wattserve_server.audit.recorder import Recorder
    from wattserve_server.http.front import Front

log = logging.getLogger(__name__)

BUDGETS_NEED_BOOK = "has budgets, which an account book keeps: give --account-book"

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

IDLE_LISTENING_S = 0.7  # how long the samplers listen before the first batch, where idle watts are measured
LOOK_AT_KEYS_S = 1.0
CLOSING_S = 1.0  # for how long a drained server waits for streams that have nothing more to say

# New objects before Python looks for garbage among them: those of a few hundred requests.
YOUNG_OBJECTS = 5000

MESSAGE_BYTES = 4 * 1024 * 1024  # 256 texts or sequences of 512 tokens need at most 3 MB of it
IMAGE_MESSAGE_BYTES = 32 * 1024 * 1024  # 55 images of 3 x 224 x 224; more would hold the event loop up

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
STEP_TOKENS = {"cpu": 128, "cuda": 2048}  # who decodes waits for as many of others' prompts


async def serve(config: ServerConfig, audit: Path | None = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain. Raises ConfigError or MeterError at start-up.

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
        if keys is not None and plan.account_book is None and (held := keys.first_with_budgets()):
            raise ConfigError(f"--keys-file {config.keys_file}: key {held} {BUDGETS_NEED_BOOK}")
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
            keeps_budgets = plan.account_book is not None
            looking = asyncio.create_task(_look_at_keys(keys, listener, observer, keeps_budgets))
            undo.callback(looking.cancel)
        starting = asyncio.create_task(start(config, plan, observer, quotas, undo, predictor, keys))
        interrupted = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            say("interrupted while starting: nothing was accepted, nothing is lost")
            os._exit(130)  # loading and warming up run on threads that cannot be cancelled
        host, go_on = starting.result()
        going_on = asyncio.create_task(go_on())
        undo.callback(going_on.cancel)
        await asyncio.sleep(0)  # then every variant that is to be loaded says so, and its requests wait
        serving.host = host
        keeping = asyncio.create_task(status_page.keep_history())
        undo.callback(keeping.cancel)
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
        for number in numbers:  # a second one ends the server at once
            loop.remove_signal_handler(number)
        await drain(config, serving, host, listener)
        is_building = host.engine.loader.is_building
    if is_building:
        os._exit(0)  # on a thread that cannot be cancelled, for nobody any more


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


async def _look_at_keys(keys: KeyFile, listener: Listener, observer: Observer, keeps_budgets: bool) -> None:
    """Take up what changes in the file, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_AT_KEYS_S)
        listener.revoke(keys.look())
        if not keeps_budgets and (held := keys.first_with_budgets()):
            log.error("BUDGETS ARE NOT KEPT: key %s %s", held, BUDGETS_NEED_BOOK)
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


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What can be decided before anything is loaded."""

    task: Task
    choices: list[Choice]
    default_variant: str
    devices: list[MeteredDevice]  # that of the default variant first
    rules: LoadingRules
    receipt_bytes: int
    account_book: AccountBook | None
    recorder: Recorder | None

    def most_bytes(self, config: ServerConfig) -> int:
        """Of a message that comes."""
        return config.max_message_bytes or (MESSAGE_BYTES if self.task.takes_text else IMAGE_MESSAGE_BYTES)


def make_plan(config: ServerConfig, audit: Path | None = None) -> ServingPlan:
    """audit: see `serve`. Raises ConfigError or MeterError for what cannot be, before the server listens."""
    main, *others = resolve_devices(config.device)
    cpu_lanes = 1 + len(others) if main.type == "cpu" else 1
    if config.threads * cpu_lanes > usable_cores():
        each = f" on each of {cpu_lanes} lanes" if cpu_lanes > 1 else ""
        cores = counted(usable_cores(), "core")
        raise ConfigError(f"--threads {config.threads}{each}: this process may use {cores}")
    task = task_of(config.model, config.task)
    kinds, only = kinds_of(config.model, task, config.trust_remote_code)
    if only and config.calibration:
        raise ConfigError(f"--calibration: {only}, which is not calibrated again")
    choices = choose(
        config.variants or None,
        main,
        bool(config.calibration),
        kinds,
        only,
        task.generates,
        tuple(others),
    )
    names = [choice.name for choice in choices]
    default = config.default_variant or names[0]
    if default not in names:
        raise ConfigError(f"--default-variant {default!r} is not loaded: {', '.join(names)}")
    by_default = next(choice for choice in choices if choice.name == default)
    devices = list(dict.fromkeys(device for each in (by_default, *choices) for device in each.devices))
    opened = open_devices(config, devices, main)
    check_alike([each for each in opened if each.device in (main, *others)], f"--device {config.device}")
    limit = parse_bytes(config.max_model_memory, "--max-model-memory") if config.max_model_memory else 0
    threads = config.threads or (usable_cores() // cpu_lanes if cpu_lanes > 1 else 0)
    return ServingPlan(
        task,
        choices,
        default,
        opened,
        LoadingRules(config.lazy_variants, not config.no_verify, limit, threads),
        parse_bytes(config.receipt_retention_bytes, "--receipt-retention-bytes"),
        _account_book(config),
        _recorder(audit),
    )


def _account_book(config: ServerConfig) -> AccountBook | None:
    if not config.account_book:
        return None
    from wattserve_server.account_book import AccountBook  # a database takes 0.2 s to import

    return AccountBook(config)


def _recorder(audit: Path | None) -> Recorder | None:
    if audit is None:
        return None
    from wattserve_server.audit.recorder import Recorder

    return Recorder(audit)


def _audit_header(config: ServerConfig, run: Run) -> Header:
    from wattserve_server.audit.file import SETTINGS, Header, this_machine

    settings = {name: getattr(config, name) for name in SETTINGS}
    return Header(run.instance_id, run.started_unix_ns, run.started_ns, this_machine(), settings)


async def start(
    config: ServerConfig,
    plan: ServingPlan,
    observer: Observer,
    quotas: Quotas,
    undo: AsyncExitStack,
    predictor: Predictor | None = None,
    keys: KeyFile | None = None,
) -> tuple[Host, Callable[[], Coroutine[None, None, None]]]:
    """Load the model, probe the meters, listen to them while nothing runs, load the default variant. Returns
    who serves, and what is left to do meanwhile."""
    if plan.rules.is_verified:
        begin_on_this_thread()
    else:
        say("NOT VERIFIED: nobody checks that variants are what they are called; every receipt says so")
    for device in plan.devices:
        say(device.chosen.notice)
    model, materials = await asyncio.to_thread(_load, config, plan)
    loop = asyncio.get_running_loop()
    account_book, recorder = plan.account_book, plan.recorder

    def on_final(receipt: Receipt) -> None:
        observer.receipt_final(receipt)
        if recorder is not None:
            recorder.put(receipt)
        if account_book is not None:
            account_book.put(receipt)

    book = ReceiptBook(
        config.receipt_retention_seconds,
        config.receipt_retention_count,
        on_final,
        retention_bytes=plan.receipt_bytes,
        max_watchers=config.max_watchers,
    )

    def on_charges(counter: str, part: str, charges: Sequence[Charge], active_uj: int) -> None:
        loop.call_soon_threadsafe(book.settle, counter, part, charges, active_uj)

    def on_idle_shares(part: str, shares: Sequence[IdleShare]) -> None:
        loop.call_soon_threadsafe(book.share_idle, part, shares)

    accounts = accounts_of(plan.devices)
    counters = [counter for account in accounts for counter in account.counters]
    for device in plan.devices:
        await device.get_ready()
    if recorder is not None:
        recorder.begin(_audit_header(config, book.run))
        recorder.start()
    for counter in counters:
        await asyncio.to_thread(
            counter.probe, on_charges, on_idle_shares, config.split_rule, config.idle_policy, recorder
        )
    limits = {device.device: _batch_limits(config, device.device, plan.task) for device in plan.devices}
    cache_bytes = parse_bytes(config.kv_cache_bytes, "--kv-cache-bytes")
    engine = Engine(
        model,
        materials,
        choices=plan.choices,
        default_variant=plan.default_variant,
        rules=plan.rules,
        limits=EngineLimits(
            limits,
            config.max_queue_sequences,
            config.max_request_sequences,
            config.max_queue_ms * 1e6,
            cache_bytes,
        ),
        book=book,
        metering={
            device.device: device.metering(model, limits[device.device], cache_bytes)
            for device in plan.devices
        },
        on_batch=observer.batch_ran,
        on_death=_die,
    )
    charging: dict[str, Mapping[str, Sampler]] = {
        str(device.device): {counter.part: counter.sampler for counter in device.counters}
        for device in plan.devices
    }
    if account_book is not None:
        undo.callback(account_book.close)

        def encode(receipt: Receipt) -> bytes:
            sources = {part: sampler.source for part, sampler in charging[receipt.device].items()}
            return receipt_message(receipt, sources).SerializeToString()

        account_book.begin(book.run, encode, lambda: {each.name: each.told for each in counters})
        if keys is not None and predictor is not None:
            predictor.budgets = await account_book.budgets(lambda: keys.keys.by_id.values())
            looking = asyncio.create_task(account_book.look_at_others())
            undo.callback(looking.cancel)
    budgets = None if predictor is None else predictor.budgets
    for counter in counters:
        counter.sampler.start()
        undo.callback(counter.sampler.stop)
    if any(counter.has_idle_to_learn for counter in counters):
        await asyncio.sleep(IDLE_LISTENING_S)
    undo.callback(engine.stop)
    engine.start()
    loads = FirstLoads(engine, are_named=bool(config.variants), default_is_named=bool(config.default_variant))
    if plan.rules.is_lazy:
        materials.weights.release()
    else:
        await loads.load_default()
    for counter in counters:
        await asyncio.to_thread(counter.sampler.wait_until_settled, SETTLEMENT_LIMIT_S)
    tokenizer = Tokenizer(model.tokenizer, model.facts.max_tokens) if model.tokenizer is not None else None
    if tokenizer is not None:
        undo.callback(tokenizer.close)
    elif model.task.takes_text:
        say(f"{model.name} has no tokenizer: requests must send token ids")

    def state() -> ServerState:
        return ServerState(
            queued=engine.queued,
            queue_limit=config.max_queue_sequences * len(plan.devices),
            pending_receipts=book.pending,
            model=(model.name, model.source, model.task.name),
            variants=[_served(hosted, engine.caches.bounds) for hosted in engine.roster],
            devices=[account.state(book) for account in accounts],
            queue_wait_s=engine.wait_ns() / 1e9,
            queue_callers=engine.queued_callers,
            tokenizer_characters=None if tokenizer is None else tokenizer.waiting,
            abandoned=engine.abandoned,
            receipt_bytes=book.kept_bytes,
            watchers=book.watchers,
            message_bytes=quotas.messages.total,
            lines_left_out=RARE_LINES.left_out,
            in_flight=quotas.in_flight,
            budgets=[
                TenantBudget(tenant, budget.kind, budget.period, budget.uj, spent_uj)
                for tenant, budget, spent_uj in (budgets.told() if budgets is not None else ())
            ],
            preemptions=engine.preemptions,
            account_book=None if account_book is None else account_book.state,
            is_audited=None if recorder is None else recorder.is_recording,
            audit_bytes=None if recorder is None else recorder.size,
            lanes=[
                LaneState(lane.device, lane.run_log.busy_ns(), is_up=not lane.why_lost)
                for lane in engine.lanes.values()
            ],
        )

    observer.serve_state(state, [board for device in plan.devices for board in device.boards])
    first = engine.roster.named(engine.default_variant).choice.device
    meters = {
        account.name: account.describe()
        for account in sorted(accounts, key=lambda account: account.name != str(first))
    }
    info = static_info(engine, tokenizer is not None, plan.rules.memory_limit)

    async def go_on() -> None:
        if not plan.rules.is_lazy:
            await loads.load_others()
        for counter in counters:
            counter.keep_pace()

    return Host(engine, meters, tokenizer, info, account_book, charging), go_on


def _load(config: ServerConfig, plan: ServingPlan) -> tuple[LoadedModel, Materials]:
    torch.set_num_threads(config.threads or usable_cores())
    model = load_model(
        config.model, plan.task, config.model_name, config.trust_remote_code, config.max_tokens or None
    )
    longest = f"up to {model.facts.max_tokens} tokens" if model.task.takes_text else "of images"
    say(f"loaded {model.source}: {model.parameters:,} parameters, {longest}")
    scales = calibration_scales(config, model) if config.calibration else None
    return model, Materials(model.weights, scales)


def calibration_scales(config: ServerConfig, model: LoadedModel) -> ActivationScales:
    """From the dataset that --calibration names. Raises ConfigError."""
    say(f"reading activation scales from {config.calibration}")
    return calibrated_scales(model, read_calibration(config.calibration, model, None))


def _batch_limits(config: ServerConfig, device: torch.device, task: Task) -> BatchLimits:
    tokens = config.max_batch_tokens or (STEP_TOKENS if task.generates else BATCH_TOKENS)[device.type]
    return BatchLimits(config.max_batch_sequences, tokens, int(config.max_wait_ms * 1e6))


def _die(error: Exception) -> None:
    say(f"a runner has died, nothing can be served any more: {type(error).__name__}: {error}")
    os._exit(1)  # rather than keep callers waiting: whoever watches the server starts it again


def _served(hosted: HostedVariant, caches: Mapping[str, tuple[int, int]]) -> ServedVariant:
    name, (device, *others) = hosted.choice.name, map(str, hosted.choice.devices)
    if (variant := hosted.variant) is None:
        return ServedVariant(name, device, is_ready=False, other_devices=others)
    used_bytes, limit_bytes = caches.get(name, (None, None))
    return ServedVariant(
        name,
        device,
        is_ready=True,
        dtype=variant.dtype,
        kernels=variant.kernels,
        proxy=variant.kind.proxy,
        is_verified=variant.verification.verified,
        parameter_bytes=variant.parameter_bytes,
        warmup_s=variant.warmup_seconds,
        cache_used_bytes=used_bytes,
        cache_limit_bytes=limit_bytes,
        other_devices=others,
    )
