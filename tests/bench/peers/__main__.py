"""`python -m tests.bench.peers`: the table of the servers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.peers import __doc__ as about
from tests.bench.peers import prepare, servers
from tests.bench.peers.asking import closed_loop
from tests.bench.peers.figures import TOLERANCE, Cell, Turn, difference, record, table
from tests.bench.peers.settings import BATCH, DELAY_S, THREADS
from tests.bench.speed import machine, paths, quiet
from tests.bench.speed.figures import BenchError
from tests.bench.speed.sequences import Ids
from tests.bench.speed.table import described as words_of

MODELS = {"base": "random:distilbert-base", "demo": "demo"}
TITLES = {"base": "DistilBERT-base, random weights", "demo": "the demo model"}
VARIANTS = ("fp32", "bf16")
CONCURRENCY = 32
WARMUP_S = 1.0
WARMUP_REQUESTS = 64


class Scene:
    """A model in one precision: all servers that can be had, and what they are asked."""

    def __init__(self, name: str, variant: str, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._variant = variant
        self._name = name
        self._model = servers.Model(name, MODELS[name], folder / prepare.WEIGHTS)
        self._sequences: list[Ids] = json.loads((folder / prepare.ASKED).read_text(encoding="utf-8"))
        self._plain: list[list[float]] = json.loads((folder / prepare.ANSWERED).read_text(encoding="utf-8"))

    def play(self) -> Cell:
        """Each server once a round, every other round in reverse order. Raises BenchError."""
        missing: dict[str, str] = {}
        with ExitStack() as stack:
            running = self._start(stack, missing)
            turns: dict[str, list[Turn]] = {one.name: [] for one in running}
            for number in range(self._options.rounds):
                for one in running[:: -1 if number % 2 else 1]:
                    watch = quiet.Watch()
                    turn = self._turn(one, watch, self._options.seconds)
                    turns[one.name].append(turn)
                    say(
                        f"{self._name} {self._variant}, round {number + 1}: {one.name}: {turn.rate:.1f}/s, "
                        f"server {turn.server_ms:.2f}, client {turn.client_ms:.2f} ms"
                    )
        return Cell(TITLES[self._name], self._variant, turns, missing)

    def _start(self, stack: ExitStack, missing: dict[str, str]) -> list[servers.Running]:
        """Each alone, warmed up and held still. A peer that fails is named, and the others go on."""
        say(f"{self._name} {self._variant}: starting {servers.OURS}")
        running = [stack.enter_context(servers.running_ours(self._model, self._variant))]
        self._warm_up(running[0])
        for peer in servers.PEERS:
            if peer.name not in self._options.peers.split(","):
                continue
            say(f"{self._name} {self._variant}: starting {peer.name}")
            with ExitStack() as own:
                try:
                    started = own.enter_context(
                        servers.running_peer(
                            peer, self._options.where, self._model, self._variant, self._sequences[0]
                        )
                    )
                    self._warm_up(started)
                except BenchError as error:
                    missing[peer.name] = str(error).splitlines()[0]
                    say(str(error))
                    continue
                stack.push(own.pop_all())
                running.append(started)
        return running

    def _warm_up(self, one: servers.Running) -> None:
        requests = [one.wire.request(ids) for ids in self._sequences[:WARMUP_REQUESTS]]
        with one.awake():
            closed_loop(one.wire, one.port, requests, CONCURRENCY, WARMUP_S)

    def _turn(self, one: servers.Running, watch: quiet.Watch, seconds: float) -> Turn:
        requests = [one.wire.request(ids) for ids in self._sequences]
        with one.awake():
            before_s = one.cpu_s()
            taken = closed_loop(one.wire, one.port, requests, CONCURRENCY, seconds)
            server_s = one.cpu_s() - before_s
        off = difference([one.wire.logits(answer) for answer in taken.answers], self._plain)
        if off > TOLERANCE[self._variant]:
            raise BenchError(
                f"{one.name} does not answer as plain torch does: a logit of {self._name} {self._variant} is "
                f"{off:.1e} of the largest off; at most {TOLERANCE[self._variant]:g} was to be expected"
            )
        count = len(taken.latencies)
        return Turn(
            taken.rate, taken.latencies, server_s * 1e3 / count, taken.client_s * 1e3 / count, off,
            watch.foreign_cores(),
        )  # fmt: skip


def say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=about)
    known = {
        "models": tuple(MODELS),
        "variants": VARIANTS,
        "peers": tuple(peer.name for peer in servers.PEERS),
    }
    for name, values in known.items():
        parser.add_argument(
            f"--{name}", default=",".join(values), help=f"of {', '.join(values)} (default: all)"
        )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn, at the least: all are asked")
    parser.add_argument("--sequences", type=int, default=192, help="in the set that each turn asks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--where", type=Path, default=Path("build/peers"), help="the virtual environments")
    parser.add_argument("--out", type=Path, metavar="FILE", help="FILE gets the table, FILE.json every turn")
    options = parser.parse_args(arguments)
    for name, values in known.items():
        for one in getattr(options, name).split(","):
            if one not in values:
                parser.error(f"--{name}: unknown: {one!r}; known: {', '.join(values)}")
    if options.rounds < 1 or options.sequences < WARMUP_REQUESTS or options.seconds < 0:
        parser.error(
            f"--rounds must be 1 or more, --sequences {WARMUP_REQUESTS} or more, --seconds 0 or more"
        )
    options.where = options.where.resolve()
    return options


def _prepare(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "tests.bench.peers.prepare", *words]
    environment = os.environ | servers.SLEEPING_THREADS
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise BenchError(f"the model could not be prepared: {done.stderr.strip()}")


def measure(options: argparse.Namespace) -> list[Cell]:
    cells = []
    for name in options.models.split(","):
        with TemporaryDirectory(prefix="wattserve-peers-") as folder:
            words = [folder, MODELS[name], str(options.sequences), str(options.seed)]
            _prepare(words)
            for variant in options.variants.split(","):
                cells.append(Scene(name, variant, Path(folder), options).play())
    return cells


def described(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, and what each server is. Raises BenchError."""
    settings = {peer.name: f"{peer.wire.words}; {peer.settings}; {versions(options.where, peer.name)}"
                for peer in servers.PEERS}  # fmt: skip
    return (
        machine.describe()
        | paths.describe()
        | {
            "seed": options.seed,
            servers.OURS: f"{servers.OUR_WIRE.words}; defaults, --threads {THREADS}, --meter estimate",
            **settings,
        }
    )


def versions(where: Path, name: str) -> str:
    """Of the packages that matter, from the names of their folders."""
    found = [
        path.name.removesuffix(".dist-info").replace("-", " ", 1)
        for path in sorted((where / name).glob("lib/python*/site-packages/*.dist-info"))
        if path.name.partition("-")[0]
        in ("litserve", "nvidia_pytriton", "mlserver", "torch", "transformers", "numpy")
    ]
    return ", ".join(found) or "not installed"


def main() -> int:
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left behind
    begun = time.monotonic()
    try:
        about_it = described(options)
        cells = measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    about_it["minutes"] = f"{(time.monotonic() - begun) / 60:.1f}"
    note = (
        f"Each turn asks all {options.sequences} sequences, lengths like SST-2's, {CONCURRENCY} at a time, "
        f"and all again until {options.seconds:g} s have passed. Peers: batches of up to {BATCH} that wait "
        f"for up to {DELAY_S * 1e3:g} ms, {THREADS} threads. CPU is for each answer. Off: the largest "
        "difference of a logit from plain torch's in fp32, as a part of the largest logit."
    )
    lines = [f"- {name}: {words_of(value)}" for name, value in about_it.items()]
    page = "\n".join([table(cells, servers.OURS), note, "", *lines]) + "\n"
    print(page, end="")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page, encoding="utf-8")
        details = {"machine": about_it, "cells": record(cells)}
        options.out.with_suffix(options.out.suffix + ".json").write_text(
            json.dumps(details, indent=1) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
