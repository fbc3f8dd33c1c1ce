"""The page: what was found, in Markdown, the verdicts first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattserve_common.stats import Interval
from wattserve_server.console import amount
from wattserve_server.verify.beside import DeviceTime, Perturbation
from wattserve_server.verify.idle import Idle
from wattserve_server.verify.mixed import Mixed
from wattserve_server.verify.response import StepResponse
from wattserve_server.verify.results import Results
from wattserve_server.verify.sensor import CounterBeat, Sensor
from wattserve_server.verify.waves import Waves

_UNKNOWN = "not known"


def page(results: Results) -> str:
    lines = ["# What `wattserve meter verify` found", ""]
    if results.is_interrupted:
        lines += ["**INTERRUPTED.** What was not reached is not measured.", ""]
    lines += [f"**{results.conclusion}**", "", *_verdicts(results), "", *_identity(results)]
    if results.idle is not None:
        lines += ["", *_idle(results, results.idle)]
    if results.sensor is not None:
        lines += ["", *_sensor(results, results.sensor)]
    if results.response is not None:
        lines += ["", *_response(results.response)]
    if results.waves is not None:
        lines += ["", *_waves(results.waves)]
    if results.mixed is not None:
        lines += ["", *_mixed(results.mixed)]
    if results.perturbation is not None:
        lines += ["", *_perturbation(results.perturbation)]
    if results.device_time is not None:
        lines += ["", *_device_time(results.device_time)]
    return "\n".join(lines) + "\n"


def _verdicts(results: Results) -> Iterator[str]:
    yield from _table(
        ("question", "verdict", "why"),
        [(verdict.name, verdict.status.value, verdict.why) for verdict in results.verdicts()],
    )


def _identity(results: Results) -> Iterator[str]:
    yield "## What was verified"
    yield ""
    rows = [("started", results.started), ("took", amount(results.took_s, "s"))]
    if results.source is not None:
        rows += [
            ("meter", f"{results.source.name}, {results.source.quality.value}: {results.source.boundary}"),
            ("what it says of itself", results.source.note),
        ]
    rows += [("not verified", f"{name}, which adds its own to receipts") for name in results.not_verified]
    rows += [
        ("model", f"{results.model} on {results.device}"),
        ("variants", ", ".join(results.variants)),
        ("requests", ", ".join(f"{count} x {length} tokens" for count, length in results.shapes)),
        ("most that it can be set to draw", amount(results.most_watts, "W", _UNKNOWN)),
        ("host", ", ".join(f"{name} {value}" for name, value in results.host.items())),
    ]
    board = results.board or {"board": results.board_why}
    rows += [(name.replace("_", " "), str(value)) for name, value in board.items() if value is not None]
    if results.probe is not None:
        for check in results.probe.cross_checks:
            ratio = check.difference_ratio
            said = "" if ratio is None else f"{100 * ratio:+.1f} %"
            rows.append((f"counter against power over {check.window_s:.2g} s", said or _UNKNOWN))
        rows += [(f"no {what}", why) for what, why in results.probe.unsupported.items()]
    yield from _table(("", ""), rows)


def _idle(results: Results, idle: Idle) -> Iterator[str]:
    yield "## Idle draw"
    yield ""
    rows = [
        ("before the model was loaded", amount(results.before_w, "W", _UNKNOWN)),
        ("at rest, with the model", amount(idle.at_rest_w, "W", _UNKNOWN)),
    ]
    rows += [(f"{name} after work", amount(watts, "W", _UNKNOWN)) for name, watts in idle.by_rest_w.items()]
    rows += [
        (f"read every {amount(pace_s, 's')}", _interval(watts, "W"))
        for pace_s, watts in idle.by_pace_w.items()
    ]
    if (adds := idle.reading_adds_w) is not None:
        rows.append(("the fastest pace adds", f"{adds[0]:+.3g} W, give or take {adds[1]:.2g} W"))
    yield from _table(("state", "draw"), rows)


def _sensor(results: Results, sensor: Sensor) -> Iterator[str]:
    yield "## The counter"
    yield ""

    def row(name: str, beat: CounterBeat) -> tuple[str, ...]:
        return (
            name,
            f"{beat.updates} in {beat.reads} reads",
            amount(beat.period_s, "s", "changes with every read"),
            amount(beat.jitter_s, "s", "-"),
            f"{amount(beat.read_cost_p50_s, 's')}, {amount(beat.read_cost_p99_s, 's')}",
            amount(beat.watts, "W", _UNKNOWN),
        )

    yield from _table(
        ("", "updates", "period", "jitter", "a read takes (p50, p99)", "drawn"),
        [row("idle", sensor.idle), row("busy", sensor.busy)],
    )


def _response(response: StepResponse) -> Iterator[str]:
    yield f"## Step response: {response.pulses} pieces of work"
    yield ""
    yield from _table(
        ("model", "lag", "ramp or box", "it leaves of an interval", "work adds"),
        [
            (
                model.name,
                amount(model.lag_s, "s"),
                amount(model.smear_s, "s") if model.smear_s else "-",
                f"{100 * model.residual:.2g} %",
                amount(model.watts, "W"),
            )
            for model in response.models
        ],
    )
    yield ""
    smear = (
        "" if response.best.name == "lag" else f", {response.best.name} {_interval(response.smear_s, 's')}"
    )
    yield f"By groups of pulses, with the best model: lag {_interval(response.lag_s, 's')}{smear}."


def _waves(waves: Waves) -> Iterator[str]:
    yield "## Part-time sampling"
    yield ""
    if waves.reason:
        yield f"Not measured: {waves.reason}."
        return
    rows = [
        (
            f"{factor} x",
            f"{each.runs}",
            f"{100 * each.ratio:.2g} % [{100 * each.low:.2g}, {100 * each.high:.2g}]",
        )
        for factor, each in waves.by_factor.items()
    ]
    rows += [(f"{factor} x", "-", f"not measured: {why}") for factor, why in waves.skipped.items()]
    yield from _table(
        ("wave's period over the counter's", "runs", "scatter of joules per second of work"), rows
    )


def _mixed(mixed: Mixed) -> Iterator[str]:
    yield f"## Solo against mixed: {mixed.blocks} blocks"
    yield ""
    if mixed.reason:
        yield f"Not measured: {mixed.reason}."
        return
    rows = [
        (
            variant,
            amount(company.alone_j, "J"),
            amount(company.mixed_j, "J", _UNKNOWN),
            _percent(company.ratio),
            f"±{100 * company.common_error:.2g} %",
            f"{company.withheld} of {company.requests}",
        )
        for variant, company in mixed.by_variant.items()
    ]
    yield from _table(
        (
            "variant",
            "alone, by the counter",
            "mixed, by receipts",
            "difference",
            "idle draw's part",
            "withheld",
        ),
        rows,
    )
    yield ""
    yield (
        f"Joules are means per request, above an idle draw of {amount(mixed.idle_w, 'W', _UNKNOWN)}. "
        f"By the counter the mixed run as a whole cost {_percent(mixed.company)} against its requests alone: "
        "what company does to them, whatever receipts say. "
        f"Closure, accounts over the independent reader: {_percent(mixed.closure)}."
    )


def _perturbation(found: Perturbation) -> Iterator[str]:
    yield f"## The sampler on against off: {found.pairs} pairs of runs"
    yield ""
    yield from _table(
        ("", "on against off"),
        [
            ("median latency", _percent(found.p50_ratio)),
            ("p99 latency", _percent(found.p99_ratio)),
            ("power while busy", _percent(found.watts_ratio)),
        ],
    )


def _device_time(found: DeviceTime) -> Iterator[str]:
    yield f"## The host's stamps against the device's events: {found.windows} batches"
    yield ""
    yield (
        f"In the median the device began {amount(found.lead_s, 's')} after the host's start, the host knew "
        f"{amount(found.tail_s, 's')} after its end, and it ran {100 * found.busy_share:.3g} % of the time."
    )


def _interval(found: Interval | None, unit: str) -> str:
    if found is None:
        return _UNKNOWN
    if found.low is None or found.high is None:
        return amount(found.mean, unit)
    return f"{amount(found.mean, unit)} [{amount(found.low, unit)}, {amount(found.high, unit)}]"


def _percent(ratio: Interval | None) -> str:
    """Of a ratio, what it differs from 1."""
    if ratio is None:
        return _UNKNOWN
    if ratio.low is None or ratio.high is None:
        return f"{100 * (ratio.mean - 1):+.2f} %"
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f"{100 * (ratio.mean - 1):+.2f} % [{low:+.2f}, {high:+.2f}]"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
