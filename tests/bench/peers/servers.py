"""The servers that take turns: how each is started in its own environment, held still and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from tests import ROOT
from tests.bench.peers.asking import Json, OpenInference, Wire, closed_loop
from tests.bench.peers.settings import BATCH, DELAY_S, MODEL_NAME, THREADS
from tests.bench.speed.child import plain
from tests.bench.speed.figures import BenchError
from tests.bench.speed.quiet import ticks_below
from tests.fixtures.ports import free_ports
from tests.fixtures.server import environment, running_server

START_LIMIT_S, LOOK_S, END_LIMIT_S = 120.0, 0.5, 10.0
LAST_WORDS = 12

OURS = "wattserve"
SLEEPING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "OPENBLAS_NUM_THREADS": "1"}
"""As our server sets them for itself: threads that never sleep take the cores from the server around them."""

MLSERVER_RUNTIME = "tests.bench.peers.mlserver_runtime.Classifier"


@dataclass(frozen=True)
class Peer:
    """ports: that it opens; requests go to the first."""

    name: str
    wire: Wire
    ports: int
    settings: str


PEERS = (
    Peer("litserve", Json(), 1, "one worker, one API server"),
    Peer("pytriton", OpenInference(is_padded=True), 3, "one instance, its dynamic batcher"),
    Peer("mlserver", OpenInference(is_padded=True), 3, "one parallel worker, adaptive batching"),
)
OUR_WIRE = OpenInference(is_padded=False)


@dataclass(frozen=True)
class Model:
    """name: of the table. served: what our server is told. folder: its files, for the peers."""

    name: str
    served: str
    folder: Path


@dataclass
class Running:
    """A server that answers; held still but in its turns."""

    name: str
    wire: Wire
    port: int
    pid: int

    def cpu_s(self) -> float:
        """Of all its processes."""
        return sum(ticks_below(self.pid).values()) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        signal_all(ticks_below(self.pid), number)


def signal_all(pids: Mapping[int, int] | Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def running_ours(model: Model, variant: str) -> Iterator[Running]:
    """By default settings but for threads, which are everybody's. Raises BenchError."""
    flags = (
        "--model",
        model.served,
        "--model-name",
        MODEL_NAME,
        "--variants",
        variant,
        "--threads",
        str(THREADS),
    )
    try:
        with running_server(*flags, "--meter", "estimate", fresh=True) as server:
            running = Running(OURS, OUR_WIRE, int(server.address.rpartition(":")[2]), server.process.pid)
            try:
                yield running
            finally:
                running.signal(signal.SIGCONT)
    except RuntimeError as error:
        raise BenchError(f"{OURS}: {error}") from None


@contextmanager
def running_peer(
    peer: Peer, where: Path, model: Model, variant: str, first: Sequence[int]
) -> Iterator[Running]:
    """Once it has answered `first`, a sequence. where: the virtual environments. Raises BenchError."""
    ports = free_ports(peer.ports)
    python = where / peer.name / "bin" / "python"
    if not python.exists():
        raise BenchError(f"{peer.name} is not installed in {where / peer.name}: make bench-peers installs it")
    with (
        TemporaryDirectory(prefix="wattserve-peers-") as folder,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(
            _command(peer, python, Path(folder), model, variant, ports), cwd=folder, stdout=said, stderr=said,
            env=_variables(python),
        ) as process,
    ):  # fmt: skip
        running = Running(peer.name, peer.wire, ports[0], process.pid)
        try:
            _wait(running, process, list(first))
            yield running
        except BenchError as error:
            said.seek(0)
            words = "".join(said.readlines()[-LAST_WORDS:]).strip()
            raise BenchError(f"{peer.name}: {error}\nIts last words: {words or 'none'}") from None
        finally:
            _end(running, process)


def _command(
    peer: Peer, python: Path, folder: Path, model: Model, variant: str, ports: Sequence[int]
) -> list[str]:
    """Writes the settings that are read from files into `folder`."""
    if peer.name != "mlserver":
        script = ROOT / "tests" / "bench" / "peers" / f"{peer.name}_server.py"
        return [str(python), str(script), str(model.folder), variant, *map(str, ports)]
    settings = {
        "debug": False, "host": "127.0.0.1", "grpc_port": ports[0], "http_port": ports[1],
        "metrics_port": ports[2], "parallel_workers": 1,
    }  # fmt: skip
    of_model = {
        "name": MODEL_NAME, "implementation": MLSERVER_RUNTIME, "max_batch_size": BATCH,
        "max_batch_time": DELAY_S,
        "parameters": {"extra": {"folder": str(model.folder), "variant": variant}},
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "model-settings.json").write_text(json.dumps(of_model), encoding="utf-8")
    return [str(python.parent / "mlserver"), "start", str(folder)]


def _variables(python: Path) -> dict[str, str]:
    """None of a developer's shell. Triton's backend wants the library of its Python."""
    library = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    return plain(environment()) | SLEEPING_THREADS | {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": library}


def _wait(running: Running, process: subprocess.Popen[bytes], first: list[int]) -> None:
    until = time.monotonic() + START_LIMIT_S
    while True:
        try:
            closed_loop(running.wire, running.port, [running.wire.request(first)], 1, 0.0)
            return
        except BenchError as error:
            if process.poll() is not None:
                raise BenchError(f"it ended with code {process.returncode}") from None
            if time.monotonic() > until:
                raise BenchError(f"no answer within {START_LIMIT_S:g} s: {error}") from None
        time.sleep(LOOK_S)


def _end(running: Running, process: subprocess.Popen[bytes]) -> None:
    below = list(ticks_below(running.pid))
    signal_all(below, signal.SIGCONT)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_LIMIT_S)
    signal_all(below, signal.SIGKILL)
