"""(b) Throughput with the accounting on against off, through the real engine in this process, without gRPC.

Every mode has an engine and a sampler of its own, on the same weights, built as the server builds them. Their
blocks alternate; whoever is not on rests. Ratios are of blocks of the same round.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from tests.bench.energy_cost.rig import CALIBRATION_S, RETENTION_COUNT, RETENTION_S
from tests.fixtures.models import tiny_config
from wattserve_server.energy.probe import poll_period_s
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Window
from wattserve_server.energy.trials import plan_trials
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.engine.engine import Engine, EngineLimits, Metering
from wattserve_server.engine.lane import RunLog
from wattserve_server.engine.model import LoadedModel
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.roster import LoadingRules
from wattserve_server.engine.tasks import InputFacts, task_named
from wattserve_server.engine.variants.catalogue import choose
from wattserve_server.engine.variants.port import Materials
from wattserve_server.engine.weights import Weights
from wattserve_server.meters.laws import EstimateMeter, SimulatedMeter
from wattserve_server.meters.port import Meter, NoMeter
from wattserve_server.meters.probe import probe_meter
from wattserve_server.meters.sampler import Sampler
from wattserve_server.service.inference import receipt_message
from wattserve_server.telemetry.observer import Observer

MODES = ("off", "estimate", "simulated")
"""off: as under --meter none, with receipts, run log and a sampler that finds no reading."""

CPU = torch.device("cpu")
CONCURRENCY, BATCH_TOKENS = 64, 2048
LEAD_S, BLOCK_S, SETTLES_S = 0.25, 0.5, 5.0
BOTH = ("requests per second", "requests per CPU second")
SHARE = "sampler's share of CPU"


class Served:
    def __init__(self, mode: str, model: LoadedModel) -> None:
        loop = asyncio.get_running_loop()
        self._run_log = RunLog()
        self._awake = threading.Event()
        self._awake.set()
        self._elsewhere_ns = 0  # of CPU, while this one rested
        self._rests_since_ns = 0
        meter = self._meter(mode)
        probe = probe_meter(meter)
        book = ReceiptBook(RETENTION_S, RETENTION_COUNT, Observer("bench").receipt_final)

        def on_charges(charges: Sequence[Charge]) -> None:
            loop.call_soon_threadsafe(book.settle, "cpu", ACCELERATOR, charges, 0)

        poll_s = poll_period_s(probe, meter.poll_period_s)
        self._sampler = Sampler(meter, self._drain, on_charges, poll_period_s=poll_s)
        longest, period_s = model.facts.max_tokens, probe.update_period_s
        trials = None if mode == "off" else plan_trials(longest, 32, BATCH_TOKENS, period_s, CALIBRATION_S)
        self._engine = Engine(
            model, Materials(model.weights), choose("fp32", CPU), "fp32", LoadingRules(is_verified=False),
            EngineLimits({CPU: BatchLimits(32, BATCH_TOKENS)}, 1024, 256), book,
            {CPU: Metering(self._run_log, {ACCELERATOR: self._sampler}, trials)}, lambda *result: None,
            lambda error: None,
        )  # fmt: skip
        self._sources = {ACCELERATOR: Source("bench", "bench", Quality.SIMULATED)}

    def _meter(self, mode: str) -> Meter:
        if mode == "estimate":
            return EstimateMeter(cpu_ns=lambda: time.process_time_ns() - self._elsewhere_ns)
        return SimulatedMeter(self._run_log.busy_ns) if mode == "simulated" else NoMeter()

    def _drain(self) -> tuple[Sequence[Window], int]:
        """Where the sampler waits while others are measured."""
        self._awake.wait()
        return self._run_log.drain()

    async def start(self) -> None:
        """Warm up and calibrate, then rest."""
        self._sampler.start()
        await asyncio.sleep(0.5)
        self._engine.start()
        await self._engine.loader.load("fp32")
        await self._rest()

    async def _rest(self) -> None:
        await asyncio.to_thread(self._sampler.wait_until_settled, SETTLES_S)
        self._awake.clear()
        self._rests_since_ns = time.process_time_ns()

    async def stop(self) -> None:
        self._awake.set()
        await asyncio.to_thread(self._sampler.stop)
        await asyncio.to_thread(self._engine.stop)

    async def block(self, inputs: Sequence[np.ndarray]) -> tuple[float, float, float]:
        """Closed loop, with a lead-in so that what settles is as much as what runs. Requests per second, and
        per second of this process's CPU time; the sampler thread's share of that."""
        gc.collect()
        gc.freeze()  # a block pays for its own garbage, not for passing over all receipts so far
        self._elsewhere_ns += time.process_time_ns() - self._rests_since_ns
        self._awake.set()
        done = 0
        is_over = False

        async def client(position: int) -> None:
            nonlocal done
            while not is_over:
                request = await self._engine.predict(
                    [inputs[position % len(inputs)]], self._engine.hosted("fp32")
                )
                receipt_message(request.receipt, self._sources)
                done += 1
                position += CONCURRENCY

        def spent() -> np.ndarray:
            return np.array([done, time.perf_counter(), time.process_time(), self._sampler_s()])

        clients = [asyncio.create_task(client(number)) for number in range(CONCURRENCY)]
        await asyncio.sleep(LEAD_S)
        before = spent()
        await asyncio.sleep(BLOCK_S)
        count, wall_s, cpu_s, sampler_s = (spent() - before).tolist()
        is_over = True
        await asyncio.gather(*clients)
        await self._rest()
        return count / wall_s, count / cpu_s, sampler_s / cpu_s

    def _sampler_s(self) -> float:
        """CPU time of the sampler's thread."""
        ident = self._sampler._thread.ident
        assert ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(ident))


def bench_model(name: str, config: DistilBertConfig) -> LoadedModel:
    """Seeded random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = DistilBertForSequenceClassification(config).eval()
    return LoadedModel(
        name=name, source=name, task=task_named("sequence-classification"), weights=Weights(lambda: module),
        config=config, tokenizer=None, labels=["a", "b", "c"], facts=InputFacts(64, 64), parameters=0,
    )  # fmt: skip


async def _compare(model: LoadedModel, rounds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(3.0, 0.5, 512), 3, model.facts.max_tokens).astype(int)
    inputs = [rng.integers(1, model.facts.vocabulary_size, size=length) for length in lengths]
    served = {mode: Served(mode, model) for mode in MODES}
    blocks: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
    for one in served.values():
        await one.start()
    for number in range(rounds + 1):
        turn = number % len(MODES)
        for mode in MODES[turn:] + MODES[:turn]:
            blocks[mode].append(await served[mode].block(inputs))
    for one in served.values():
        await one.stop()
    gc.unfreeze()
    off, *on = (np.array(blocks[mode][1:]) for mode in MODES)  # the first round is a warm-up
    return [
        {
            "model": model.name,
            "mode": mode,
            "off, requests per second": median(off[:, 0]),
            **{head: (mine[:, index] / off[:, index]).tolist() for index, head in enumerate(BOTH)},
            SHARE: median(mine[:, 2]),
        }
        for mode, mine in zip(MODES[1:], on, strict=True)
    ]


def measure(quick: bool) -> list[dict[str, Any]]:
    """tiny: next to no work, so that what is left is engine and accounting (the worst case). mini: of the
    size of the smallest real encoders."""
    torch.set_num_threads(1)  # the other core is for the event loop and the sampler
    mini = DistilBertConfig(
        vocab_size=64, dim=256, n_layers=4, n_heads=4, hidden_dim=1024, max_position_embeddings=64,
        num_labels=3, pad_token_id=0,
    )  # fmt: skip
    models = [bench_model("tiny", tiny_config())] + ([] if quick else [bench_model("mini", mini)])
    return [row for model in models for row in asyncio.run(_compare(model, 2 if quick else 10))]


def render(rows: Sequence[dict[str, Any]]) -> str:
    rounds = len(rows[0][BOTH[0]])
    lines = [
        f"Throughput relative to off, {CONCURRENCY} requests at once, one model thread; no gRPC, no texts.",
        f"    Median (quartiles) of the ratios of {rounds} rounds. off: as under --meter none.\n",
        f"{'model':7}{'off, req/s':12}{'mode':12}" + "".join(f"{head:27}" for head in (*BOTH, SHARE)),
    ]
    for row in rows:
        rate = f"{row['off, requests per second']:,.0f}"
        ratios = "".join(f"{_spread(row[head]):27}" for head in BOTH)
        lines.append(f"{row['model']:7}{rate:12}{row['mode']:12}{ratios}{100 * row[SHARE]:.2f} %")
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
