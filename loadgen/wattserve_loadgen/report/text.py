"""What a report says in sentences: results in, text out. It knows no HTML.

Every sentence here must hold for any sweep: one variant, no meter, nothing measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wattserve_loadgen import words
from wattserve_loadgen.figures.points import CLIENT_CPU_LIMIT
from wattserve_loadgen.figures.stats import Interval
from wattserve_loadgen.results.schema import Point, Results
from wattserve_loadgen.results.standing import standing_of


@dataclass(frozen=True)
class Banner:
    """`kind` is loud (must not be missed) or calm."""

    kind: str
    title: str
    text: str


def energy_sources(results: Results) -> list[dict[str, Any]]:
    """An EnergySource for each meter of the swept variants' devices, the least trustworthy first.

    As the server stated them; [{}] when it stated none.
    """
    server = results.server
    meters = [server.get("meter") or {}]
    if others := server.get("other_meters"):
        swept = [one for one in server.get("variants", []) if one["name"] in results.plan.variants]
        devices = {one.get("device") for one in swept}
        meters = [one for one in (*meters, *others) if one.get("device") in devices] or meters
    sources = [meter.get("source") or {} for meter in meters]
    return sorted(sources, key=lambda source: _QUALITIES.get(source.get("quality", ""), len(_QUALITIES)))


def energy_source(results: Results) -> dict[str, Any]:
    """The least trustworthy of `energy_sources`."""
    return energy_sources(results)[0]


def source_line(results: Results) -> str:
    """`estimate · apportioned estimate · ESTIMATED`: what every caption carries."""
    lines = [
        f"{source['name']} · {source['method']} · {source['quality'].upper()}"
        for source in energy_sources(results)
        if source.get("quality") in _QUALITIES
    ]
    return " and ".join(lines) or "no meter: no joules"


_QUALITIES = {"simulated": 0, "estimated": 1, "measured": 2}


def banners(results: Results) -> list[Banner]:
    """What a reader must know before any figure."""
    found = []
    if not results.complete:
        done = f"{len(results.cells)} of {results.cells_planned} cells were measured"
        found.append(Banner("loud", "This sweep ended early", f"{sentence(results.ended)} {done}."))
    failed = sum(sum(cell.failures.values()) for cell in results.cells)
    if failed:
        text = f"{failed} requests failed: {'; '.join(failures(results))}."
        found.append(Banner("loud", "Some requests failed", text))
    found.append(_energy_banner(results))
    found += _precision_banners(results)
    short = [point for point in results.points if any(one.code == "too short" for one in point.verdicts)]
    if short:
        plan = results.plan
        text = (
            f"{len(short)} of {len(results.points)} points were measured for less time than a published"
            f" figure needs (preset {plan.preset}: {plan.blocks} blocks of {plan.seconds:g} s)."
            " They are drawn hollow: good for a look, not for a claim."
        )
        found.append(Banner("loud", "Too short to publish", text))
    return found


def _energy_banner(results: Results) -> Banner:
    if results.energy_reason:
        return Banner("loud", "No joules in this report", sentence(results.energy_reason))
    sources = energy_sources(results)
    source = sources[0]
    about = " ".join(
        f"Source: {one['name']}, {one['method']}. {sentence(one['note'])}".strip()
        for one in sources
        if one.get("quality") in _QUALITIES
    )
    alike = len({one.get("quality") for one in sources}) == 1
    which = "Every joule here is" if alike else "Some joules here are"
    if source["quality"] == "measured":
        return Banner("calm", "Energy was measured", about)
    if source["quality"] == "simulated":
        replayed = str(source["name"]).startswith("replay of ")
        maker = "A recording was played back" if replayed else "A declared power law made them"
        text = f"{maker}, not a sensor of the server. {about}"
        return Banner("loud", f"{which} SIMULATED", text)
    text = f"Computed from activity and configured watts; no sensor was read. {about}"
    return Banner("loud", f"{which} ESTIMATED", text)


def _precision_banners(results: Results) -> list[Banner]:
    swept = [one for one in results.server.get("variants", []) if one["name"] in results.plan.variants]
    proxies = [f"{one['name']}: {sentence(one['proxy'])}" for one in swept if one.get("proxy")]
    unverified = [
        f"{one['name']}: {sentence(one['verification'])}"
        for one in swept
        if standing_of(swept, one["name"]).verified is False
    ]
    found = []
    if proxies:
        text = f"Only standing in for the precision of its name. {' '.join(proxies)}"
        found.append(Banner("loud", "Not every precision here is the real one", text))
    if unverified:
        text = f"The server did not see this precision at work. {' '.join(unverified)}"
        found.append(Banner("loud", "Not every precision here is verified", text))
    return found


def row_count(results: Results) -> str:
    """`100 rows`, or `100 images of 3 × 224 × 224`."""
    data = results.dataset
    if not data.pixel_shape:
        return f"{data.rows} rows"
    return f"{data.rows} images of {' × '.join(map(str, data.pixel_shape))}"


def headline(results: Results) -> str:
    """The sweep in one sentence: the variant that used the least energy at the highest concurrency."""
    top = max((point.concurrency for point in results.points), default=0)
    points = [point for point in results.points if point.concurrency == top and point.rate_per_second]
    base = next((point for point in points if point.variant == results.baseline), None)
    if base is None or base.rate_per_second is None:
        if not results.points:
            return "Nothing was measured."
        return (
            f"{results.baseline} was not measured at concurrency {top}, so there is nothing to compare with."
        )
    rivals = [point for point in points if point.variant != results.baseline]
    if not rivals:
        each = f" at {words.mean_energy(base.active_uj)} each" if base.active_uj else ""
        speed = words.significant(base.rate_per_second.mean)
        return f"At concurrency {top}, {base.variant} answers {speed} requests per second{each}."
    best = min(rivals, key=lambda one: one.energy_ratio.mean if one.energy_ratio else float("inf"))
    text = f"At concurrency {top}, {_claims(results, best)}"
    own, other = results.accuracy.get(best.variant), results.accuracy.get(base.variant)
    if own and other:
        text += f"; accuracy {words.percent(own.share)} against {words.percent(other.share)}"
    return text + "."


def _claims(results: Results, best: Point) -> str:
    """Only what the intervals over blocks show: a ratio whose interval holds 1 is no difference."""
    pair = f"{best.variant} and {results.baseline}"
    if _shows(best.speed_ratio):
        speed = f"answers {words.times(best.speed_ratio)} as many requests per second"
    else:
        speed = "no difference in speed"
    if best.energy_ratio is None:
        if _shows(best.speed_ratio):
            return f"{best.variant} {speed} as {results.baseline}"
        return f"{speed} between {pair} could be shown"
    quality = energy_source(results).get("quality")
    kind = f" ({quality})" if quality in ("estimated", "simulated") else ""
    if not _shows(best.energy_ratio):
        text = f"no difference in active energy per request{kind} between {pair} could be shown"
        return f"{text}; {best.variant} {speed}" if _shows(best.speed_ratio) else f"{text}, nor in speed"
    change = best.energy_ratio.mean - 1
    less = f"{words.percent(abs(change), 0)} {'less' if change < 0 else 'more'}"
    text = f"{best.variant} needs {less} active energy per request{kind} than {results.baseline}"
    return f"{text} and {speed}" if _shows(best.speed_ratio) else f"{text}; {speed} could be shown"


def _shows(ratio: Interval | None) -> bool:
    """Whether a ratio's interval excludes 1."""
    return ratio is not None and None not in (ratio.low, ratio.high) and not ratio.low <= 1 <= ratio.high  # type: ignore[operator]


def accuracy_sentence(results: Results) -> str:
    """What the accuracy column rests on."""
    if results.accuracy_reason:
        return f"Accuracy: not applicable, because {results.accuracy_reason}."
    text = (
        f"Accuracy is of the same timed answers, on the {results.accuracy_rows} of {results.dataset.rows}"
        " dataset rows that every variant answered, each row counted once, with Wilson's 95 % interval."
    )
    unstable = {name: one.unstable_rows for name, one in results.accuracy.items() if one.unstable_rows}
    if unstable:
        counts = ", ".join(f"{name}: {count}" for name, count in unstable.items())
        text += f" Rows whose answer changed between repetitions: {counts}."
    return text


def failures(results: Results) -> list[str]:
    """Each kind of failure once, with how often and an example."""
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}
    for cell in results.cells:
        for code, count in cell.failures.items():
            counts[code] = counts.get(code, 0) + count
            examples.setdefault(code, cell.failure_example)
    return [f"{count} × {code}, e.g. “{examples[code]}”" for code, count in counts.items()]


def unknown_reasons(results: Results) -> list[str]:
    """Each reason for an unknown energy once, with how often."""
    counts: dict[str, int] = {}
    for cell in results.cells:
        for reason, count in cell.energy.unknown_reasons.items():
            counts[reason] = counts.get(reason, 0) + count
    return [f"{count} × {reason}" for reason, count in counts.items()]


def how_to_read(results: Results) -> list[str]:
    """The definitions behind the figures."""
    return [
        "Latency is from sending a request to having its answer, in a closed loop: there is no arrival"
        " schedule, each slot sends its next request when its answer is in.",
        "A percentile is a value that was really seen, and is left out below the sample that bounds it with"
        " 99 % confidence (p50 11, p90 64, p95 130, p99 662, p99.9 6,636 answers).",
        "Energy per request is the mean of the settled receipts of the same timed requests: active energy,"
        " above the device's idle draw. Failed requests are out of latency; what they burned is added to the"
        " answered ones.",
        "The idle share of a request is the meter's idle power over its cell, divided by the throughput.",
        f"Intervals are 95 %, over {results.plan.blocks} blocks. Speed-up (answers per second) and energy"
        f" ratio (active) are relative to {results.baseline}, paired block by block.",
        "A point has a verdict when it is too short, incomplete or failing, or when the client used over"
        f" {words.percent(CLIENT_CPU_LIMIT, 0)} of a core. Points with a verdict are drawn hollow.",
    ]


def sentence(text: str) -> str:
    """With a capital and a full stop; nothing of nothing."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
