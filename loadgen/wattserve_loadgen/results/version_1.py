"""The shape of results.json at version 1 (2026-11-20 to 2026-11-21), to read older results: closed loops
only, one server. Fields that `schema` still has mean the same there. Never written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.results.schema import Accuracy, DatasetSummary


@dataclass(frozen=True)
class Plan:
    preset: str
    variants: tuple[str, ...]
    concurrencies: tuple[int, ...]
    blocks: int
    seconds: float
    warmup_seconds: float
    heat_up_seconds: float
    publish_seconds: float
    seed: int


@dataclass(frozen=True)
class CellEnergy:
    settled: int
    unknown: int
    unknown_reasons: dict[str, int]
    active_uj_per_request: float | None
    failed_uj_per_request: float | None
    active_uj_per_token: float | None
    idle_uj_per_request: float | None
    idle_watts: float | None
    ledger_seconds: float | None
    measured_uj: int | None
    active_uj: int | None
    other_active_uj: int | None
    idle_uj: int | None
    unattributed_uj: int | None
    pending_uj: int | None
    receipts_uj: int | None
    accounts_residual_uj: int | None
    receipts_residual_uj: int | None
    foreign_sequences: int
    gap_count: int
    gap_seconds: float
    reason: str
    gap_uj: int | None = None


@dataclass(frozen=True)
class CellResult:
    position: int
    block: int
    variant: str
    concurrency: int
    window_seconds: float
    sent: int
    answered: int
    failed: int
    failures: dict[str, int]
    failure_example: str
    rate_per_second: float | None
    p50_ns: int | None
    p90_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    effective_samples: float | None
    client_cpu_seconds: float
    client_cpu_share: float | None
    mean_tokens: float | None
    mean_batch_size: float | None
    padding_share: float | None
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    mean_latency_ns: float | None
    energy: CellEnergy
    stopped: str
    proxy: str = ""
    verified: bool | None = None


@dataclass(frozen=True)
class Verdict:
    code: str
    text: str


@dataclass(frozen=True)
class Point:
    variant: str
    concurrency: int
    blocks: int
    window_seconds: float
    answered: int
    failed: int
    rate_per_second: Interval | None
    p50_ns: int | None
    p90_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    p999_ns: int | None
    p50_blocks_ns: Interval | None
    p95_blocks_ns: Interval | None
    effective_samples: float | None
    active_uj: Interval | None
    idle_uj: Interval | None
    active_uj_per_token: Interval | None
    mean_batch_size: float | None
    padding_share: float | None
    mean_queue_ns: float | None
    mean_compute_ns: float | None
    mean_latency_ns: float | None
    client_cpu_share: float | None
    speed_ratio: Interval | None
    energy_ratio: Interval | None
    verdicts: list[Verdict]
    proxy: str = ""
    verified: bool | None = None


@dataclass(frozen=True)
class Results:
    schema: str
    schema_version: int
    loadgen_version: str
    created: str
    command: list[str]
    target: str
    ended: str
    cells_planned: int
    plan: Plan
    dataset: DatasetSummary
    client: dict[str, Any]
    server: dict[str, Any]
    energy_reason: str
    accuracy_reason: str
    accuracy_rows: int
    accuracy: dict[str, Accuracy]
    notes: list[str]
    points: list[Point] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)
