"""What `wattserve meter verify` recorded, shared again by the code of this tree.

    python -m tests.bench.attribution --recorded DIR

The readings and the windows of a folder go through the accountant, calibration first, as they did on that
machine. Of its mixed runs each variant's joules per request stand beside what the counter said of it alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.reading import Reading
from wattserve_server.energy.receipt import Line, Receipt, Window
from wattserve_server.meters.recording import Recording, read_recording

POLL_NS = 20_000_000  # the recording is finer than the server's own reads
ON_THE_SERVERS_CPU = ("rapl", "estimate")  # meters that count the server's work beside its batches

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shared:
    """Of one variant in the mixed runs."""

    variant: str
    requests: int
    withheld: int
    alone_j: float  # per request, by the counter, as the recording machine found it
    told_j: float | None  # per request, the mean over the shapes; None where a shape has no figure


def share_again(folder: Path) -> list[Shared]:
    """Raises OSError, ConfigError or KeyError for a folder that holds no whole run."""
    found = json.loads((folder / "verify.json").read_text())["mixed"]
    recording = read_recording(folder / "readings.jsonl")
    origin_ns = recording.header.origin_monotonic_ns or 0
    texts = (folder / "windows.jsonl").read_text().splitlines()
    windows = sorted((_window(json.loads(text)) for text in texts), key=lambda window: window.end_ns)
    charged = _charged_uj(recording, windows)
    mixed_ns = [
        (round(since_s * 1e9) - origin_ns, round(until_s * 1e9) - origin_ns)
        for name, since_s, until_s in found["runs"]
        if not name
    ]
    mixed = [
        window
        for window in windows
        if window.lines and any(since <= window.start_ns < until for since, until in mixed_ns)
    ]
    return [
        _shared(name, company["alone_j"], [each for each in mixed if each.variant == name], charged)
        for name, company in found["by_variant"].items()
    ]


def render(shared: Sequence[Shared]) -> str:
    lines = [
        "| variant | requests | withheld | alone, by the counter | mixed, shared again | difference |",
        "|---|" + "---|" * 5,
    ]
    for each in shared:
        told = difference = "-"
        if each.told_j is not None:
            told, difference = f"{each.told_j:.4g} J", f"{100 * (each.told_j / each.alone_j - 1):+.2f} %"
        cells = (
            each.variant,
            f"{each.requests}",
            f"{each.withheld}",
            f"{each.alone_j:.4g} J",
            told,
            difference,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _window(plain: dict[str, Any]) -> Window:
    lengths = tuple(plain["lengths"])
    lines: tuple[Line, ...] = ()
    if plain["is_request"]:
        receipt = Receipt("recorded", "", plain["variant"], "recorded", 0)
        lines = tuple(Line(receipt, length, batch_size=len(lengths), windows=1) for length in lengths)
    return Window(
        variant=plain["variant"],
        start_ns=plain["start_ns"],
        end_ns=plain["end_ns"],
        lengths=lengths,
        padded_length=plain["padded_length"],
        lines=lines,
        is_first_run=plain["is_first_run"],
        rested_ns=plain["rested_ns"],
        packed_rows=plain["packed_rows"],
    )


def _charged_uj(recording: Recording, windows: Sequence[Window]) -> dict[Line, int]:
    """What each line that got a figure is charged."""
    header = recording.header
    counts_server = header.source.name.partition(":")[0] in ON_THE_SERVERS_CPU
    books = Accountant(header.idle_watts, header.wraps_at, counts_server=counts_server)
    by_start = sorted(windows, key=lambda window: window.start_ns)
    charged: dict[Line, int] = {}
    last_ns, ended, begun = -POLL_NS, 0, 0
    for line in recording.lines:
        if line.at_ns < last_ns + POLL_NS:
            continue
        last_ns = line.at_ns
        if line.energy is None:
            books.failed(line.at_ns, line.error)
        else:
            books.observe(Reading(line.at_ns, line.energy))
        first = ended
        while ended < len(windows) and windows[ended].end_ns <= line.at_ns:
            ended += 1
        while begun < len(by_start) and by_start[begun].end_ns <= line.at_ns:
            begun += 1
        running = by_start[begun].start_ns if begun < len(by_start) else line.at_ns
        for charge in books.advance(windows[first:ended], min(running, line.at_ns)):
            if charge.energy_uj is not None:
                charged[charge.line] = charge.energy_uj
    return charged


def _shared(variant: str, alone_j: float, windows: Sequence[Window], charged: dict[Line, int]) -> Shared:
    by_shape: dict[Shape, list[float]] = defaultdict(list)
    for window in windows:
        if all(line in charged for line in window.lines):
            by_shape[window.lengths].append(sum(charged[line] for line in window.lines) / 1e6)
    means = [sum(values) / len(values) for values in by_shape.values()]
    is_whole = means and by_shape.keys() == {window.lengths for window in windows}
    told_j = sum(means) / len(means) if is_whole else None
    return Shared(variant, len(windows), len(windows) - sum(map(len, by_shape.values())), alone_j, told_j)
