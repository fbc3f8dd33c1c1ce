"""What a report says in sentences: results in, text out. It knows no HTML.

Every sentence here must hold for any sweep: one arm, no meter, nothing measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wattserve_common.stats import NO_CONCLUSION, resolution
from wattserve_loadgen import words
from wattserve_loadgen.model.results import Point, Results, Search
from wattserve_loadgen.model.server_info import standing_of
from wattserve_loadgen.plan.load import Load
from wattserve_loadgen.plan.schedule import FEWEST_BLOCKS_TO_PUBLISH, FULL, PRESETS
from wattserve_loadgen.report import scene
from wattserve_loadgen.report.facts import QUALITIES, energy_sources, origin_of
from wattserve_loadgen.report.scene import ShownPoint


def headline(results: Results) -> str:
    """A sweep in one sentence: the arm that saves most, or else used the least energy, against the baseline.

    It is of published figures, or those of a look, and claims only what the intervals and the A/A pair show.
    """
    if not results.points:
        return " ".join(map(search_sentence, results.searches)) or "Nothing was measured."
    if not scene.shown_points(results):
        return f"It ended before anything but the twin of {results.baseline} was measured."
    if not any(point.figures for point in results.points):
        return "No point of this sweep has figures: each has a verdict instead."
    load = scene.main_loads(results)[0]
    text = f"{capitalised(load.phrase)}, {_compared(results, load)}."
    return text if results.plan.withholds else f"{text} Too short to publish: only a look."


def _compared(results: Results, load: Load) -> str:
    points = {point.arm: point for point in scene.shown_under(results, load) if point.told}
    base = points.pop(results.baseline, None)
    if base is None:
        return f"{results.baseline} has no figures, so there is nothing to compare with"
    if not points:
        return _alone(base)
    best = min(points.values(), key=lambda point: (not _saves(results, point), _energy_ratio(point)))
    text = _claims(results, best)
    if all(scene.finest(results, load, metric) is None for metric in (scene.ACTIVE, scene.P50, scene.RATE)):
        text += " (without figures of an A/A pair this rig's resolution is not known)"
    foreseen = results.perplexity
    if best.arm in foreseen and base.arm in foreseen:
        own_text, other_text = (words.significant(foreseen[arm].perplexity) for arm in (best.arm, base.arm))
        text += f"; perplexity {own_text} against {other_text}"
    own, other = results.accuracy.get(best.arm), results.accuracy.get(base.arm)
    if own and other:
        text += f"; accuracy {words.percent(own.share)} against {words.percent(other.share)}"
    return text


def _alone(base: ShownPoint) -> str:
    figures = base.figures
    if figures.rate_per_second is None:
        return f"{base.arm} answered nothing"
    cost = ""
    if figures.active_uj:
        idle = f" + {words.mean_energy(figures.idle_uj)} idle" if figures.idle_uj else ""
        cost = f" at {words.mean_energy(figures.active_uj)}{idle} each"
    return f"{base.arm} answers {words.significant(figures.rate_per_second.mean)} requests per second{cost}"


def _energy_ratio(point: ShownPoint) -> float:
    ratio = point.figures.ratios.active_energy
    return ratio.mean if ratio else float("inf")


def _saves(results: Results, point: ShownPoint) -> bool:
    ratio = point.figures.ratios.active_energy
    return scene.resolved(results, point.load, ratio, scene.ACTIVE) and _energy_ratio(point) < 1


def _claims(results: Results, best: ShownPoint) -> str:
    """Only what the intervals over blocks show: a ratio whose interval holds 1 is no difference."""
    pair = f"{best.arm} and {results.baseline}"
    speed = _speed(results, best)
    ratio = best.figures.ratios.active_energy
    if ratio is None:
        link = "of" if best.load.scheduled else "as"
        if speed:
            return f"{best.arm} {speed} {link} {results.baseline}"
        return f"no difference in speed between {pair} could be shown"
    quality = energy_sources(results)[0].get("quality")
    kind = f" ({quality})" if quality in ("estimated", "simulated") else ""
    if not scene.resolved(results, best.load, ratio, scene.ACTIVE):
        text = f"no difference in active energy per request{kind} between {pair} could be shown"
        return f"{text}; {best.arm} {speed}" if speed else f"{text}, nor in speed"
    share = words.percent(abs(ratio.mean - 1), 0)
    if ratio.mean < 1:
        text = f"{best.arm} saves {share} of the active energy per request{kind} of {results.baseline}"
    else:
        text = f"{best.arm} needs {share} more active energy per request{kind} than {results.baseline}"
    text += _with_idle(results, best)
    return f"{text} and {speed}" if speed else f"{text}; no difference in speed could be shown"


def _with_idle(results: Results, best: ShownPoint) -> str:
    """What is left of it where the idle draw is shared out too, which is most of what a small model uses."""
    total = best.figures.ratios.total_energy
    if total is None:
        return ""
    if not scene.resolved(results, best.load, total, scene.TOTAL):
        return " (with its share of the idle draw no difference could be shown)"
    change = words.percent(abs(total.mean - 1), 0)
    return f" ({change} {'less' if total.mean < 1 else 'more'} with its share of the idle draw)"


def _speed(results: Results, best: ShownPoint) -> str:
    """How fast it is: by throughput, or under a schedule by latency; "" when that is no difference."""
    ratios = best.figures.ratios
    if best.load.scheduled:
        ratio, metric, text = ratios.p50, scene.P50, f"has {words.times(ratios.p50)} the median latency"
    else:
        ratio, metric = ratios.rate, scene.RATE
        text = f"answers {words.times(ratios.rate)} as many requests per second"
    return text if scene.resolved(results, best.load, ratio, metric) else ""


def twin_sentence(results: Results, load: Load) -> str:
    """`fp32, measured twice under two names, differed by +1.2 % (−0.5 to +3.0 %) in active energy ...`; empty
    without a twin, or without a figure of it under that load.
    """
    twin = scene.twin_under(results, load)
    texts = []
    for metric in scene.METRICS:
        ratio = None if twin is None else metric.of(twin.figures.ratios)
        if ratio is None:
            continue
        if (resolution(ratio) or 0.0) > NO_CONCLUSION:
            texts.append(f"more than 2× in {metric.name} (no conclusion)")
            continue
        reach = ""
        if ratio.low is not None and ratio.high is not None:
            reach = f" ({words.signed((ratio.low - 1) * 100, 1)} to {words.change(ratio.high - 1)})"
        texts.append(f"{words.change(ratio.mean - 1)}{reach} in {metric.name}")
    if not texts:
        return ""
    return (
        f"{results.baseline}, measured twice under two names, differed {load.phrase} by {', '.join(texts)}:"
        " smaller differences than that mean nothing here."
    )


def twin_sentences(results: Results) -> list[str]:
    """One for each main load, or why there is none."""
    if not results.points:
        return []
    if scene.twin_of_baseline(results) is None:
        return ["No variant was measured twice under two names, so this rig's own resolution is not known."]
    texts = [text for load in scene.main_loads(results) if (text := twin_sentence(results, load))]
    return texts or [
        "The baseline's second measurement has no figures: the rig's own resolution is not known."
    ]


@dataclass(frozen=True)
class Banner:
    """What a reader must know before any figure."""

    title: str
    text: str
    kind: str = "loud"  # must not be missed; or calm


def banners(results: Results) -> list[Banner]:
    lines = []
    if not results.complete:
        lines.append(
            Banner("This sweep ended early", f"{sentence(results.ended)} {sentence(progress(results))}")
        )
    failed = sum(sum(cell.failures.values()) for cell in results.cells)
    if failed:
        text = f"{failed} requests failed: {'; '.join(failures(results))}."
        lines.append(Banner("Some requests failed", text))
    lines.append(_energy_banner(results))
    lines += _precision_banners(results)
    lines += _verdict_banners(results)
    broken = [check.name for check in results.checks if check.passed is False]
    if broken:
        text = f"{sentence('; '.join(broken))} See the checklist below."
        lines.append(Banner(f"{words.counted(len(broken), 'check')} of loadgen validate failed", text))
    return lines + _publish_banners(results)


def progress(results: Results) -> str:
    """`9 of 12 cells were measured`"""
    if not results.cells_planned:
        return "nothing was measured beside the search"
    return f"{len(results.cells)} of {words.counted(results.cells_planned, 'cell')} were measured"


def _energy_banner(results: Results) -> Banner:
    sources = [source for source in energy_sources(results) if source.get("quality") in QUALITIES]
    if results.energy_reason or not sources:
        return Banner("No joules in this report", sentence(results.energy_reason or "no meter is stated"))
    about = " ".join(
        f"{sentence(origin_of(source))} {sentence(str(source.get('note') or ''))}".strip()
        for source in sources
    )
    if results.boundary:
        about += f" Metered: {sentence(results.boundary)}"
    worst = sources[0]
    if worst["quality"] == "measured":
        return Banner("The sums were measured, and apportioned to requests", about, "calm")
    alike = all(source["quality"] == worst["quality"] for source in sources)
    origin = "No sensor was read."
    if worst["quality"] == "simulated":
        replayed = str(worst["name"]).startswith("replay of ")
        maker = "A recording was played back" if replayed else "A declared power law made them"
        origin = f"{maker}, not a sensor of the server."
    which = "Every joule here is" if alike else "Some joules here are"
    return Banner(f"{which} {worst['quality'].upper()}", f"{origin} {about}")


def _precision_banners(results: Results) -> list[Banner]:
    proxies, unverified = [], []
    for arm in results.main_arms:
        about = results.about(arm)
        standing = standing_of(about)
        if standing.proxy:
            proxies.append(f"{arm.name}: {sentence(standing.proxy)}")
        if standing.verified is False:
            unverified.append(f"{arm.name}: {sentence(str(about['verification']))}")
    lines = []
    if proxies:
        text = f"A proxy stands in for the precision of its name. {' '.join(proxies)}"
        lines.append(Banner("Not every precision here is the real one", text))
    if unverified:
        text = f"The server did not see this precision at work. {' '.join(unverified)}"
        lines.append(Banner("Not every precision here is verified", text))
    return lines


def _verdict_banners(results: Results) -> list[Banner]:
    text = verdicts_sentence(results)
    return [Banner("Some points have a verdict", f"{text}. Charts draw them hollow.")] if text else []


def verdicts_sentence(results: Results) -> str:
    """What speaks against some of the points, and against the joules alone of others; "" where nothing does.

    `3 of 6 points have a verdict instead of figures: too short (3), drift (1)`
    """
    figures, joules = [], []
    for point in results.points:
        if codes := told_codes(results, point, "point"):
            figures.append(codes)
        elif codes := told_codes(results, point, "energy"):
            joules.append(codes)
    held = "instead of" if results.plan.withholds else "beside"
    of_all = f"of {words.counted(len(results.points), 'point')}"
    return "; ".join(
        f"{len(spoiled)} {of_all} {'has' if len(spoiled) == 1 else 'have'} a verdict {held} {what}:"
        f" {_tally(spoiled)}"
        for spoiled, what in ((figures, "figures"), (joules, "joules"))
        if spoiled
    )


def _tally(spoiled: Sequence[Sequence[str]]) -> str:
    """How many of the points each code speaks against, the most frequent first."""
    counts = Counter(code for codes in spoiled for code in codes)
    return ", ".join(f"{code} ({count})" for code, count in counts.most_common())


def told_codes(results: Results, point: Point, *spoils: str) -> list[str]:
    """Of its verdicts that spoil one of these. What a look is too short for is said once, of all points."""
    return list(
        dict.fromkeys(
            verdict.code
            for verdict in point.verdicts
            if verdict.spoils in spoils and (results.plan.withholds or verdict.code != "too short")
        )
    )


def _publish_banners(results: Results) -> list[Banner]:
    plan, full = results.plan, PRESETS[FULL]
    shape = f"preset {plan.preset}: {plan.blocks} blocks of {plan.seconds:g} s"
    if not plan.withholds:
        text = f"This is a look ({shape}). Every point is drawn hollow: a first sight, not a claim."
        return [Banner("Too short to publish", text)] if results.points else []
    if plan.blocks >= FEWEST_BLOCKS_TO_PUBLISH and plan.publish_seconds >= full.publish_seconds:
        return []
    text = (
        f"{capitalised(shape)}. Intervals over so few blocks are wide, and slow drifts stay unseen. Publish"
        f" what the preset full measures: {full.blocks} blocks or more."
    )
    return [Banner(f"A quick sweep: {words.counted(plan.blocks, 'block')}", text, "calm")]


def accuracy_sentence(results: Results) -> str:
    """What the column of accuracy, or of perplexity, rests on."""
    if results.perplexity:
        rows = next(iter(results.perplexity.values()))
        return (
            f"Perplexity is of {rows.rows:,} rows held out ({results.held_out}), {rows.tokens:,} tokens that"
            " have others before them. Its interval is a bootstrap over the rows, 95 %."
        )
    if results.generates:
        return "Perplexity: not measured, because no rows were held out (--held-out)."
    if results.accuracy_reason:
        return f"Accuracy: not applicable, because {results.accuracy_reason}."
    text = (
        f"Accuracy is that of the timed answers, on the {results.accuracy_rows} of {results.dataset.rows}"
        " dataset rows that every variant answered. Each row counts once. The interval is Wilson's, 95 %."
    )
    if results.dataset.unlabelled_rows:
        text += f" {words.unlabelled(results.dataset.unlabelled_rows, results.dataset.rows)}."
    unstable = {name: share.unstable_rows for name, share in results.accuracy.items() if share.unstable_rows}
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
    """`int8 within p99<50ms: the highest rate lies between 120/s and 125/s; p99 above 51.0 ms.`"""
    ended = search.ended or f"{search.bracket}; the search was not finished"
    return f"{search.arm} within {search.objective}: {ended.rstrip('.')}."


def how_to_read(results: Results) -> list[str]:
    """The definitions behind the figures."""
    return [
        "Response time counts from the instant at which a request was due to its answer. An open loop sends"
        " by a schedule, whatever is in flight. A closed loop has no schedule: each slot sends its next"
        " request when its answer is in. Its latency is service time, from sending to the answer.",
        "A percentile is a value that was really seen. It is left out below the sample that bounds it with 99"
        " % confidence: 11 independent answers for p50, 64 for p90, 130 for p95, 662 for p99, 6,636 for"
        " p99.9. “≤” is that bound.",
        "Energy per request by receipts is the mean of the settled receipts of the timed requests. A receipt"
        " is a share: what is measured, estimated or simulated is the sum that the meter counted, which is"
        " then apportioned to requests. It is active energy: what the device draws above its idle power. A"
        " failed request has no latency here; the answered requests carry the energy that it burned. Energy"
        " per request by the meter is the meter's own count over the window, divided by the answers.",
        "The idle share of a request is the meter's idle power over its cell, divided by the throughput.",
        "Model size is what a variant's weights take of memory.",
        *(_how_to_read_tokens() if results.generates else ()),
        f"Intervals are 95 %, over {blocks_of(results)}. Ratios are relative to"
        f" {results.baseline}, paired block by block.",
        "A point that fails a gate has a verdict and no figures. It is drawn hollow and stands on no line of"
        " best points. Only a look (preset look) shows figures beside a verdict.",
    ]


def blocks_of(results: Results) -> str:
    """Over how many an interval is taken: of a sweep that ended early fewer than were planned."""
    rates = [point.figures.rate_per_second for point in results.points if point.figures is not None]
    return words.counted(max([rate.n for rate in rates if rate], default=results.plan.blocks), "block")


def _how_to_read_tokens() -> list[str]:
    return [
        "TTFT is the time to the first token, counted as latency is. TPOT is the time per output token"
        " behind the first, the mean of each request. ITL is the time from a message with tokens to the next,"
        " each gap by itself. Every answer is greedy and as long as the dataset says, behind end tokens too,"
        " so that all variants do the same work.",
        "Energy per output token is a request's active energy over the tokens that it wrote: it holds what"
        " reading the prompt cost. The receipts tell prompt and generation apart. Overhead is the reading"
        " again of what a preemption had lost; it is booked with the server's warm-up, and in no receipt.",
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
