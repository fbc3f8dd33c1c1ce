"""Who takes turns: for each part of the table the processes that run, and what a turn of each says."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from tests.bench.speed.child import Child, running_child, whole_set
from tests.bench.speed.figures import BenchError, Figures
from tests.bench.speed.load import closed_loop, one_by_one, settled_tokens
from tests.bench.speed.machine import cpu_seconds, usable_cores
from tests.bench.speed.options import MANY, MODELS, PLAIN_VARIANTS, Options
from tests.bench.speed.quiet import FOREIGN, Watch
from tests.bench.speed.sequences import LONGEST, Ids, requests_of, sequences_like_sst2, sequences_of
from tests.fixtures.server import RunningServer, python_path, running_server
from wattserve_client import Client, VariantState

LOOK_S = 0.5

ALONE, CHUNK = 64, 16
"""Sequences sent one by one in a turn, and how many before the next process has its go."""

SHORT_TOKENS = 32
OVERHEAD_BATCHES = (8, 32)
DIFFERENT_BATCHES = 8
CALIBRATION_ROWS = 512


class Turn(NamedTuple):
    """kind: the method of its scene that takes it."""

    kind: str
    variant: str
    size: int = 0

    def __str__(self) -> str:
        return f"{self.variant}.{self.kind}{self.size or ''}"


class Scene:
    """name: of the model, or of what is compared; the first part of its figures' names."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.sequences = sequences_like_sst2(options.sequences, options.seed)

    def take(self, turn: Turn) -> dict[str, float]:
        """The figures of a turn, by what is added to its name."""
        found: dict[str, float] = getattr(self, turn.kind)(*turn[1:])
        return found


def play(scene: Scene, turns: Sequence[Turn], rounds: int) -> dict[str, list[float]]:
    """Every turn once a round, every other round in reverse order."""
    figures: dict[str, list[float]] = {}
    begun = time.monotonic()
    for number in range(rounds):
        for turn in turns[:: -1 if number % 2 else 1]:
            watch = Watch()
            found = scene.take(turn)
            found[FOREIGN] = watch.foreign_cores()
            for what, value in found.items():
                figures.setdefault(f"{scene.name}.{turn}{what}", []).append(value)
            shown = ", ".join(f"{what.lstrip('.')} {value:.4g}".strip() for what, value in found.items())
            at = f"{time.monotonic() - begun:.0f} s, round {number + 1} of {rounds}"
            say(f"{at}: {scene.name}.{turn}: {shown}")
    return figures


def say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


class ModelScene(Scene):
    """A server, our engine and plain torch, with one model; who has no turn is not started."""

    def __init__(self, name: str, options: Options, turns: Sequence[Turn], stack: ExitStack) -> None:
        super().__init__(name, options)
        model = MODELS[name]
        variants = list(dict.fromkeys(turn.variant for turn in turns))
        in_torch = [variant for variant in variants if variant in PLAIN_VARIANTS]
        kinds = {turn.kind for turn in turns}
        self._requests = {variant: requests_of(self.sequences, variant) for variant in variants}
        scales = _calibration(variants, options.seed, stack)
        server = stack.enter_context(
            _server("--model", model, "--variants", ",".join(variants), "--meter", "estimate", *scales)
        )
        self._address, self._pid = server.address, server.process.pid
        if kinds & {"sorted", "arrival", "alone", "short"}:
            say(f"{name}: starting our engine, with nobody listening")
            flags = ("--meter", "none", "--threads", str(usable_cores()))  # there is no front end beside it
            self._engine = stack.enter_context(_our_engine(model, variants, *flags, *scales))
            self._engine.ask("use", sequences=self.sequences)
        if kinds & {"limit", "alone", "short"} and in_torch:
            say(f"{name}: starting plain torch")
            arguments = (model, ",".join(in_torch))
            self._plain = stack.enter_context(
                running_child("plain torch", "tests.bench.speed.plain", *arguments, is_plain=True)
            )
            self._plain.ask("use", sequences=self.sequences)
        say(f"{name}: warming up")
        for variant in variants:
            closed_loop(self._address, self._requests[variant][:256], 32, 1.0)
            if kinds & {"sorted", "arrival"}:
                self._engine.ask("warm_up", variant=variant)
            if "limit" in kinds and variant in in_torch:
                self._plain.ask("warm_up", variant=variant)

    def limit(self, variant: str, _: int) -> dict[str, float]:
        return {"": self._plain.ask("sorted", variant=variant, seconds=self.options.seconds)}

    def sorted(self, variant: str, _: int) -> dict[str, float]:
        return {"": self._engine.ask("sorted", variant=variant, seconds=self.options.seconds)}

    def arrival(self, variant: str, _: int) -> dict[str, float]:
        return {"": self._engine.ask("arrival", variant=variant, seconds=self.options.seconds)}

    def server(self, variant: str, concurrency: int) -> dict[str, float]:
        """Rate; p99 over p50, without the requests that all came at once at the start; padded over real; the
        server's CPU time for each answer."""
        tokens, padded = settled_tokens(self._address, variant)
        cpu_s = cpu_seconds(self._pid)
        served = closed_loop(self._address, self._requests[variant], concurrency, self.options.seconds)
        cpu_s = cpu_seconds(self._pid) - cpu_s
        p50, p99 = np.quantile(served.latencies[concurrency:] or served.latencies, (0.5, 0.99))
        tokens_after, padded_after = settled_tokens(self._address, variant)
        if tokens_after == tokens:
            raise BenchError(f"no token of variant {variant!r} was settled: its energy is not known")
        padding = (padded_after - padded) / (tokens_after - tokens)
        return {
            "": served.rate,
            ".tail": float(p99 / p50),
            ".padding": padding,
            ".p50_ms": float(p50 * 1e3),
            ".cpu_ms": cpu_s * 1e3 / len(served.latencies),
        }

    def alone(self, variant: str, _: int) -> dict[str, float]:
        return self._one_by_one(variant, self.sequences[:ALONE])

    def short(self, variant: str, _: int) -> dict[str, float]:
        return self._one_by_one(variant, sequences_of(SHORT_TOKENS, CHUNK, self.options.seed))

    def _one_by_one(self, variant: str, sequences: Sequence[Ids]) -> dict[str, float]:
        """Medians over the sequences, each of which everybody runs; milliseconds."""
        taken: dict[str, list[float]] = {"server": [], "engine": []}
        if variant in PLAIN_VARIANTS:
            taken["torch"] = []
        for chunk in whole_set(sequences, CHUNK):
            taken["server"] += one_by_one(self._address, requests_of(chunk, variant))
            taken["engine"] += self._engine.ask("alone", variant=variant, sequences=chunk)
            if "torch" in taken:
                taken["torch"] += self._plain.ask("alone", variant=variant, sequences=chunk)
        found = {f".{who}_ms": statistics.median(seconds) * 1e3 for who, seconds in taken.items()}
        for who in set(taken) - {"server"}:
            pairs = list(zip(taken["server"], taken[who], strict=True))
            found[f".over_{who}_ms"] = statistics.median((server - bare) * 1e3 for server, bare in pairs)
            found[f".of_allowed_{who}"] = statistics.median(
                server / (bare * 1.05 + 1e-3) for server, bare in pairs
            )
        return found


class OverheadScene(Scene):
    """Our engine in one process, without gRPC, metered as in the server: its whole way, and the bare
    forward."""

    def __init__(self, options: Options, variants: Sequence[str], stack: ExitStack) -> None:
        super().__init__("base", options)
        self._engines: dict[int, Child] = {}
        self._batches: dict[int, list[list[Ids]]] = {}
        for size in OVERHEAD_BATCHES:
            say(f"starting our engine with batches of {size}, with nobody listening")
            flags = ("--meter", "estimate", "--max-batch-sequences", str(size))
            self._engines[size] = stack.enter_context(_our_engine(MODELS["base"], variants, *flags))
            sequences = sequences_of(SHORT_TOKENS, size * DIFFERENT_BATCHES, options.seed)
            self._batches[size] = whole_set(sequences, size)

    def bare(self, variant: str, size: int) -> dict[str, float]:
        threads = self._engines[size].ask("threads", variant=variant)
        return {"": self._ask("bare", variant, size), ".threads": threads}

    def whole(self, variant: str, size: int) -> dict[str, float]:
        return {"": self._ask("whole", variant, size)}

    def _ask(self, what: str, variant: str, size: int) -> float:
        """Seconds of a batch."""
        seconds = self.options.seconds / MANY
        found: float = self._engines[size].ask(
            what, variant=variant, batches=self._batches[size], seconds=seconds
        )
        return found


class PairScene(Scene):
    """Two servers that differ in one thing, under the same load. servers: their addresses by what they are
    called."""

    def __init__(self, name: str, options: Options, servers: dict[str, str], part: int) -> None:
        super().__init__(name, options)
        self._addresses = servers
        self._sequences = self.sequences[: max(1, len(self.sequences) // part)]
        self._seconds = options.seconds / part

    def warm_up(self, variants: Iterable[str]) -> None:
        for variant in variants:
            for address in self._addresses.values():
                closed_loop(address, requests_of(self._sequences, variant), 32, 1.0)

    def pair(self, variant: str, concurrency: int) -> dict[str, float]:
        """Rates. Who goes first changes from turn to turn."""
        names = list(self._addresses)
        self._addresses = {name: self._addresses[name] for name in reversed(names)}
        requests = requests_of(self._sequences, variant)
        return {
            f".{name}": closed_loop(address, requests, concurrency, self._seconds).rate
            for name, address in self._addresses.items()
        }

    def latency(self, variant: str, _: int) -> dict[str, float]:
        """Medians in milliseconds, one request at a time."""
        taken: dict[str, list[float]] = {name: [] for name in self._addresses}
        for chunk in whole_set(self.sequences[:ALONE], CHUNK):
            for name, address in self._addresses.items():
                taken[name] += one_by_one(address, requests_of(chunk, variant))
        return {f".{name}_ms": statistics.median(seconds) * 1e3 for name, seconds in taken.items()}


def _calibration(variants: Sequence[str], seed: int, stack: ExitStack) -> list[str]:
    """Flags for those that want scales: of other sequences than are sent."""
    if "int8-static" not in variants:
        return []
    from wattserve_common import dataset  # which imports torch

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="wattserve-bench-"))) / "rows"
    sequences = sequences_like_sst2(CALIBRATION_ROWS, seed + 1)
    dataset.save(folder, sequences, [0] * len(sequences), {"source": "the speed bench"})
    return ["--calibration", str(folder)]


def _wait_for_variants(address: str) -> None:
    """Asked of the server itself, for that of another tree may not say so by itself."""
    coming = (VariantState.LOADING, VariantState.CALIBRATING)
    with Client(address) as client:
        while any(variant.state in coming for variant in client.server_info().variants):
            time.sleep(LOOK_S)


@contextmanager
def _server(*flags: str, tree: str = "") -> Iterator[RunningServer]:
    """tree: a checkout whose server it is, if not this one's."""
    say(f"starting wattserve serve {' '.join(flags)}" + (f" of {tree}" if tree else ""))
    extra: dict[str, str] = {}
    if tree:
        extra["PYTHONPATH"] = python_path(tree)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server(*flags, extra=extra, fresh=True, waits_for_all=False))
            _wait_for_variants(server.address)
        except RuntimeError as error:
            raise BenchError(str(error)) from None
        try:
            yield server
        except BenchError as error:
            said = "".join(server.errors[-5:]).strip()
            raise BenchError(f"{error}\nThe server's last words: {said or 'none'}") from None


def _our_engine(model: str, variants: Sequence[str], *flags: str) -> AbstractContextManager[Child]:
    arguments = ["serve", "--model", model, "--variants", ",".join(variants), "--max-tokens", str(LONGEST)]
    arguments += ["--no-verify", "--calibration-seconds", "0", *flags]
    return running_child("our engine", "tests.bench.speed.engine", *arguments)


def model_figures(name: str, options: Options, turns: Sequence[Turn]) -> Figures:
    with ExitStack() as stack:
        return play(ModelScene(name, options, turns, stack), turns, options.rounds)


def overhead_figures(options: Options, variants: Sequence[str]) -> Figures:
    kinds = ("bare", "whole")
    turns = [Turn(kind, name, size) for name in variants for size in OVERHEAD_BATCHES for kind in kinds]
    with ExitStack() as stack:
        return play(OverheadScene(options, variants, stack), turns, options.rounds * MANY)


def metering_figures(options: Options, name: str, variant: str, concurrency: int) -> Figures:
    """With `--meter estimate` and with `--meter none`."""
    flags = ("--model", MODELS[name], "--variants", variant)
    with ExitStack() as stack:
        servers = {
            meter: stack.enter_context(_server(*flags, "--meter", meter)).address
            for meter in ("estimate", "none")
        }
        scene = PairScene(f"metering.{name}", options, servers, part=MANY)
        scene.warm_up([variant])
        return play(scene, [Turn("pair", variant, concurrency)], options.rounds * MANY)


def against_figures(options: Options, variants: Sequence[str]) -> Figures:
    """This tree's server and that of another."""
    flags = ("--model", MODELS["base"], "--variants", ",".join(variants), "--meter", "estimate")
    with ExitStack() as stack:
        servers = {
            "this": stack.enter_context(_server(*flags)).address,
            "other": stack.enter_context(_server(*flags, tree=options.against)).address,
        }
        scene = PairScene("against", options, servers, part=1)
        scene.warm_up(variants)
        turns = [
            Turn(kind, variant, size) for variant in variants for kind, size in (("pair", 32), ("latency", 0))
        ]
        return play(scene, turns, options.rounds)
