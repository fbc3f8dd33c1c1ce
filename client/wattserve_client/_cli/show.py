"""Answers, receipts, and what a server says of itself and of its ledger, as people are shown them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattserve_client._cli import words
from wattserve_client._cli.words import facts, table
from wattserve_client.generations import Generation, Scores
from wattserve_client.reports import EnergyReport, Meter, ServerInfo, Variant, VariantEnergy
from wattserve_client.results import EnergyState, FoundReceipts, LineRole, Prediction, Receipt
from wattserve_common.words import ACCOUNTS, ACTIVE, counted

_SEQUENCES = (">score", ">tokens", ">padded", ">joules", "state", "input")
_SCORES = (">log-probability", ">a token", ">tokens", "input")
_LINES = (">sequence", ">tokens", ">padded", ">batch", ">window", ">joules", ">idle share (J)")
_VARIANTS = ("variant", "state", "device", "dtype", "operands", "native", "verified", ">weights")
_COLUMNS = (  # of _VARIANTS, those that do not speak for themselves
    ("*", "the default"),
    ("operands", "the precision in which its linear layers multiply"),
    ("native", "the device has instructions for it"),
    ("verified", "the profiler saw it multiply so"),
)
_ACCOUNTS = ("account", ">joules", ">share", ">sequences", ">J/sequence")
_SINCE = (">watts", ">now J/seq")


def prediction(answer: Prediction, inputs: Sequence[str], width: int) -> str:
    """A row for each sequence, then what all of it cost."""
    rows = [(*sequence(answer, place), text) for place, text in enumerate(inputs)]
    titles = ("label" if answer.classifications else answer.output_name, *_SEQUENCES)
    about = [("cut", _cut(answer)), *_cost(answer.receipt)]
    return f"{table(titles, rows, width, elide='input')}\n\n{facts(about, width)}"


def generation(answer: Generation, width: int) -> str:
    """What it cost, and how it ended."""
    ended = f"at {answer.stop_string!r}" if answer.stop_string else str(answer.finish_reason)
    first_ns = answer.timing.first_token_ns
    times = f"{words.seconds(answer.timing.total_ns / 1e9)} in all"
    if first_ns is not None:
        times = f"{words.seconds(first_ns / 1e9)} to the first token, {times}"
    about = [
        ("ended", ended),
        *_cost(answer.receipt),
        ("time", times),
        ("seed", "" if answer.seed is None else str(answer.seed)),
    ]
    return facts(about, width)


def scores(answer: Scores, inputs: Sequence[str], width: int) -> str:
    """A row for each sequence, then what all of it cost."""
    rows = [
        (
            f"{each.logprob_sum:.3f}",
            f"{each.logprob_sum / max(1, len(each.logprobs)):.3f}",
            str(len(each.token_ids)),
            text,
        )
        for each, text in zip(answer.sequences, inputs, strict=True)
    ]
    return f"{table(_SCORES, rows, width, elide='input')}\n\n{facts(_cost(answer.receipt), width)}"


def _cut(answer: Prediction) -> str:
    lost = [
        f"{counted(tokens, 'token')} of text {number}"
        for number, tokens in enumerate(answer.cut_tokens, start=1)
        if tokens
    ]
    return f"{', '.join(lost)} cut off and not read" if lost else ""


def sequence(answer: Prediction, place: int) -> tuple[str, str, str, str, str, str]:
    """Label (or the beginning of the output), score, tokens, padded tokens, joules, state."""
    label, score = "", words.NOTHING
    if answer.classifications:
        classification = answer.classifications[place]
        label, score = classification.label, f"{classification.scores[classification.label_index]:.3f}"
    else:
        label = _beginning(answer.output[place])
    receipt = answer.receipt
    if place >= len(receipt.lines):  # a server that gives no lines
        return label, score, words.NOTHING, words.NOTHING, words.UNKNOWN, receipt.state
    line = receipt.lines[place]
    return (
        label,
        score,
        str(line.tokens),
        str(line.padded_tokens),
        words.energy(line.energy_uj),
        receipt.state,
    )


def receipt_with_lines(receipt: Receipt, width: int) -> str:
    """What a request cost and how far that may be trusted, then a row for each sequence."""
    rows = [
        (
            str(number) if line.role is LineRole.UNSPECIFIED else line.role,
            str(line.tokens),
            str(line.padded_tokens),
            str(line.batch_size) if line.batch_size else "never ran",
            words.seconds(line.compute_ns / 1e9),
            words.energy(line.energy_uj),
            words.energy(line.idle_share_uj),
        )
        for number, line in enumerate(receipt.lines, start=1)
    ]
    origin = [("made", words.moment(receipt.created_unix_ns)), ("split by", receipt.split_rule)]
    return f"{facts([*_cost(receipt), *origin], width)}\n\n{table(_LINES, rows)}"


def found_receipts(found: FoundReceipts, width: int) -> str:
    """Each with its lines, newest first."""
    parts = [f"== {receipt.receipt_id}\n{receipt_with_lines(receipt, width)}" for receipt in found.receipts]
    older = ["older ones are left out"] if found.older_left_out else []
    return "\n\n".join(parts + older)


def server_info(info: ServerInfo, width: int) -> str:
    rows = [
        (
            variant.name + ("*" if variant.name == info.default_variant else ""),
            variant.state,
            ", ".join((variant.device, *variant.other_devices)),
            variant.dtype,
            variant.operands or words.NOTHING,
            "yes" if variant.native else "no",
            "yes" if variant.verified else "no",
            words.megabytes(variant.parameter_bytes),
        )
        for variant in info.variants
    ]
    limits, millions = info.limits, f"{info.model_parameters / 1e6:.3g}"
    about = [
        ("model", f"{info.model_name} from {info.model_source}, {millions} M parameters"),
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
        table(_VARIANTS, rows),
        facts(_COLUMNS, width),
        facts([(variant.name, _remark(variant)) for variant in info.variants], width),
        *(facts(_meter(meter), width) for meter in (info.meter, *info.other_meters)),
        facts(kept, width),
    ]
    return "\n\n".join(part for part in parts if part)


def _cost(receipt: Receipt) -> list[tuple[str, str]]:
    idle, first = receipt.idle_share_uj, receipt.provisional_energy_uj
    ended = "" if receipt.outcome in ("completed", "unspecified") else f", request {receipt.outcome}"
    if receipt.energy_uj is None:
        total = f"{words.UNKNOWN}: {receipt.unknown_reason or 'the server gave no reason'}{ended}"
    else:
        trust = f"({receipt.state}, {receipt.origin}{ended})"
        total = f"{words.energy(receipt.energy_uj)} J above idle {trust}"
    return [
        ("energy", total),
        *_parts(receipt),
        *_generation(receipt),
        ("interval", words.interval(receipt)),
        ("provisional", f"{words.energy(first)} J" if receipt.settled and first is not None else ""),
        (
            "idle share",
            ""
            if idle is None
            else f"{words.energy(idle)} J more, by {receipt.idle_policy.removeprefix('by-')}",
        ),
        ("source", words.source(receipt.source)),
        ("covers", receipt.source.boundary),
        *words.caveats(receipt),
        ("variant", f"{receipt.variant} on {receipt.device}"),
        ("request", receipt.request_id),
        ("receipt", receipt.receipt_id + _hint(receipt)),
    ]


def _parts(receipt: Receipt) -> list[tuple[str, str]]:
    """What each part of the machine adds to it; nothing where there is one."""
    if len(receipt.parts) < 2:
        return []
    rows = []
    for part in receipt.parts:
        if part.energy_uj is None:
            told = f"{words.UNKNOWN}: {part.unknown_reason}"
        else:
            told = f"{words.energy(part.energy_uj)} J of it ({part.state}, {part.source})"
        if part.idle_share_uj is not None:
            told += f"; {words.energy(part.idle_share_uj)} J of the idle share"
        rows.append((part.name, told))
    return rows


def _generation(receipt: Receipt) -> list[tuple[str, str]]:
    """What prompt and answer cost; nothing where nothing was generated."""
    spent = receipt.generation
    if spent is None:
        return []
    lost = counted(spent.recomputed_tokens, "token")
    overhead = f"{words.energy(spent.overhead_energy_uj)} J to read {lost} again, in no other figure"
    of_output, of_all = _per(spent.energy_per_output_token_uj), _per(spent.energy_per_total_token_uj)
    return [
        ("prompt", _spent(spent.prompt_energy_uj, spent.prompt_tokens)),
        ("output", _spent(spent.output_energy_uj, spent.output_tokens)),
        ("a token", f"{of_output} of output, {of_all} of prompt and output"),
        ("overhead", overhead if spent.recomputed_tokens else ""),
    ]


def _spent(energy_uj: int | None, tokens: int) -> str:
    return f"{words.energy(energy_uj)} J of it for {counted(tokens, 'token')}"


def _per(energy_uj: float | None) -> str:
    return words.UNKNOWN if energy_uj is None else f"{words.energy(round(energy_uj))} J"


def _hint(receipt: Receipt) -> str:
    if receipt.state is EnergyState.PROVISIONAL and receipt.receipt_id:
        return f" (`receipt {receipt.receipt_id} --wait` tells the settled figure)"
    return ""


def _beginning(row: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    flat = row.ravel()
    shown = ", ".join(f"{value:.3g}" for value in flat[:3])
    return f"[{shown}, … {flat.size}]" if flat.size > 3 else f"[{shown}]"


def _takes(info: ServerInfo) -> str:
    if info.pixel_shape:
        return f"images of {' x '.join(map(str, info.pixel_shape))}"
    return "texts or token ids" if info.accepts_text else "token ids, no texts"


def _remark(variant: Variant) -> str:
    """What a table has no room for."""
    remarks = [
        variant.kernels,
        variant.detail,
        variant.tuning,
        counted(variant.threads, "thread") if variant.threads else "",
        f"PROXY: {variant.proxy}" if variant.proxy else "",
        f"failed: {variant.state_reason}" if variant.state_reason else "",
        "" if variant.verified or not variant.parameter_bytes else "UNVERIFIED",
        variant.verification,
    ]
    return "; ".join(remark for remark in remarks if remark)


def _meter(meter: Meter) -> list[tuple[str, str]]:
    others, period_s = meter.neighbours, meter.update_period_seconds
    return [
        ("meter", words.source(meter.source) + (f" ({meter.device})" if meter.device else "")),
        ("covers", meter.boundary),
        ("shared by", ", ".join(meter.shared_by)),
        ("idle", f"{words.watts(meter.idle_watts)} ({meter.idle_origin})"),
        ("updates", f"every {words.seconds(period_s)}" if period_s else ""),
        ("neighbours", f"other processes on the device: {others}" if others else ""),
    ]


def ledger(now: EnergyReport, width: int, before: EnergyReport | None = None) -> str:
    """Where every joule of one meter stands; with `before`, also the watts since then."""
    if now.measured_uj is None:
        reason = now.unknown_reason or "the server gave no reason"
        return facts([("energy", f"{words.UNKNOWN}: {reason}"), *_about(now)], width)
    watts = rates(now, before)
    rows = []
    for place, (account, uj) in enumerate(accounts(now).items()):
        # The total is called what it is: "measured" only where a sensor measured it.
        title = f"+ {account}" if place > 1 else f"= {account}" if place else now.source.quality
        variant = _variant(now, account)
        row = [title, words.ledger_energy(uj), words.percent(uj, now.measured_uj)]
        row += [str(variant.sequences), _each(variant.active_uj, variant.sequences)] if variant else ["", ""]
        if before is not None:
            drawn = watts[account]
            row += [words.NOTHING if drawn is None else f"{drawn:.2f}", _each_since(account, now, before)]
        rows.append(row)
    whole = table(_ACCOUNTS if before is None else _ACCOUNTS + _SINCE, rows)
    meanings = facts([("active", ACTIVE), *ACCOUNTS.values()], width)
    return f"{whole}\n\n{meanings}\n\n{facts(_about(now), width)}"


def together(reports: Sequence[EnergyReport]) -> str:
    """The sum of the ledgers of one server, in one line."""
    where = f"on {', '.join(report.device for report in reports)} together"
    for report in reports:
        if report.measured_uj is None:
            return f"{where}: {words.UNKNOWN}, as is what {report.device} used"
    sums = {"active": sum(report.active_uj or 0 for report in reports)}
    for field, (name, _) in ACCOUNTS.items():
        sums[name] = sum(getattr(report, field) or 0 for report in reports)
    told = " + ".join(f"{name} {words.ledger_energy(uj)}" for name, uj in sums.items())
    qualities = " and ".join(dict.fromkeys(str(report.source.quality) for report in reports))
    measured = words.ledger_energy(sum(report.measured_uj or 0 for report in reports))
    return f"{where}: {qualities} {measured} J = {told}"


def accounts(report: EnergyReport) -> dict[str, int | None]:
    """Every account in microjoules, in the table's order: the total, then the parts of it."""
    return {
        "measured": report.measured_uj,
        **{f"active {variant.variant}": variant.active_uj for variant in report.active},
        **{name: getattr(report, field) for field, (name, _) in ACCOUNTS.items()},
    }


def began_again(now: EnergyReport, before: EnergyReport) -> bool:
    """Whether the server was restarted between the two. An older one names no run."""
    if now.instance_id or before.instance_id:
        return now.instance_id != before.instance_id
    return now.since_unix_ns > before.until_unix_ns or (now.measured_uj or 0) < (before.measured_uj or 0)


def elapsed_s(now: EnergyReport, before: EnergyReport | None) -> float:
    """Between the two ledgers' last readings; 0 when nothing can be said."""
    if before is None or before.measured_uj is None or began_again(now, before):
        return 0.0
    return max(0.0, (now.until_unix_ns - before.until_unix_ns) / 1e9)


def rates(now: EnergyReport, before: EnergyReport | None) -> dict[str, float | None]:
    """Watts per account since `before`; None where nothing can be said."""
    span_s = elapsed_s(now, before)
    earlier = accounts(before) if before is not None and span_s else {}
    watts: dict[str, float | None] = {}
    for account, uj in accounts(now).items():
        earlier_uj = earlier.get(account)
        watts[account] = None if uj is None or earlier_uj is None else (uj - earlier_uj) / 1e6 / span_s
    return watts


def _variant(report: EnergyReport, account: str) -> VariantEnergy | None:
    return next((entry for entry in report.active if account == f"active {entry.variant}"), None)


def _each_since(account: str, now: EnergyReport, before: EnergyReport) -> str:
    """Joules per sequence since `before`; nothing for an account that is no variant's."""
    variant, earlier = _variant(now, account), _variant(before, account)
    if variant is None:
        return ""
    if (
        earlier is None
        or variant.active_uj is None
        or earlier.active_uj is None
        or not elapsed_s(now, before)
    ):
        return words.NOTHING
    return _each(variant.active_uj - earlier.active_uj, variant.sequences - earlier.sequences)


def _each(uj: int | None, sequences: int) -> str:
    return words.NOTHING if uj is None or sequences <= 0 else words.energy(round(uj / sequences))


def _part(part: EnergyReport) -> str:
    """What one counter of a ledger adds to it."""
    if part.measured_uj is None:
        return f"{words.UNKNOWN}: {part.unknown_reason}"
    active, idle = words.ledger_energy(part.active_uj), words.ledger_energy(part.idle_uj)
    return (
        f"{words.ledger_energy(part.measured_uj)} J of it, {active} active and {idle} idle "
        f"({part.source}); {words.watts(part.idle_watts)} idle draw"
    )


def _gaps(now: EnergyReport) -> str:
    if not now.gap_count:
        return "none"
    is_open = any(gap.end_unix_ns is None for gap in now.recent_gaps)
    text = f"{now.gap_count}, {words.seconds(now.gap_seconds)} in all"
    return f"{text} without one that has not ended" if is_open else text


def _about(now: EnergyReport) -> list[tuple[str, str]]:
    shared, pending, unknown = now.idle_shared_uj, now.pending_receipts, now.unknown_sequences
    return [
        ("source", words.source(now.source) + (f" ({now.device})" if now.device else "")),
        ("covers", now.source.boundary),
        ("idle draw", f"{words.watts(now.idle_watts)} now"),
        *((part.part, _part(part)) for part in now.parts if len(now.parts) > 1),
        ("idle shared", f"{words.energy(shared)} J of idle are shown on receipts" if shared else ""),
        ("waiting", f"{counted(pending, 'receipt')} not settled yet" if pending else ""),
        ("unknown", f"{counted(unknown, 'sequence')} ran at an unknown energy" if unknown else ""),
        ("gaps", _gaps(now)),
        *(("gap", f"{words.moment(gap.start_unix_ns)}: {gap.reason}") for gap in now.recent_gaps[-3:]),
        ("run", now.instance_id),
        ("from", words.moment(now.since_unix_ns) if now.since_unix_ns else ""),
        ("to", words.moment(now.until_unix_ns) if now.until_unix_ns else ""),
    ]
