"""(c) What the sampler and the book hold, as virtual time passes, container by container."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tests.bench.energy_cost.rig import RETENTION_COUNT, SENSORS, Device, Load, Rig
from wattserve_server.energy.receipt import Receipt

CALM, DENSE = Load(1, 0.1), Load(1, 0.001)
FILLS_S = 450.0
"""Of the calm, until histories of a fixed length are full."""

WORTH_NOTING = 64

BOUND = """\
    The bound: the sampler holds the batches of one counter interval and of the response's reach before it
    (lag + 3.5 ramp + 0.4 of a period), as entries of the filter: beyond 64 new ones at an edge, or 128 open,
    those alike share one. The filter's covariance is the square of entries + 17 coefficients per variant. Of
    history: 256 intervals and 2048 batches, 256 read costs and steps, 64 periods, 32 gaps; during a
    calibration 1024 edges and their batches. The book holds final receipts for their retention, and no more
    than --receipt-retention-count. Not bounded but by the stall itself: windows and open receipts while a
    read of the meter hangs, edges while a batch hangs."""

_NOT_HELD = (type, ModuleType, FunctionType, MethodType, threading.Thread, Device)


def weigh(path: str, root: object, without: tuple[type, ...] = ()) -> tuple[int, Counter[str]]:
    """Bytes of everything below an object, and the lengths of its containers by their path."""
    total = 0
    lengths: Counter[str] = Counter()
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [(path, root)]
    while stack:
        path, item = stack.pop()
        if id(item) in seen or isinstance(item, (*_NOT_HELD, *without)):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, np.ndarray):
            lengths[path] += item.size
            stack.append((f"{path}.base", item.base))
        elif isinstance(item, (list, set, dict, deque, tuple)):
            if not isinstance(item, tuple):
                lengths[path] += len(item)
            stack += [(f"{path}[]", member) for member in item]
            if isinstance(item, dict):
                stack += [(f"{path}[]", member) for member in item.values()]
        else:
            slots = {name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())}
            names = sorted(slots | set(getattr(item, "__dict__", ())))
            stack += [(f"{path}.{name.lstrip('_')}", getattr(item, name, None)) for name in names]
    return total, lengths


def look(label: str, rig: Rig) -> dict[str, Any]:
    gc.collect()
    sampler_bytes, lengths = weigh("sampler", rig.sampler, without=(Receipt,))
    return {"after": label, "sampler_bytes": sampler_bytes, "lengths": lengths}


def growth(looks: Sequence[dict[str, Any]]) -> list[str]:
    """Containers that were longer at every look."""
    lengths = [found["lengths"] for found in looks]
    return sorted(
        path
        for path in lengths[-1]
        if lengths[-1][path] - lengths[0][path] > WORTH_NOTING
        and all(after[path] > before[path] for before, after in pairwise(lengths))
    )


def measure(quick: bool) -> dict[str, Any]:
    """The 100 ms counter: 10 batches per second, then one per millisecond, then 10 again."""
    calm_s, dense_s = (20.0, 10.0) if quick else (300.0, 120.0)
    rig = Rig(SENSORS[0])
    rig.start()
    looks: list[dict[str, Any]] = []
    for number in range(4):
        seconds = FILLS_S + number * calm_s
        rig.serve(CALM, calm_s if number else FILLS_S)
        looks.append(look(f"{seconds / 60:.1f} min of 10 batches/s", rig))
    rig.serve(DENSE, dense_s)
    looks.append(look(f"+ {dense_s / 60:.1f} min of 1000 batches/s", rig))
    book_bytes, lengths = weigh("book", rig.book)
    receipts = lengths["book.receipts"]
    rig.serve(CALM, 30)
    looks.append(look("+ 0.5 min of 10 batches/s", rig))
    return {"looks": looks, "receipts": receipts, "receipt_bytes": book_bytes / receipts}


def render(figures: dict[str, Any]) -> str:
    looks = figures["looks"]
    lines = ["What is held, 100 ms counter, one request per batch, virtual time.\n"]
    lines += [
        f"    {found['after']:30}{found['sampler_bytes'] / 1024:8,.0f} KiB in the sampler" for found in looks
    ]
    calm, dense = looks[3]["lengths"], looks[4]["lengths"]
    swollen = [path for path in sorted(dense) if dense[path] - calm[path] > WORTH_NOTING]
    lines.append("\n    longer under the dense load than in the calm:")
    lines += [f"    {path:46}{calm[path]:8,} ->{dense[path]:8,}" for path in swollen]
    size, count = figures["receipt_bytes"], figures["receipts"]
    lines += [
        f"    grew throughout the calm: {', '.join(growth(looks[:4])) or 'nothing'}",
        f"    a receipt of one line in the book: {size:.0f} bytes (of {count:,});"
        f" {RETENTION_COUNT:,} of them: {size * RETENTION_COUNT / 1e6:.0f} MB",
        BOUND,
    ]
    return "\n".join(lines)
