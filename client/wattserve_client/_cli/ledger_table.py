"""A ledger as a table, by itself or against an earlier one. Pure: no clock."""

from __future__ import annotations

from wattserve_client._cli import words
from wattserve_client._cli.table import facts, table
from wattserve_client.reports import EnergyReport, VariantEnergy

_HEADS = ("account", "joules", "share", "sequences", "J/sequence")


def ledger(now: EnergyReport, before: EnergyReport | None, width: int) -> str:
    """Where every joule of one meter stands; with `before`, also the watts since then."""
    if now.measured_uj is None:
        reason = now.unknown_reason or "the server gave no reason"
        return facts([("energy", f"{words.UNKNOWN}: {reason}"), *_about(now)], width)
    heads = _HEADS if before is None else (*_HEADS, "watts", "now J/seq")
    watts = rates(now, before)
    rows = []
    for place, (name, uj) in enumerate(accounts(now).items()):
        # The total is called what it is: "measured" only where a sensor measured it.
        title = f"+ {name}" if place > 1 else f"= {name}" if place else str(now.source.quality)
        row = [title, words.ledger_energy(uj), words.percent(uj, now.measured_uj)]
        variant = _variant(now, name)
        row += [str(variant.sequences), _each(variant.active_uj, variant.sequences)] if variant else ["", ""]
        if before is not None:
            drawn = watts[name]
            row += [words.NOTHING if drawn is None else f"{drawn:.2f}", _each_since(name, now, before)]
        rows.append(row)
    whole = table(heads, rows, right="lrrrrrr")
    restarted = "the server's ledger began again; watts come with the next reading"
    notes = [("note", restarted)] if before is not None and began_again(now, before) else []
    return f"{whole}\n\n{facts([*notes, *_about(now)], width)}"


def accounts(report: EnergyReport) -> dict[str, int | None]:
    """Every account in microjoules, in the table's order: the total, then the parts of it."""
    return {
        "measured": report.measured_uj,
        **{f"active {each.variant}": each.active_uj for each in report.active},
        "warm-up": report.warmup_uj,
        "idle": report.idle_uj,
        "unattributed": report.unattributed_uj,
        "gap": report.gap_uj,
        "pending": report.pending_uj,
    }


def began_again(now: EnergyReport, before: EnergyReport) -> bool:
    """Whether the server was restarted between the two."""
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
    told: dict[str, float | None] = {}
    for name, uj in accounts(now).items():
        was_uj = earlier.get(name)
        told[name] = None if uj is None or was_uj is None else (uj - was_uj) / 1e6 / span_s
    return told


def _variant(report: EnergyReport, account: str) -> VariantEnergy | None:
    return next((each for each in report.active if account == f"active {each.variant}"), None)


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


def _about(now: EnergyReport) -> list[tuple[str, str]]:
    shared = now.idle_shared_uj
    return [
        ("source", words.source(now.source) + (f" ({now.device})" if now.device else "")),
        ("idle draw", f"{words.watts(now.idle_watts)} now"),
        ("idle shared", f"{words.energy(shared)} J of idle are shown on receipts" if shared else ""),
        (
            "waiting",
            f"{words.counted(now.pending_receipts, 'receipt')} not settled yet"
            if now.pending_receipts
            else "",
        ),
        (
            "unknown",
            f"{words.counted(now.unknown_sequences, 'sequence')} ran at an unknown energy"
            if now.unknown_sequences
            else "",
        ),
        ("gaps", f"{now.gap_count}, {words.seconds(now.gap_seconds)} in all" if now.gap_count else "none"),
        *(("gap", f"{words.moment(each.start_unix_ns)}: {each.reason}") for each in now.recent_gaps[-3:]),
        ("from", words.moment(now.since_unix_ns) if now.since_unix_ns else ""),
        ("to", words.moment(now.until_unix_ns) if now.until_unix_ns else ""),
    ]
