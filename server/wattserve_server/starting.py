"""From the settings to what answers requests: planned, then loaded, metered and warmed up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wattserve_common.machine import usable_cores
from wattserve_common.words import counted
from wattserve_server.config import ServerConfig, parse_bytes
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
from wattserve_server.rare_lines import RARE_LINES
from wattserve_server.service.gate import KeyFile
from wattserve_server.service.inference import receipt_message
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S, Host, Predictor
from wattserve_server.service.quota import Quotas
from wattserve_server.service.report import static_info
from wattserve_server.telemetry.observer import Observer
from wattserve_server.telemetry.state import LaneState, ServedVariant, ServerState, TenantBudget

if TYPE_CHECKING:
    from wattserve_server.account_book import AccountBook
    from wattserve_server.audit.file import Header
    from wattserve_server.audit.recorder import Recorder


IDLE_LISTENING_S = 0.7  # how long the samplers listen before the first batch, where idle watts are measured
MESSAGE_BYTES = 4 * 1024 * 1024  # 256 texts or sequences of 512 tokens need at most 3 MB of it
IMAGE_MESSAGE_BYTES = 32 * 1024 * 1024  # 55 images of 3 x 224 x 224; more would hold the event loop up
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
STEP_TOKENS = {"cpu": 128, "cuda": 2048}  # who decodes waits for as many of others' prompts


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

    @property
    def has_kept_all(self) -> bool:
        """Of a server that has ended: whether account book and audit file, where there are any, were written
        to their ends."""
        state = None if self.account_book is None else self.account_book.state
        is_booked = state is None or state.is_writing
        return is_booked and (self.recorder is None or self.recorder.is_recording)

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
            predictor.budgets = await account_book.budgets(lambda: keys.keys)
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
            message_bytes=quotas.messages.total + quotas.messages.unread,
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
