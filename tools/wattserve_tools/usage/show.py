"""A bill as tables, as CSV for a spreadsheet, as JSON for a program. Units are in the names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from wattserve_common.words import ACCOUNTS
from wattserve_tools.usage.bill import COUNTS, ENERGIES, Bill, Line, instant
from wattserve_tools.usage.tariff import UJ_PER_KWH

NOBODY = "(nobody's)"


def as_tables(bill: Bill, console: Console) -> None:
    report = bill.report
    begin, end = (instant(each, bill.zone) for each in (report.since_unix_s, report.until_unix_s))
    console.print(f"[bold]from {begin} to {end}[/]   time zone {bill.zone_name}")
    sources = report.sources or ("none: nothing was counted in this span",)
    named = [*(("joules", source) for source in sources), *bill.tariff.named.items()]
    for name, words in named:
        console.print(f"{name:<18}  {words}", highlight=False, markup=False)
    parts: list[RenderableType] = [_lines(bill)]
    if report.of_all_tenants:
        parts.append(_nobodys(bill))
    console.print(Group(*parts))
    for words in _figures(bill):
        console.print(words, highlight=False, markup=False)
    for words in breaks(bill):
        console.print(words, highlight=False, markup=False)


def breaks(bill: Bill) -> Iterator[str]:
    """In words."""
    for each in bill.report.breaks:
        told = "" if each.receipts is None else f" ({each.receipts} receipts)"
        begin, end = (
            instant(at_ns / 1e9, bill.zone, in_seconds=True)
            for at_ns in (each.from_unix_ns, each.until_unix_ns)
        )
        yield f"break of {each.server}, {begin} to {end}: {each.reason}{told}"


def as_json(bill: Bill) -> str:
    report = bill.report
    return json.dumps(
        {
            "since_unix_s": report.since_unix_s,
            "until_unix_s": report.until_unix_s,
            "time_zone": bill.zone_name,
            "sources": list(report.sources),
            "tariff": dict(bill.tariff.named),
            "by": list(bill.by),
            "rows": [_plain(bill, line) for line in bill.lines],
            "total": _plain(bill, bill.total),
            "nobodys_uj": bill.nobodys if report.of_all_tenants else None,
            "measured_uj": bill.measured_uj if report.of_all_tenants else None,
            "counters": [asdict(each) | {"pending_uj": each.pending_uj} for each in report.counters],
            "breaks": [asdict(each) for each in report.breaks],
            "sci_g_per_inference": bill.sci_g,
            "wh_per_1000_queries": bill.wh_per_1000,
        },
        indent=2,
        ensure_ascii=False,
    )


def as_csv(bill: Bill) -> str:
    """A row for each line, then, for who sees all, one for each account that is nobody's. Each says of what
    span it is, where its joules come from, and by which tariff."""
    file = io.StringIO()
    made_of = {
        "since_unix_s": bill.report.since_unix_s,
        "until_unix_s": bill.report.until_unix_s,
        "sources": "; ".join(bill.report.sources),
        "tariff": "; ".join(f"{name}: {words}" for name, words in bill.tariff.named.items()),
    }
    names = [*bill.by, "account", *COUNTS, *ENERGIES, "energy_uj", "kwh", "cost", "carbon_g", *made_of]
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for line in bill.lines:
        writer.writerow(_plain(bill, line) | {"account": "requests"} | made_of)
    if bill.report.of_all_tenants:
        for account, energy_uj in bill.nobodys.items():
            row = {"account": account, "energy_uj": energy_uj, "kwh": energy_uj / UJ_PER_KWH}
            writer.writerow(row | made_of)
    return file.getvalue()


def _plain(bill: Bill, line: Line) -> dict[str, Any]:
    keys = dict(zip(bill.by, line.keys, strict=False))
    used = {name: getattr(line.used, name) for name in (*COUNTS, *ENERGIES, "energy_uj")}
    return keys | used | {"kwh": line.kwh, "cost": line.cost, "carbon_g": line.carbon_g}


def _lines(bill: Bill) -> Table:
    table = Table(show_footer=bool(bill.by))
    for at, name in enumerate(bill.by):
        table.add_column(name, footer="all" if at == 0 else "", overflow="fold")
    for name, cell in _cells(bill, bill.total).items():
        table.add_column(name, footer=cell, justify="right")
    for line in bill.lines if bill.by else (bill.total,):
        table.add_row(*(Text(key or "(none)") for key in line.keys), *_cells(bill, line).values())
    return table


def _cells(bill: Bill, line: Line) -> dict[str, str]:
    """By column; those with nothing in the whole bill are left out."""
    used, total = line.used, bill.total.used
    parts = {
        "accelerator J": (used.accelerator_uj, total.accelerator_uj or total.accelerator_idle_uj),
        "host J": (used.host_uj, total.host_uj or total.host_idle_uj),
    }
    active = {name: joules(own_uj) for name, (own_uj, is_metered) in parts.items() if is_metered}
    cells = {
        "requests": f"{used.requests:,}",
        "sequences": f"{used.sequences:,}",
        "tokens": f"{used.tokens:,}",
    }
    if total.output_tokens:
        cells["generated"] = f"{used.output_tokens:,}"
    if total.unknown:
        cells["unknown"] = f"{used.unknown:,}"
    if len(active) > 1:
        cells |= active
    else:
        cells["active J"] = joules(used.accelerator_uj + used.host_uj)
    cells["shared idle J"] = joules(used.accelerator_idle_uj + used.host_idle_uj)
    cells["joules"] = joules(used.energy_uj)
    cells["kWh"] = f"{line.kwh:.6g}"
    if line.cost is not None and bill.tariff.price is not None:
        cells[f"cost {bill.tariff.price.currency}"] = f"{line.cost:.6g}"
    if line.carbon_g is not None:
        cells["gCO2e"] = f"{line.carbon_g:.6g}"
    return cells


def _nobodys(bill: Bill) -> Table:
    """What is on no line, and that it all adds up."""
    table = Table(title="of the meter", title_justify="left", show_footer=True)
    table.add_column("account", footer="measured")
    table.add_column("joules", footer=joules(bill.measured_uj), justify="right")
    table.add_column("what it is")
    table.add_row("requests", joules(bill.total.used.energy_uj), "the lines above")
    for account, energy_uj in bill.nobodys.items():
        table.add_row(f"{account} {NOBODY}", joules(energy_uj), _MEANINGS[account])
    return table


_MEANINGS = {
    **dict(ACCOUNTS.values()),
    "idle, unshared": "drawn by itself, on no receipt",
    "pending": "counted, and not booked at the end, less at the beginning",
    "receipts not here": "charged to receipts that were not final in this span, or were lost",
}


def _figures(bill: Bill) -> Sequence[str]:
    tariff, unknown = bill.tariff, bill.total.used.unknown
    lines = []
    if tariff.price is None:
        lines.append("cost: not told, for want of a price (--price 0.30EUR)")
    if tariff.intensity is None:
        lines.append("carbon: not told, for want of an intensity (--carbon 380, or a CSV by hour)")
    elif bill.sci_g is not None:
        embodied = "M left out: no --embodied" if tariff.embodied_g_per_hour is None else "M as above"
        lines.append(
            f"SCI: {bill.sci_g:.4g} gCO2e per inference = (E x I + M) / R; R: a sequence; {embodied}"
        )
    if bill.wh_per_1000 is not None:
        lines.append(f"{bill.wh_per_1000:.4g} Wh per 1,000 queries (sequences; without PUE)")
    if unknown:
        lines.append(f"{unknown:,} requests are of unknown energy: what is known of them is counted")
    negative = [account for account, energy_uj in bill.nobodys.items() if energy_uj < 0]
    if negative and bill.report.of_all_tenants:
        lines.append(
            f"less than nothing is {', '.join(negative)}: it was counted before this span began, or the sums "
            "contradict each other: run `wattserve audit check`"
        )
    return lines


def joules(energy_uj: int) -> str:
    """To the microjoule: what is added up must add up."""
    return f"{energy_uj / 1e6:,.6f}" if abs(energy_uj) < 1e15 else f"{energy_uj // 10**6:,}"
