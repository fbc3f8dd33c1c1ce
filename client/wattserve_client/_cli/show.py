"""Answers, receipts and the server's description as the command line shows them to people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattserve_client._cli import words
from wattserve_client._cli.table import facts, table
from wattserve_client.reports import Meter, ServerInfo, Variant
from wattserve_client.results import EnergyState, Prediction, Receipt

_SEQUENCES = ("label", "score", "tokens", "padded", "joules", "state", "input")


def prediction(answer: Prediction, inputs: Sequence[str], width: int) -> str:
    """A row for each sequence, then what all of it cost."""
    rows = [(*sequence(answer, place), given) for place, given in enumerate(inputs)]
    heads = (_SEQUENCES[0] if answer.classifications else answer.output_name, *_SEQUENCES[1:])
    return f"{table(heads, rows, right='lrrrrll', width=width, elide=6)}\n\n{receipt(answer.receipt, width)}"


def sequence(answer: Prediction, place: int) -> tuple[str, str, str, str, str, str]:
    """Label (or the beginning of the output), score, tokens, padded tokens, joules, state."""
    if answer.classifications:
        found = answer.classifications[place]
        label, score = found.label, f"{found.scores[found.label_index]:.3f}"
    else:
        label, score = _beginning(answer.output[place]), words.NOTHING
    told = answer.receipt
    if place >= len(told.lines):  # a server that gives no lines
        return label, score, words.NOTHING, words.NOTHING, words.UNKNOWN, str(told.state)
    line = told.lines[place]
    return (
        label,
        score,
        str(line.tokens),
        str(line.padded_tokens),
        words.energy(line.energy_uj),
        str(told.state),
    )


def receipt(told: Receipt, width: int) -> str:
    """What a request cost, and how far that may be trusted."""
    return facts(_cost(told), width)


def receipt_with_lines(told: Receipt, width: int) -> str:
    """The same, with a row for each sequence."""
    rows = [
        (
            str(number),
            str(line.tokens),
            str(line.padded_tokens),
            str(line.batch_size) if line.batch_size else "never ran",
            words.seconds(line.compute_ns / 1e9),
            words.energy(line.energy_uj),
            words.energy(line.idle_share_uj),
        )
        for number, line in enumerate(told.lines, start=1)
    ]
    heads = ("sequence", "tokens", "padded", "batch", "window", "joules", "idle share (J)")
    made = [("made", words.moment(told.created_unix_ns)), ("split by", told.split_rule)]
    return f"{facts([*_cost(told), *made], width)}\n\n{table(heads, rows, right='rrrrrrr')}"


def server_info(info: ServerInfo, width: int) -> str:
    rows = [
        (
            each.name + ("*" if each.name == info.default_variant else ""),
            str(each.state),
            each.device,
            each.dtype,
            each.operands or words.NOTHING,
            _yes(each.native),
            _yes(each.verified),
            words.megabytes(each.parameter_bytes),
        )
        for each in info.variants
    ]
    heads = ("variant", "state", "device", "dtype", "operands", "native", "verified", "weights")
    remarks = [(each.name, remark) for each in info.variants for remark in _remarks(each)]
    limits = info.limits
    about = [
        (
            "model",
            f"{info.model_name} from {info.model_source}, {info.model_parameters / 1e6:.3g} M parameters",
        ),
        ("RANDOM WEIGHTS", "its answers mean nothing" if info.random_weights else ""),
        ("task", info.task),
        ("labels", ", ".join(info.labels)),
        ("takes", _takes(info)),
        ("hardware", info.hardware),
        ("run", info.instance_id),
    ]
    kept = [
        (
            "limits",
            f"{limits.max_sequence_tokens} tokens a sequence, "
            f"{limits.max_request_sequences} sequences a request, "
            f"{limits.max_batch_sequences} sequences or {limits.max_batch_tokens} tokens a batch, "
            f"{limits.max_queue_sequences} sequences waiting",
        ),
        ("receipts", f"{limits.receipt_retention_count} kept for {limits.receipt_retention_seconds} s"),
        ("versions", ", ".join(f"{name} {number}" for name, number in sorted(info.versions.items()))),
        ("server", info.server_version),
    ]
    parts = [
        facts(about, width),
        table(heads, rows, right="lllllllr") + "\n* the default",
        facts(remarks, width),
        *(facts(_meter(meter), width) for meter in (info.meter, *info.other_meters)),
        facts(kept, width),
    ]
    return "\n\n".join(part for part in parts if part)


def _cost(told: Receipt) -> list[tuple[str, str]]:
    if told.energy_uj is None:
        total = f"{words.UNKNOWN}: {told.unknown_reason or 'the server gave no reason'}"
    else:
        total = f"{words.energy(told.energy_uj)} J above idle"
    idle = told.idle_share_uj
    first = told.provisional_energy_uj
    ended = "" if told.outcome in ("completed", "unspecified") else f", request {told.outcome}"
    return [
        (
            "energy",
            f"{total} ({told.state}, {told.source.quality}{ended})"
            if told.energy_uj is not None
            else total + ended,
        ),
        ("interval", words.interval(told)),
        ("first answer", f"{words.energy(first)} J" if told.settled and first is not None else ""),
        ("idle share", "" if idle is None else f"{words.energy(idle)} J more, by {told.idle_policy}"),
        ("source", words.source(told.source)),
        *words.caveats(told),
        ("variant", f"{told.variant} on {told.device}"),
        ("request", told.request_id),
        ("receipt", told.receipt_id + _hint(told)),
    ]


def _hint(told: Receipt) -> str:
    if told.state is EnergyState.PROVISIONAL and told.receipt_id:
        return f" (`receipt {told.receipt_id} --wait` tells the settled figure)"
    return ""


def _beginning(row: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    flat = row.ravel()
    shown = ", ".join(f"{value:.3g}" for value in flat[:3])
    return f"[{shown}, … {flat.size}]" if flat.size > 3 else f"[{shown}]"


def _takes(info: ServerInfo) -> str:
    if info.pixel_shape:
        return f"images of {' x '.join(map(str, info.pixel_shape))}"
    return "texts or token ids" if info.accepts_text else "token ids, no texts"


def _remarks(variant: Variant) -> list[str]:
    """What a table has no room for."""
    kept = len(variant.kept_layers)
    told = [
        variant.kernels,
        variant.detail,
        variant.tuning,
        f"{variant.threads} threads" if variant.threads else "",
        f"PROXY: {variant.proxy}" if variant.proxy else "",
        f"failed: {variant.state_reason}" if variant.state_reason else "",
        f"{kept} layers kept in a higher precision" if kept else "",
        "" if variant.verified or not variant.parameter_bytes else "UNVERIFIED",
        variant.verification,
    ]
    return ["; ".join(each for each in told if each)]


def _meter(meter: Meter) -> list[tuple[str, str]]:
    others = meter.neighbours
    return [
        ("meter", words.source(meter.source) + (f" ({meter.device})" if meter.device else "")),
        ("covers", meter.boundary),
        ("idle", f"{words.watts(meter.idle_watts)} ({meter.idle_origin})"),
        (
            "updates",
            f"every {words.seconds(meter.update_period_seconds)}" if meter.update_period_seconds else "",
        ),
        ("neighbours", f"other processes on the device: {others}" if others else ""),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
