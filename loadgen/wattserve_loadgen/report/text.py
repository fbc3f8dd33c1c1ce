"""What a report says in sentences: results in, text out. It knows no HTML.

Every sentence here must hold for any sweep: one arm, no meter, nothing measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from wattserve_loadgen.plan.schedule import FEWEST_BLOCKS_TO_PUBLISH, FULL, PRESETS
from wattserve_loadgen.report.sources import QUALITIES, energy_sources
from wattserve_loadgen.results.schema import Results, Search
from wattserve_loadgen.results.standing import standing_of


@dataclass(frozen=True)
class Banner:
    """`kind` is loud (must not be missed) or calm."""

    kind: str
    title: str
    text: str


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
    found += _verdict_banners(results)
    broken = [check.name for check in results.checks if check.passed is False]
    if broken:
        text = f"{sentence('; '.join(broken))} See the checklist below."
        found.append(Banner("loud", f"{_counted(len(broken), 'check')} of loadgen validate failed", text))
    return found + _publish_banners(results)


def _energy_banner(results: Results) -> Banner:
    if results.energy_reason:
        return Banner("loud", "No joules in this report", sentence(results.energy_reason))
    known = [one for one in energy_sources(results) if one.get("quality") in QUALITIES]
    if not known:
        return Banner("loud", "No joules in this report", "No meter is stated.")
    about = " ".join(
        f"Source: {one['name']}, {one['method']}. {sentence(str(one.get('note') or ''))}".strip()
        for one in known
    )
    if results.boundary:
        about += f" Metered: {sentence(results.boundary)}"
    alike = len({one["quality"] for one in known}) == 1
    which = "Every joule here is" if alike else "Some joules here are"
    source = known[0]
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
    proxies, unverified = [], []
    for arm in results.main_arms:
        variants = results.target_of(arm).server.get("variants", [])
        standing = standing_of(variants, arm.variant)
        if standing.proxy:
            proxies.append(f"{arm.name}: {sentence(standing.proxy)}")
        if standing.verified is False:
            about = next(one for one in variants if one.get("name") == arm.variant)
            unverified.append(f"{arm.name}: {sentence(str(about['verification']))}")
    found = []
    if proxies:
        text = f"Only standing in for the precision of its name. {' '.join(proxies)}"
        found.append(Banner("loud", "Not every precision here is the real one", text))
    if unverified:
        text = f"The server did not see this precision at work. {' '.join(unverified)}"
        found.append(Banner("loud", "Not every precision here is verified", text))
    return found


def _verdict_banners(results: Results) -> list[Banner]:
    """How many points a gate spoiled, and by which; what a look is too short for has its own banner."""
    codes = Counter(
        verdict.code
        for point in results.points
        for verdict in point.verdicts
        if verdict.spoils == "point" and (results.plan.withholds or verdict.code != "too short")
    )
    spoiled = sum(point.hollow for point in results.points)
    if not codes:
        return []
    why = ", ".join(f"{code} ({count})" for code, count in codes.most_common())
    done = "stands in place of its figures" if results.plan.withholds else "stands beside its figures"
    text = f"{spoiled} of {len(results.points)}: {why}. The verdict {done}, and it is drawn hollow."
    return [Banner("loud", "Some points have a verdict", text)]


def _publish_banners(results: Results) -> list[Banner]:
    plan = results.plan
    shape = f"preset {plan.preset}: {plan.blocks} blocks of {plan.seconds:g} s"
    if not plan.withholds:
        text = f"This is a look ({shape}). All is drawn hollow: good for a first sight, not for a claim."
        return [Banner("loud", "Too short to publish", text)] if results.points else []
    full = PRESETS[FULL]
    if plan.blocks < FEWEST_BLOCKS_TO_PUBLISH or plan.publish_seconds < full.publish_seconds:
        text = (
            f"{shape}. Intervals over so few blocks are wide, and slow drifts stay unseen; publish what the"
            f" preset full measures, {full.blocks} blocks or more."
        )
        return [Banner("calm", f"A quick sweep: {_counted(plan.blocks, 'block')}", sentence(text))]
    return []


def row_count(results: Results) -> str:
    """`100 rows`, or `100 images of 3 × 224 × 224`."""
    data = results.dataset
    if not data.pixel_shape:
        return f"{data.rows} rows"
    return f"{data.rows} images of {' × '.join(map(str, data.pixel_shape))}"


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
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for cell in results.cells:
        counts.update(cell.failures)
        for code in cell.failures:
            examples.setdefault(code, cell.failure_example)
    return [f"{count} × {code}, e.g. “{examples[code]}”" for code, count in counts.items()]


def unknown_reasons(results: Results) -> list[str]:
    """Each reason for an unknown energy once, with how often."""
    counts: Counter[str] = Counter()
    for cell in results.cells:
        counts.update(cell.energy.unknown_reasons)
    return [f"{count} × {reason}" for reason, count in counts.items()]


def search_sentence(search: Search) -> str:
    """`int8 within p99<50ms: the highest rate lies between 120/s and 125/s; close enough.`"""
    ended = search.ended or "the search was not finished"
    return f"{search.arm} within {search.objective}: {ended.rstrip('.')}."


def how_to_read(results: Results) -> list[str]:
    """The definitions behind the figures."""
    return [
        "Response time is from the instant at which a request was due to its answer: open loops send by a"
        " schedule, whatever is in flight. A closed loop has no schedule, each slot sends its next request"
        " when its answer is in; its latency is service time, from sending to the answer.",
        "A percentile is a value that was really seen, and is left out below the sample that bounds it with"
        " 99 % confidence (p50 11, p90 64, p95 130, p99 662, p99.9 6,636 independent answers). “≤” is that"
        " bound.",
        "Energy per request by receipts is the mean of the settled receipts of the same timed requests:"
        " active energy, above the device's idle draw. Failed requests are out of latency; what they burned"
        " is added to the answered ones. By the meter it is the meter's own count over the window, divided by"
        " the answers.",
        "The idle share of a request is the meter's idle power over its cell, divided by the throughput.",
        f"Intervals are 95 %, over {_counted(results.plan.blocks, 'block')}. Ratios are relative to"
        f" {results.baseline}, paired block by block.",
        "A point that fails a gate has a verdict and no figures; it is drawn hollow and stands on no line of"
        " best points. Only a look (preset look) shows figures beside its verdict.",
    ]


def sentence(text: str) -> str:
    """With a capital and a full stop; nothing of nothing."""
    text = text.strip()
    if not text:
        return ""
    return capitalised(text) + ("" if text.endswith((".", "!", "?")) else ".")


def capitalised(text: str) -> str:
    """With a capital at its start, the rest as it is."""
    return text[:1].upper() + text[1:]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
