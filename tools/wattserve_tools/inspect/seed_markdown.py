"""The seed table in Markdown, from its JSON: what is known, and a footnote for everything that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattserve_common.words import counted, origin
from wattserve_tools.inspect.report import share_words

HEADINGS = (
    "Precision", "Device", "Latency p50 (ms)", "p95 (ms)", "Energy, active (mJ)", "total (mJ)",
    "Accuracy (%)", "Model size (MB)", "Speed-up", "Energy against fp32",
)  # fmt: skip
MISSING = "–"


class _Footnotes:
    """Numbered in the order of first use; equal texts share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def markdown(result: Mapping[str, Any]) -> str:
    """The document: heading, how it was measured, the table, its footnotes, where it ran."""
    notes = _Footnotes()
    rows = [_row(row, result, notes) for row in result["rows"]]
    model, settings = result["model"], result["settings"]
    lines = [
        f"# {model['name']}: precision, latency, energy, accuracy",
        "",
        *_energy_lines(result["meters"]),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|" + "---:|" * (len(HEADINGS) - 2),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        *(f"{index}. {text}" for index, text in enumerate(notes.texts, start=1)),
        *([""] if notes.texts else []),
        f"{settings['timed_runs']} timed runs of {counted(settings['batch_size'], 'sequence')} per "
        f"precision, after {settings['warmup_runs']} of warm-up or more (every shape at least once), in "
        f"{counted(settings['blocks'], 'block')} that take turns in a seeded order. Latency is that of one "
        "run, from prepared inputs on the host to its results on the host; energy is that of one sequence. "
        "Speed-up is the ratio of medians, with the 95 % interval of the blocks' ratios in brackets.",
        *_resolution(result["fp32_against_itself"]),
        "",
        _where(result),
    ]
    return "\n".join(lines) + "\n"


def _energy_lines(meters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for device, meter in meters.items():
        if meter.get("reason"):
            lines.append(f"Energy on {device}: **unknown**: {meter['reason']}.")
            continue
        quality = meter["quality"]
        shown = quality if quality == "measured" else quality.upper()
        idle = meter["idle_watts"]
        idle_words = "not known" if idle is None else f"{idle:.3g} W, {meter['idle_origin']}"
        lines.append(
            f"Energy on {device}: {origin(shown, meter['source']).replace(shown, f'**{shown}**', 1)} "
            f"({meter['note']}); it covers "
            f"{meter['boundary']}. Idle draw: {idle_words}; active energy is what is above it."
        )
    return lines


def _row(row: Mapping[str, Any], result: Mapping[str, Any], notes: _Footnotes) -> list[str]:
    def missing(why: str) -> str:
        return MISSING + notes.mark(why)

    def figure(key: str, form: str, why: str) -> str:
        return missing(why) if row[key] is None else format(row[key], form).rstrip(".")

    def ratio(key: str, unit: str, why: str) -> str:
        interval = row[key]
        if interval is None:
            return missing(why)
        if interval["ratio"] is None:
            return missing(f"no ratio: {_short_of(interval)}")
        return _interval(interval, unit)

    name = row["variant"]
    shown = f"{name} (PROXY)" if row["proxy"] else name
    if row["refused"]:
        mark = notes.mark(f"{name} was refused, so it has no figures: {row['refused']}")
        return [shown + mark, row["device"], *[MISSING] * (len(HEADINGS) - 2)]
    cells = [shown + notes.mark(_about(row)), row["device"]]
    too_few = "too few timed runs for this percentile: p50 needs 11, p95 130"
    cells += [figure(key, ".3f", too_few) for key in ("latency_p50_ms", "latency_p95_ms")]
    unknown = f"no figure: {row['energy_reason']}"
    cells += [figure(key, "#.3g", unknown) for key in ("energy_active_mj", "energy_total_mj")]
    if row["energy_total_mj"] is not None and row["energy_blocks"] < result["settings"]["blocks"]:
        cells[-1] += notes.mark(f"from {counted(row['energy_blocks'], 'block')} only: {row['energy_reason']}")
    no_fp32 = f"no ratio: {result['reference_reason'] or 'fp32 was refused'}"
    ratios = ["1", "1"]
    if row["kind"] != "fp32":
        no_energy = unknown if row["speed_up"] else no_fp32
        ratios = [ratio("speed_up", "x", no_fp32), ratio("energy_ratio", "", no_energy)]
    answers = row["answers"]
    strange = ""
    if answers["rows_not_finite"]:
        strange = notes.mark(f"{name}: not finite in {counted(answers['rows_not_finite'], 'row')}")
    if answers["accuracy"] is None:
        accuracy = missing(f"no accuracy: {result['accuracy_reason']}")
    else:
        accuracy = share_words(answers["accuracy"])
    return [*cells, accuracy + strange, f"{row['tensor_bytes'] / 1e6:.2f}", *ratios]


def _about(row: Mapping[str, Any]) -> str:
    """What the name alone would hide."""
    parts = [row["how"], row["verification"] if row["verified"] else f"NOT VERIFIED: {row['verification']}"]
    if row["proxy"]:
        parts.insert(0, f"a PROXY: {row['proxy']}")
    return f"{row['variant']}: {'; '.join(parts)}."


def _short_of(ratio: Mapping[str, float | None]) -> str:
    return (
        f"only {ratio['pairs']} of {ratio['rounds']} pairs of blocks have a known active energy above 0 on "
        "both sides, and a ratio of those alone would be biased"
    )


def _interval(interval: Mapping[str, float | None], unit: str) -> str:
    ratio, low, high = interval["ratio"], interval["low"], interval["high"]
    shown = f"{ratio:.2f}{unit}"
    return shown if low is None or high is None else f"{shown} [{low:.2f}, {high:.2f}]"


def _resolution(against_itself: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a difference is worth, for each device."""
    lines = []
    for device, twins in against_itself.items():
        ratios = [f"speed-up {_interval(twins['speed_up'], 'x')}"]
        energy = twins["energy_ratio"]
        if energy is not None and energy["ratio"] is None:
            ratios.append(f"energy not known ({_short_of(energy)})")
        elif energy is not None:
            ratios.append(f"energy {_interval(energy, '')}")
        lines += [
            "",
            f"fp32 against itself on {device}, as if it were another precision: {', '.join(ratios)}. "
            "Differences of that size are noise.",
        ]
    return lines


def _where(result: Mapping[str, Any]) -> str:
    environment, data = result["environment"], result["data"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    hardware = "; ".join(f"{device}: {name}" for device, name in environment["hardware"].items())
    return (
        f"{environment['date']}, seed {environment['seed']}. Data: {data['origin']}, sha256 "
        f"{data['sha256'][:16]}. {hardware}. {versions}, {counted(environment['torch_threads'], 'thread')}, "
        f"load average before: {environment['load_average_1min']}."
    )
