"""What a user can ask of a sweep, whether by flags or by a plan file. Pure; None: the preset's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattserve_loadgen.plan.load import Load


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. `ca` None: the system's; `cert` and `key` where the server asks for a client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Peer:
    """A server of the Open Inference Protocol to compare with: each of its models becomes an arm."""

    name: str
    address: str
    models: tuple[str, ...]
    meter: str = ""  # what `wattserve meter record --meter` shall read on this machine; empty: no joules


@dataclass(frozen=True)
class SweepOptions:
    """Everything that decides what a sweep does."""

    target: str  # HOST:PORT; empty: peers only
    dataset: Path
    out: Path
    preset: str
    variants: tuple[str, ...] | None = None
    loads: tuple[Load, ...] | None = None  # empty: only what the search finds
    blocks: int | None = None
    seconds: float | None = None
    seed: int = 0
    deadline_seconds: float = 30.0
    least_requests: int = 0  # in the windows of each point
    scenario: str = ""  # MLPerf's scenario that the load is after; `plan.scenarios.remark` says what differs
    stream: bool = False  # PredictStream instead of Predict
    tls: TlsFiles | None = None
    peers: tuple[Peer, ...] = ()
    objective: str = ""  # e.g. p99<50ms
    find_max: bool = False  # search each arm's highest rate within the objective, then measure there
    budget_seconds: float | None = None
    twin: bool = True  # repeat the baseline under a second name
    processes: int = 1  # of the client
    wait_for_server_seconds: float = 60.0  # when it is lost in the middle
    calibrate: bool = True  # measure the client's ceiling first where none is stored
    metrics_port: int | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False
    parquet: bool = False
    command: tuple[str, ...] = ()
