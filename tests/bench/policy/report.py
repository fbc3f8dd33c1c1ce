"""Figures as tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.policy.figures import Figures

HEAD = (
    "rule",
    "computed / real",
    "sequences/s",
    "batch",
    "wait p50, p99",
    "longest wait",
    "latency p50",
    "p99 / p50",
    "deadlines missed",
    "wait p99 of each",
)


def table(rows: Sequence[tuple[str, Figures]], first: str = "rule") -> str:
    """Times in ms."""
    lines = ["| " + " | ".join((first, *HEAD[1:])) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join((name, *_cells(found))) + " |" for name, found in rows]
    return "\n".join(lines)


def _cells(found: Figures) -> tuple[str, ...]:
    return (
        f"{found.padding:.2f}",
        f"{found.throughput:,.0f}",
        f"{found.batch_size:.1f}",
        f"{found.wait_p50:,.1f}, {found.wait_p99:,.1f}",
        f"{found.longest_wait:,.1f}",
        f"{found.latency_p50:,.1f}",
        f"{found.tail:.2f}",
        "" if found.misses is None else f"{100 * found.misses:.1f} %",
        ", ".join(f"{name} {wait:,.0f}" for name, wait in found.waits.items()),
    )
