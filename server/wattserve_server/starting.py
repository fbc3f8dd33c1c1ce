"""Starting: from the settings to a server that answers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch

from wattserve_server.config import ServerConfig
from wattserve_server.energy.receipt import Receipt
from wattserve_server.energy.window import Charge
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.device import resolve_device, usable_cores
from wattserve_server.engine.engine import Engine, EngineLimits
from wattserve_server.engine.loader import LoadingRules
from wattserve_server.engine.memory import parse_bytes
from wattserve_server.engine.model import LoadedModel, load_model
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.roster import Entry
from wattserve_server.engine.runner import BatchResult
from wattserve_server.engine.sources import kinds_of
from wattserve_server.engine.tasks import Task, task_named
from wattserve_server.engine.text import Tokenizer
from wattserve_server.engine.variants.catalogue import Choice, choose
from wattserve_server.engine.variants.port import ActivationScales, Materials
from wattserve_server.engine.variants.profile import begin_on_this_thread
from wattserve_server.errors import ConfigError, OutOfMemoryError
from wattserve_server.metered import MeteredDevice
from wattserve_server.meters.choose import JOIN, device_type_of
from wattserve_server.service.report import static_info
from wattserve_server.service.serving import SETTLEMENT_LIMIT_S, Ready
from wattserve_server.telemetry.metrics import Metrics
from wattserve_server.telemetry.state import ServerState, VariantLabels
from wattserve_server.telemetry.statistics import Statistics

IDLE_LISTENING_S = 0.7
"""How long the samplers listen before the first batch, where idle watts are to be measured."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be decided before anything is loaded. devices: that of the default variant first."""

    task: Task
    choices: list[Choice]
    default_variant: str
    devices: list[MeteredDevice]
    rules: LoadingRules


def make_plan(config: ServerConfig) -> Plan:
    """Raises ConfigError or MeterError for what cannot be, before the server listens."""
    if config.threads > usable_cores():
        raise ConfigError(f"--threads {config.threads}: this process may use {usable_cores()} cores")
    main = resolve_device(config.device)
    task = task_named(config.task)
    kinds, only = kinds_of(config.model, task, config.trust_remote_code)
    if only and config.calibration:
        raise ConfigError(f"--calibration: {only}, which is not calibrated again")
    choices = choose(config.variants or None, main, bool(config.calibration), kinds, only)
    names = [choice.name for choice in choices]
    default = config.default_variant or names[0]
    if default not in names:
        raise ConfigError(f"--default-variant {default!r} is not loaded: {', '.join(names)}")
    first = next(choice.device for choice in choices if choice.name == default)
    devices = list(dict.fromkeys([first, *(choice.device for choice in choices)]))
    _check_no_joule_counts_twice(config.meter, main, devices)
    limit = parse_bytes(config.max_model_memory, "--max-model-memory") if config.max_model_memory else 0
    return Plan(
        task,
        choices,
        default,
        [MeteredDevice(config, device, device.type == main.type) for device in devices],
        LoadingRules(config.lazy_variants, not config.no_verify, limit, config.threads),
    )


def _check_no_joule_counts_twice(meter: str, main: torch.device, devices: Sequence[torch.device]) -> None:
    """A sum that holds the CPU's joules would bill a GPU's requests for what CPU variants do."""
    parts = meter.split(JOIN)
    if main.type == "cuda" and torch.device("cpu") in devices:
        for part in parts:
            if device_type_of(part) == "cpu":
                raise ConfigError(
                    f"--meter {meter}: variants on the CPU have a meter of their own, so the joules of "
                    f"{part} would be billed twice; leave {part} out"
                )


async def start(
    config: ServerConfig, plan: Plan, metrics: Metrics, statistics: Statistics, undo: AsyncExitStack
) -> Ready:
    """Load the model, probe the meters, listen to them while nothing runs, load the variants, calibrate."""
    if plan.rules.is_verified:
        begin_on_this_thread()
    else:
        say("NOT VERIFIED: nobody checks that variants are what they are called; every receipt says so")
    for device in plan.devices:
        say(device.chosen.notice)
    model, materials = await asyncio.to_thread(_load, config, plan)
    loop = asyncio.get_running_loop()

    def on_final(receipt: Receipt) -> None:
        metrics.receipt_final(receipt)
        statistics.receipt_final(receipt.variant, receipt.energy_uj)

    book = ReceiptBook(config.receipt_retention_seconds, config.receipt_retention_count, on_final)

    def on_charges(charges: Sequence[Charge]) -> None:
        loop.call_soon_threadsafe(book.charge, charges)

    def on_batch(result: BatchResult) -> None:
        window = result.window
        tokens = sum(window.lengths)
        metrics.batch_ran(
            window.variant, len(window.lengths), tokens, window.computed_tokens, result.not_finite
        )
        if result.rows is not None:
            statistics.batch_ran(window.variant, len(window.lengths), window.duration_ns)

    for device in plan.devices:
        await device.probe(on_charges)
    limits = {device.device: _batch_limits(config, device.device) for device in plan.devices}
    engine = Engine(
        model,
        materials,
        plan.choices,
        plan.default_variant,
        plan.rules,
        EngineLimits(limits, config.max_queue_sequences, config.max_request_sequences),
        book,
        {device.device: device.metering for device in plan.devices},
        on_batch,
        _die,
    )
    for device in plan.devices:
        device.sampler.start()
        undo.callback(device.sampler.stop)
    if any(device.has_idle_to_learn for device in plan.devices):
        await asyncio.sleep(IDLE_LISTENING_S)
    undo.callback(engine.stop)
    engine.start()
    if not plan.rules.is_lazy:
        await _load_all(config, engine)
        trials = {
            device.device: device.plan(model.facts.max_tokens, limits[device.device])
            for device in plan.devices
        }
        await engine.calibrate({device: trial for device, trial in trials.items() if trial is not None})
    materials.weights.release()
    for device in plan.devices:
        await asyncio.to_thread(device.sampler.wait_until_settled, SETTLEMENT_LIMIT_S)
        device.keep_pace()
    tokenizer = Tokenizer(model.tokenizer) if model.tokenizer is not None else None
    if tokenizer is not None:
        undo.callback(tokenizer.close)
    elif model.task.takes_text:
        say(f"{model.name} has no tokenizer: requests must send token ids")
    metrics.serve_state(
        ServerState(
            [device.state for device in plan.devices],
            lambda: engine.queued,
            config.max_queue_sequences * len(plan.devices),
            lambda: book.pending,
            {"name": model.name, "source": model.source, "task": model.task.name},
            lambda: [_labels(entry) for entry in engine.roster],
        )
    )
    first = engine.roster.named(engine.default_variant).choice.device
    devices = sorted(plan.devices, key=lambda each: each.device != first)
    meters = {str(device.device): device.describe() for device in devices}
    return Ready(
        engine, meters, tokenizer, static_info(engine, tokenizer is not None, plan.rules.memory_limit)
    )


def _load(config: ServerConfig, plan: Plan) -> tuple[LoadedModel, Materials]:
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
    # Not at the top: it reads datasets by loadgen's reader, which a server without calibration needs not.
    from wattserve_server.inspection.data import read_calibration
    from wattserve_server.inspection.subject import calibrated_scales

    say(f"reading activation scales from {config.calibration}")
    return calibrated_scales(model, read_calibration(config.calibration, model, None))


async def _load_all(config: ServerConfig, engine: Engine) -> None:
    """Load every variant. One that was asked for by name and cannot be made stops the start, but for want
    of memory: then, as for one that nobody asked for, the others serve."""
    names = engine.roster.names
    say(f"loading and warming up {', '.join(names)}")
    loads = [asyncio.create_task(engine.loader.load(name)) for name in names]
    for name, load in zip(names, loads, strict=True):
        try:
            await load
        except OutOfMemoryError as error:
            say(f"variant {name!r} FAILED: {error}; the others stay")
        except ConfigError as error:
            if config.variants or len(names) == 1:  # there is nothing to serve without it
                raise
            say(f"variant {name!r} is left out: {error}")
            engine.roster.remove(name)
    if not engine.roster.ready:
        raise ConfigError(f"none of {', '.join(names)} could be loaded")
    if engine.default_variant not in [variant.name for variant in engine.roster.ready]:
        if config.default_variant:
            raise ConfigError(f"--default-variant {config.default_variant!r} could not be loaded")
        engine.default_variant = engine.roster.ready[0].name


def _batch_limits(config: ServerConfig, device: torch.device) -> BatchLimits:
    tokens = config.max_batch_tokens or BATCH_TOKENS[device.type]
    return BatchLimits(config.max_batch_sequences, tokens, int(config.max_wait_ms * 1e6))


def _die(error: Exception) -> None:
    say(f"a runner has died, nothing can be served any more: {type(error).__name__}: {error}")
    os._exit(1)  # rather than keep callers waiting: whoever watches the server starts it again


def _labels(entry: Entry) -> VariantLabels:
    name, device = entry.choice.name, str(entry.choice.device)
    if (variant := entry.variant) is None:
        return VariantLabels(name, device, is_ready=False)
    return VariantLabels(
        name,
        device,
        True,
        variant.dtype,
        variant.kernels,
        variant.kind.proxy,
        variant.verification.verified,
        variant.parameter_bytes,
        variant.warmup_seconds,
    )


def say(line: str) -> None:
    """Progress, for the operator; standard output is kept for the one line that scripts wait for."""
    print(f"wattserve: {line}", file=sys.stderr, flush=True)
