"""The tables of a report: results in, rows of text out. It knows no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median

from wattserve_loadgen import words
from wattserve_loadgen.model.cells import CellEnergy
from wattserve_loadgen.model.results import OUTCOMES, Accuracy, Figures, Point, Results
from wattserve_loadgen.plan.load import Arm, Load
from wattserve_loadgen.report.boxes import Box, Table, box, percentile_box, signed_bounds, table_of, times_box
from wattserve_loadgen.report.scene import METRICS, accuracy_difference, point_of, twin_of_baseline
from wattserve_loadgen.report.token_tables import perplexity_texts

_SUMMARY = ("answers/s", "latency p50", "p95", "p99", "energy per request")
_SUMMARY_OF_TOKENS = ("output tokens/s", "TTFT p50", "TPOT p50", "latency p50", "energy per output token")


def summary_table(results: Results, load: Load) -> Table:
    """The arms side by side under one load. A spoiled point has its verdict in place of its figures.

    Under a schedule the rate is what was offered: speed is then told by the median latency.
    """
    speed = "p50 ratio" if load.scheduled else "speed-up"
    rows = [
        _summary_row(results, arm, load, point)
        for arm in results.main_arms
        if (point := point_of(results, arm.name, load)) is not None
    ]
    figures, quality = (_SUMMARY_OF_TOKENS, "perplexity") if results.generates else (_SUMMARY, "accuracy")
    columns = ("precision", "device", *figures, quality, "model size", speed, "energy ratio")
    return Table(columns, rows, numbers_from=2)


def _summary_row(results: Results, arm: Arm, load: Load, point: Point) -> Sequence[Box]:
    about, figures = results.about(arm), point.figures
    codes = ", ".join(verdict.code for verdict in point.verdicts)
    boxes, ratios = [Box(verdict_text(point), span=len(_SUMMARY))], [Box(words.ABSENT), Box(words.ABSENT)]
    if figures is not None:
        boxes = _summary_figures(point, figures)
        speed = figures.ratios.p50 if load.scheduled else figures.ratios.rate
        energy = figures.ratios.token_energy if results.generates else figures.ratios.active_energy
        ratios = [times_box(speed), times_box(energy)]
        if arm.name == results.baseline:
            ratios = [Box("1", "baseline"), Box("1", "baseline") if figures.active_uj else ratios[1]]
    return [
        Box(arm.name, codes if figures is not None and point.hollow else ""),
        Box(str(about.get("device") or words.ABSENT)),
        *boxes,
        _quality_box(results, arm),
        Box(words.bytes_size(about.get("parameter_bytes"))),
        *ratios,
    ]


def _summary_figures(point: Point, figures: Figures) -> list[Box]:
    if (generated := figures.generated) is not None:
        per_token = generated.active_uj_per_output_token
        return [
            box(generated.output_tokens_per_second, words.significant),
            percentile_box(generated.ttft, "p50"),
            percentile_box(generated.tpot, "p50"),
            percentile_box(figures.latency, "p50"),
            box(per_token, words.energy, words.energy_bounds)
            if per_token
            else _summary_energy(point, figures),
        ]
    return [
        box(figures.rate_per_second, words.significant),
        *(percentile_box(figures.latency, percentile) for percentile in ("p50", "p95", "p99")),
        _summary_energy(point, figures),
    ]


def _quality_box(results: Results, arm: Arm) -> Box:
    if (perplexity := results.perplexity.get(arm.name)) is not None:
        return Box(*perplexity_texts(perplexity))
    return Box("not applicable") if results.accuracy_reason else _share_box(results.accuracy.get(arm.name))


def _summary_energy(point: Point, figures: Figures) -> Box:
    if figures.active_uj is None:
        spoiled = [verdict.code for verdict in point.verdicts if verdict.spoils == "energy"]
        return Box(words.ABSENT, ", ".join(spoiled))
    idle = f"+ {words.mean_energy(figures.idle_uj)} idle" if figures.idle_uj else ""
    return Box(words.mean_energy(figures.active_uj), idle)


def verdict_text(point: Point, otherwise: str = "no figures") -> str:
    return "; ".join(verdict.text for verdict in point.verdicts) or otherwise


def ratio_table(results: Results, load: Load) -> Table:
    """Paired ratios to the baseline under one load; last, the baseline's twin: what equal arms differ by."""
    twin = twin_of_baseline(results)
    names = [arm.name for arm in results.main_arms if arm.name != results.baseline] + ([twin] if twin else [])
    metrics = [metric for metric in METRICS if results.generates or not metric.of_tokens]
    rows = []
    for name in names:
        point = point_of(results, name, load)
        if point is None:
            continue
        boxes = []
        if point.figures is not None:
            boxes = [times_box(metric.of(point.figures.ratios)) for metric in metrics]
        if all(box.text == words.ABSENT for box in boxes):
            reason = verdict_text(point) if point.figures is None else point.figures.ratios.reason
            boxes = [Box(reason or words.ABSENT, span=len(metrics))]
        rows.append([Box(name, "the baseline again" if name == twin else ""), *boxes])
    return Table((f"against {results.baseline}", *(metric.name for metric in metrics)), rows)


_ENERGY = {
    "active": "active_uj",
    "idle share": "idle_uj",
    "total by receipts": "total_uj",
    "by the meter": "meter_uj",
    "difference": "meter_difference",
}
_ENERGY_OF_GENERATION = {
    "per output token": "generated.active_uj_per_output_token",
    "per total token": "active_uj_per_token",
    "prompt": "generated.prompt_uj",
    "generation": "generated.output_uj",
    "overhead": "generated.overhead_uj",
    "energy × latency": "generated.energy_delay_uj_seconds",
}
_ENERGY_OF_TOKENS = {
    "active per token": "active_uj_per_token",
    "per padded token": "active_uj_per_padded_token",
}


def energy_table(results: Results, loads: Sequence[Load]) -> Table:
    """Per request, by receipts and by the meter's own count, with intervals over blocks."""
    has_no_tokens = results.dataset.pixel_shape or results.generates
    return _energies(results, loads, _ENERGY if has_no_tokens else _ENERGY | _ENERGY_OF_TOKENS)


def generation_energy_table(results: Results, loads: Sequence[Load]) -> Table:
    """Of a language model: active energy by token, and where that of a request went."""
    return _energies(results, loads, _ENERGY_OF_GENERATION)


def _energies(results: Results, loads: Sequence[Load], columns: Mapping[str, str]) -> Table:
    rows = []
    for arm in results.main_arms:
        for load in loads:
            point = point_of(results, arm.name, load)
            if point is None or not (point.figures or (point.withheld and point.withheld.active_uj)):
                continue
            figures = point.figures
            boxes = [Box(verdict_text(point), span=len(columns))]
            if figures is not None:
                boxes = [_energy_column(figures, field) for field in columns.values()]
                if figures.active_uj is None and figures.meter_uj is None:
                    if figures.energy_reason == results.energy_reason:
                        continue
                    boxes = [Box(figures.energy_reason, span=len(columns))]
            rows.append([Box(arm.name), Box(load.name), *boxes])
    return Table(("variant", "load", *columns), rows, numbers_from=2)


def _energy_column(figures: Figures, field: str) -> Box:
    is_missing = field.startswith("generated.") and figures.generated is None  # nothing was answered
    interval = None if is_missing else attrgetter(field)(figures)
    if field == "meter_difference":
        return box(interval, words.change, lambda interval: signed_bounds(interval, 100))
    if field.endswith("seconds"):
        return box(interval, lambda uj_s: f"{words.energy(uj_s)}·s", words.energy_bounds)
    return box(interval, words.energy, words.energy_bounds)


def accuracy_table(results: Results) -> Table:
    """Each arm on the same rows, and paired with the baseline."""
    return table_of(
        [
            _accuracy_row(arm.name, results.accuracy[arm.name])
            for arm in results.plan.arms
            if arm.name in results.accuracy and not (arm.twin_of and arm.twin_of != results.baseline)
        ]
    )


def _accuracy_row(arm: str, accuracy: Accuracy) -> dict[str, str | Box]:
    difference = accuracy_difference(accuracy)
    return {
        "variant": arm,
        "right": f"{accuracy.correct:,} of {accuracy.rows:,}",
        "accuracy": _share_box(accuracy),
        "difference": box(difference, lambda points: f"{words.signed(points, 1)} points", signed_bounds),
        "gained": _count(accuracy.gained_rows),
        "lost": _count(accuracy.lost_rows),
        "p (McNemar)": words.ABSENT if accuracy.p_value is None else f"{accuracy.p_value:.3g}",
        "unstable rows": _count(accuracy.unstable_rows),
    }


def servers_table(results: Results) -> Table:
    """Of a fleet: what each server did under each load, over all blocks."""
    rows: list[dict[str, str | Box]] = []
    for point in results.points:
        cells = results.cells_of(point)
        for address in dict.fromkeys(part.address for cell in cells for part in cell.servers):
            parts = [part for cell in cells for part in cell.servers if part.address == address]
            answered = sum(part.answered for part in parts)
            spent = [
                (part.active_uj_per_request, part.answered)
                for part in parts
                if part.active_uj_per_request is not None
            ]
            weight = sum(count for _, count in spent)
            metered = [part.measured_uj for part in parts if part.measured_uj is not None]
            rows.append(
                {
                    "variant": point.arm,
                    "load": point.load,
                    "server": address,
                    "answers": f"{answered:,}",
                    "failed": f"{sum(part.failed for part in parts):,}",
                    "latency p50": words.milliseconds(_middle([part.p50_ns for part in parts])),
                    "active per request": words.energy(
                        sum(uj * count for uj, count in spent) / weight if weight else None
                    ),
                    "metered": words.energy(sum(metered) if metered else None),
                    "no joules because": next((part.reason for part in parts if part.reason), ""),
                }
            )
    return table_of(rows, numbers_from=3, texts_at_end=1)


def _middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


_ACCOUNTS = {
    "measured": "measured_uj",
    "active": "active_uj",
    "other variants, warm-up": "other_active_uj",
    "idle": "idle_uj",
    "unattributed": "unattributed_uj",
    "meter gaps": "gap_uj",
    "pending": "pending_uj",
    "measured − sum": "accounts_residual_uj",
    "receipts": "receipts_uj",
    "active − receipts": "receipts_residual_uj",
}


def closure_table(results: Results) -> Table:
    """The ledger's growth over the cells of each arm, and what the receipts say."""
    rows: list[dict[str, str | Box]] = []
    metered = [cell for cell in results.cells if cell.energy.measured_uj is not None]
    for arm in results.plan.arms:
        energies = [cell.energy for cell in metered if cell.arm == arm.name]
        if energies:
            sums = {name: _sum(energies, account) for name, account in _ACCOUNTS.items()}
            rows.append({"cells of": arm.name, **sums})
    return table_of(rows)


def _sum(energies: Sequence[CellEnergy], account: str) -> str:
    stated = [value for energy in energies if (value := getattr(energy, account)) is not None]
    return words.energy(sum(stated) if stated else None)


def validity_table(results: Results) -> Table:
    """Every point, the twin's too, with what its figures rest on and what the gates say."""
    rows = [_validity_row(results, point) for point in results.points]
    return table_of(rows, numbers_from=2, texts_at_end=1)


def _validity_row(results: Results, point: Point) -> dict[str, str | Box]:
    cells = results.cells_of(point)
    figures = point.figures or point.withheld
    effective = figures.latency.effective_samples if figures else None
    cost = figures.client_cpu_us_per_request if figures else None
    late = sum(cell.late or 0 for cell in cells)
    lag = words.milliseconds(figures.lag.p99_ns if figures and figures.lag else None)
    return {
        "variant": point.arm,
        "load": point.load,
        "blocks": f"{point.blocks} of {results.plan.blocks}",
        "window": f"{point.window_seconds:.1f} s",
        "answers": f"{point.answered:,}",
        "failed": f"{point.failed:,}",
        "independent samples": _samples(effective),
        "lag p99": f"{lag}, {late:,} late" if late else lag,
        "unknown energy": "all"
        if results.energy_reason
        else f"{sum(cell.energy.unknown for cell in cells):,}",
        "client CPU": words.percent(figures.client_cpu_share if figures else None, 0),
        "CPU per request": words.ABSENT if cost is None else f"{words.significant(cost)} µs",
        "verdict": verdict_text(point, otherwise="passed"),
    }


def gates_table(results: Results) -> Table:
    """Every gate that a point failed, with the points that did; what is not listed was passed by all."""
    failed: dict[tuple[str, str], list[Point]] = {}
    for point in results.points:
        for verdict in dict.fromkeys((verdict.code, verdict.spoils) for verdict in point.verdicts):
            failed.setdefault(verdict, []).append(point)
    rows = [
        {
            "gate": code,
            "points that failed": f"{len(points)} of {len(results.points)}",
            "spoils": "all its figures" if spoils == "point" else "its joules",
            "which": "; ".join(f"{point.arm}, {point.load}" for point in points),
        }
        for (code, spoils), points in failed.items()
    ]
    return table_of(rows, numbers_from=9)


def checks_table(results: Results) -> Table:
    """The checklist of `loadgen validate`."""
    columns = ("check", "result", "what was seen")
    rows = [(Box(check.name), Box(check.outcome), Box(check.text)) for check in results.checks]
    return Table(columns, rows, numbers_from=9)


def trials_table(results: Results) -> Table:
    """Every rate that a search tried, in the order in which it did."""
    rows = [
        {
            "variant": search.arm,
            "objective": search.objective,
            "offered": words.rate(trial.rate_per_second),
            "achieved": words.rate(trial.achieved_per_second),
            "for": f"{trial.seconds:.1f} s",
            "answers": words.ABSENT if trial.answered is None else f"{trial.answered:,}",
            "independent samples": _samples(trial.effective_samples),
            "outcome": OUTCOMES[trial.judgement],
            "what decided": trial.text,
        }
        for search in results.searches
        for trial in search.trials
    ]
    return table_of(rows, numbers_from=2, texts_at_end=2)


def _share_box(accuracy: Accuracy | None) -> Box:
    if accuracy is None:
        return Box(words.ABSENT)
    return Box(words.percent(accuracy.share), f"{accuracy.low * 100:.1f}–{accuracy.high * 100:.1f}")


def _samples(effective: float | None) -> str:
    return words.ABSENT if effective is None else f"≈ {effective:,.0f}"


def _count(value: int | None) -> str:
    return words.ABSENT if value is None else f"{value:,}"
