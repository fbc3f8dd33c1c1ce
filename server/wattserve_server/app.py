"""The one room that knows everybody: it builds the server, runs it, and takes it down."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.energy.probe import poll_period_s
from wattserve_server.energy.reading import Quality
from wattserve_server.energy.trials import plan_trials
from wattserve_server.energy.window import Charge
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.device import device_uuid, resolve_device, usable_cores
from wattserve_server.engine.engine import Engine, EngineLimits
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.runlog import RunLog
from wattserve_server.engine.runner import BatchResult
from wattserve_server.engine.tasks import Task, task_named
from wattserve_server.engine.text import Tokenizer
from wattserve_server.engine.variants.kinds import Kind, choose_kinds
from wattserve_server.engine.variants.variant import Variant, build_variant
from wattserve_server.errors import ConfigError
from wattserve_server.metering import open_configured
from wattserve_server.meters.choose import ChosenMeter
from wattserve_server.meters.probe import parts_of, probe_with_parts
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.inference import InferenceService
from wattserve_server.service.listen import Listener
from wattserve_server.service.meter_info import meter_info
from wattserve_server.service.report import static_info
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, Ready, Serving
from wattserve_server.telemetry.exposition import Exposition
from wattserve_server.telemetry.metrics import Metrics
from wattserve_server.telemetry.state import VariantLabels

SIGNALS = (signal.SIGTERM, signal.SIGINT)

IDLE_LISTENING_S = 0.7
"""How long the sampler listens before the first batch, where idle watts are to be measured."""

LISTENING_POLL_S = 0.05
"""How often a continuous meter is read, at the least, while it is learned from."""

CLOSING_S = 1.0
"""For how long a drained server waits for streams that have nothing more to say."""

CPU_BATCH_TOKENS = 2048
CUDA_BATCH_TOKENS = 32768


async def serve(config: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ConfigError or MeterError at start-up."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    device = resolve_device(config.device)
    kinds = choose_kinds(config.variants or None, device)
    default_variant = _default_variant(config, kinds)
    task = task_named(config.task)
    run_log = RunLog()
    chosen = open_configured(
        config, device_type=device.type, device_uuid=device_uuid(device), busy_ns=run_log.busy_ns
    )
    async with AsyncExitStack() as undo:
        metrics = Metrics({"version": version("wattserve"), "python": platform.python_version()})
        serving = Serving()
        listener = Listener(InferenceService(serving, metrics), config.host, config.port)
        exposition = Exposition(metrics.registry, config.host, config.metrics_port)
        undo.callback(exposition.close)
        await listener.start()
        undo.push_async_callback(listener.stop, 0)
        starting = asyncio.create_task(
            _start(config, task, device, kinds, default_variant, run_log, chosen, metrics, undo)
        )
        interrupted = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            say("interrupted while starting: nothing was accepted, nothing is lost")
            os._exit(130)  # loading and warming up run on threads that cannot be cancelled
        ready = starting.result()
        serving.ready = ready
        await listener.say(serving=True)
        print(f"wattserve ready: gRPC {listener.address}, metrics {exposition.url}", flush=True)
        await interrupted
        for number in SIGNALS:  # a second one ends the server at once
            loop.remove_signal_handler(number)
        await _drain(config, serving, ready, listener)


async def _start(
    config: ServerConfig,
    task: Task,
    device: torch.device,
    kinds: list[Kind],
    default_variant: str,
    run_log: RunLog,
    chosen: ChosenMeter,
    metrics: Metrics,
    undo: AsyncExitStack,
) -> Ready:
    """Load the model, probe the meter, listen to it while nothing runs, warm up."""
    say(chosen.notice)
    model, variants = await asyncio.to_thread(_load, config, task, device, kinds)
    book = ReceiptBook(
        config.receipt_retention_seconds, config.receipt_retention_count, metrics.receipt_final
    )
    batch_tokens = config.max_batch_tokens or (
        CUDA_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS
    )
    limits = EngineLimits(
        BatchLimits(config.max_batch_sequences, batch_tokens, int(config.max_wait_ms * 1e6)),
        config.max_queue_sequences,
        config.max_request_sequences,
    )

    def on_batch(result: BatchResult) -> None:
        window = result.window
        metrics.batch_ran(window.variant, len(window.lengths), sum(window.lengths), window.computed_tokens)

    loop = asyncio.get_running_loop()

    def on_charges(charges: Sequence[Charge]) -> None:
        loop.call_soon_threadsafe(book.charge, charges)

    def on_death(error: Exception) -> None:
        say(f"the runner has died, nothing can be served any more: {type(error).__name__}: {error}")
        os._exit(1)  # rather than keep callers waiting: whoever watches the server starts it again

    probed = await asyncio.to_thread(probe_with_parts, chosen.meter)
    poll_s = poll_period_s(probed.probe, chosen.meter.poll_period_s)
    listening_s = max(LISTENING_POLL_S, chosen.meter.poll_period_s)
    sampler = Sampler(
        chosen.meter,
        run_log.drain,
        on_charges,
        poll_period_s=min(poll_s, listening_s),
        split_rule=config.split_rule,
    )
    engine = Engine(
        model, variants, default_variant, limits, book, run_log, lambda: sampler.law, on_batch, on_death
    )
    sampler.start()
    undo.callback(sampler.stop)
    if chosen.meter.idle_watts is None and chosen.meter.source.quality is not Quality.NONE:
        await asyncio.sleep(IDLE_LISTENING_S)
    calibration = None
    if config.calibration_seconds and chosen.meter.source.quality is not Quality.NONE:
        calibration = plan_trials(
            model.max_tokens,
            limits.batch.max_sequences,
            limits.batch.max_tokens,
            probed.probe.update_period_s or listening_s,
            config.calibration_seconds,
        )
    say(f"warming up {', '.join(variants)} on {device}" + (", then calibrating" if calibration else ""))
    undo.callback(engine.stop)
    await engine.start(calibration)
    await asyncio.to_thread(sampler.wait_until_settled, SETTLEMENT_LIMIT_S)
    sampler.poll_period_s = poll_s
    tokenizer = Tokenizer(model.tokenizer) if model.tokenizer is not None else None
    if tokenizer is None:
        say(f"{model.name} has no tokenizer: requests must send token ids")
    else:
        undo.callback(tokenizer.close)
    metrics.serve_state(
        lambda: sampler.ledger,
        lambda: sampler.status,
        lambda: engine.queued,
        {"name": model.name, "source": model.source, "task": model.task.name},
        [_variant_labels(variant) for variant in variants.values()],
        probed.probe,
        lambda: parts_of(chosen.meter, probed),
    )
    meter = meter_info(sampler.status, probed.probe, parts_of(chosen.meter, probed))
    return Ready(engine, sampler, tokenizer, static_info(engine, meter, tokenizer is not None))


def _load(
    config: ServerConfig, task: Task, device: torch.device, kinds: list[Kind]
) -> tuple[LoadedModel, dict[str, Variant]]:
    if config.threads > usable_cores():
        raise ConfigError(f"--threads {config.threads}: this process may use {usable_cores()} cores")
    torch.set_num_threads(config.threads or usable_cores())
    model = load_model(
        config.model,
        task,
        config.model_name,
        config.trust_remote_code,
        config.max_tokens or None,
    )
    say(f"loaded {model.source}: {model.parameters:,} parameters, up to {model.max_tokens} tokens")
    variants: dict[str, Variant] = {}
    for kind in kinds:
        try:
            variants[kind.name] = build_variant(model, kind, device)
        except RuntimeError as error:  # out of memory among them
            raise ConfigError(f"variant {kind.name!r} could not be made on {device}: {error}") from error
        except ConfigError as error:
            if config.variants:
                raise
            say(f"variant {kind.name!r} is left out: {error}")
    return model, variants


async def _drain(config: ServerConfig, serving: Serving, ready: Ready, listener: Listener) -> None:
    """Refuse new work, answer what was accepted, settle its energy, then end."""
    say("draining: accepted requests will be answered")
    serving.draining.set()
    await listener.say(serving=False)
    stopped = asyncio.create_task(listener.stop(config.drain_seconds))
    try:
        async with asyncio.timeout(config.drain_seconds):
            await serving.until_idle()
            await ready.engine.until_idle()
    except TimeoutError:
        say(f"some requests did not end within {config.drain_seconds:g} s; they are cancelled")
    await asyncio.to_thread(ready.sampler.wait_until_settled, SETTLEMENT_LIMIT_S)
    await asyncio.sleep(0)  # for the charges that the sampler has just handed over
    ready.engine.book.close()
    await listener.stop(CLOSING_S)  # a health watch, say, would stay open for ever
    await stopped
    say(_final_account(ready.sampler))


def _final_account(sampler: Sampler) -> str:
    ledger = sampler.ledger
    if ledger.since_ns is None:
        return f"drained: no energy figures ({sampler.status.last_error})"
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
    return f"drained: {sampler.status.source.quality.value} {ledger.measured_uj / 1e6:.3f} J = {parts}"


def _default_variant(config: ServerConfig, kinds: list[Kind]) -> str:
    names = [kind.name for kind in kinds]
    if config.default_variant and config.default_variant not in names:
        raise ConfigError(f"--default-variant {config.default_variant!r} is not loaded: {', '.join(names)}")
    return config.default_variant or names[0]


def _variant_labels(variant: Variant) -> VariantLabels:
    return VariantLabels(
        variant.name,
        str(variant.device),
        variant.dtype,
        variant.kernels,
        variant.parameter_bytes,
        variant.warmup_seconds,
    )


def say(line: str) -> None:
    """Progress, for the operator; standard output is kept for the one line that scripts wait for."""
    print(f"wattserve: {line}", file=sys.stderr, flush=True)
