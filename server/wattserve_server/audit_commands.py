"""The commands `wattserve audit ...`: a run, or an account book, gone over by somebody who was not there."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wattserve_common.words import ACCOUNTS, ACTIVE, counted
from wattserve_server.audit.explain import Trace, explained
from wattserve_server.audit.recompute import Counter, Recomputed, recompute
from wattserve_server.config import AUTO_BOOK, ServerConfig, add_flags
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.receipt import Figures, Receipt
from wattserve_server.errors import ConfigError

COLUMNS = (
    "receipt_id",
    "variant",
    "state",
    "energy_uj",
    "low_uj",
    "high_uj",
    "idle_share_uj",
    "reason",
    "as_told",
)


def add_audit_commands(commands: Any, serve: Callable[[ServerConfig, argparse.Namespace], int]) -> None:
    """commands: what `add_subparsers` gave. serve: what serves; `audit` is the file that it makes."""
    audit = commands.add_parser(
        "audit",
        help="record a run, make its receipts anew; check an account book",
        description="Joules that somebody who was not there can go over: record what the energy accounts of "
        "a run were told, and make every receipt anew from that.",
    )
    actions = audit.add_subparsers(title="commands", required=True, metavar="COMMAND")
    recording = actions.add_parser(
        "record",
        help="serve, and record what the energy accounts are told",
        description="Serve as `wattserve serve` does, with all its settings, and record in FILE every "
        "reading, every batch and what each receipt was told; no request's text, id or tenant.",
    )
    recording.add_argument("audit", metavar="FILE", type=Path, help="the file to make")
    add_flags(recording)
    recording.set_defaults(run=serve)
    recomputing = actions.add_parser(
        "recompute",
        help="make every receipt anew from a recorded file, and compare",
        description="Make every receipt anew from the readings and batches of FILE, and compare it with what "
        "it was told: equal to the microjoule where machine and versions are those that made it, within 1 µJ "
        "elsewhere. Prove that every microjoule stands in one account, and print where they went. Ends with "
        "0 where all is so, and 1 where anything is not.",
    )
    recomputing.add_argument("file", metavar="FILE", type=Path, help="what `wattserve audit record` made")
    recomputing.add_argument("--receipt", metavar="ID", default="", help="explain this one, step by step")
    recomputing.add_argument(
        "--receipts",
        metavar="CSV",
        type=Path,
        help="write every receipt into this file, which must not exist",
    )
    recomputing.set_defaults(run=_recompute)
    checking = actions.add_parser(
        "check",
        help="whether receipts or sums of an account book were changed or taken out",
        description="Recompute the chain of hashes of every run in an account book, and find receipts that "
        "were changed, taken out or cut off. Hold the sums, from which bills are made, against the receipts "
        "that are still there. Who can write to the book can write a new chain, too: hold it "
        "against what the server's log said in time (--head). Ends with 0 where all is so, and 1 where "
        "anything is not.",
    )
    add_flags(checking, {"account_book", "port"})
    checking.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="RUN:NUMBER:HASH",
        help="that the log told: `receipt NUMBER of instance RUN has the hash HASH`; may be repeated",
    )
    checking.set_defaults(run=_check)


def _recompute(config: ServerConfig, arguments: argparse.Namespace) -> int:
    trace = Trace(arguments.receipt)
    with ExitStack() as undo:
        on_receipt: list[Any] = [trace.on_receipt]
        if arguments.receipts is not None:
            on_receipt.append(_table(arguments.receipts, undo))
        made = recompute(
            arguments.file, on_receipt, trace.make_accountant if arguments.receipt else Accountant
        )
    for line in _summary(arguments.file, made):
        print(_plain(line))
    if arguments.receipt:
        if trace.receipt is None:
            raise ConfigError(f"--receipt {arguments.receipt[:80]!r}: {arguments.file} holds no such receipt")
        for line in explained(trace, made):
            print(_plain(line))
    return 0 if made.is_proved else 1


def _plain(line: str) -> str:
    """What the file says may hold characters that a terminal obeys."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def _check(config: ServerConfig, arguments: argparse.Namespace) -> int:
    from wattserve_server.accounts.check import Head, check  # a database, which is loaded here
    from wattserve_server.accounts.store import default_place, open_book
    from wattserve_server.service.recount import recount

    heads = []
    for text in arguments.head:
        try:
            heads.append(Head.parse(text))
        except ValueError:
            raise ConfigError(
                f"--head {text[:120]!r}: is not RUN:NUMBER:HASH, as a server's log tells it"
            ) from None
    place = config.account_book
    if place in ("", AUTO_BOOK):
        place = default_place(config.port)
    book = open_book(place, for_writing=False)
    try:
        chains, sums = check(book, recount, heads)
    finally:
        book.close()
    for chain in chains:
        state = "OK" if not chain.wrong else "WRONG"
        removed = f", {chain.removed:,} removed for their age or room" if chain.removed else ""
        print(
            f"{state:<6}run {chain.instance_id}: {counted(chain.written, 'receipt')} written{removed}, "
            f"{chain.present:,} recomputed, held against {counted(chain.compared, 'note')}"
        )
        for words in chain.wrong:
            print(f"      {words}")
    for each in sums:
        state = "OK" if not each.wrong else "WRONG"
        print(
            f"{state:<6}sums of {each.server}: {counted(each.held, 'hourly sum')} held against all receipts, "
            f"{each.left:,} not: of those receipts are gone, or do not tell all"
        )
        for words in each.wrong:
            print(f"      {words}")
    wrong = sum(bool(chain.wrong) for chain in chains)
    said = (
        "every receipt is as it was written"
        if not wrong
        else f"{counted(wrong, 'run')} of {len(chains)} WRONG"
    )
    contradicted = sum(bool(each.wrong) for each in sums)
    if contradicted:
        said += f"; the sums of {counted(contradicted, 'server')} WRONG"
    print(f"{book.name}: {said}")
    return 1 if wrong or contradicted else 0


def _table(path: Path, undo: ExitStack) -> Callable[[Receipt, Sequence[Figures], Sequence[Figures]], None]:
    try:
        writer = csv.writer(undo.enter_context(path.open("x", encoding="utf-8", newline="")))
    except OSError as error:
        raise ConfigError(f"--receipts {path}: cannot be made ({error.strerror})") from None
    writer.writerow(COLUMNS)

    def write(receipt: Receipt, told: Sequence[Figures], now: Sequence[Figures]) -> None:
        whole = now[0]
        low_uj, high_uj = whole.interval_uj or ("", "")
        amounts = (whole.energy_uj, low_uj, high_uj, whole.idle_share_uj)
        writer.writerow(
            [
                receipt.receipt_id, receipt.variant, whole.state.value,
                *("" if amount is None else amount for amount in amounts),
                whole.reason, "yes" if told == now else "no",
            ]
        )  # fmt: skip

    return write


def _summary(path: Path, made: Recomputed) -> Iterator[str]:
    header = made.header
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(header.started_unix_ns / 1e9))
    yield f"{path}: run {header.instance_id}, started {begun}, of model {header.settings.get('model')}"
    yield f"made on {', '.join(f'{name} {value}' for name, value in header.made_on.items())}"
    if made.cut_at is not None:
        yield f"CUT OFF: the block at byte {made.cut_at:,} is not whole; what follows is of all before it"
    elif not made.is_whole:
        yield "NOT ENDED: its server was killed, still runs, or could not write on; this is of all until then"
    is_same = made.tolerance_uj == 0
    yield (
        f"{counted(made.receipts, 'receipt')} made anew, {made.receipts - made.differences:,} as told"
        + (", to the microjoule" if is_same else f", within {made.tolerance_uj} uJ: this machine is another")
        + (f"; {made.open_receipts:,} more were not final yet" if made.open_receipts else "")
    )
    for counter in made.counters:
        yield from _accounts(counter)
    if made.is_proved:
        yield "PROVED: after every reading each microjoule is in one account, and receipts hold the active"
        return
    if made.is_empty and not made.failures:
        yield "NOTHING IS PROVED: the file holds no reading and no receipt"
        return
    yield "REFUSED: these figures do not follow from these readings"
    yield from (f"  {words}" for words in made.failures)
    if not is_same:
        yield "  figures may differ elsewhere: recompute where, and with the versions with which, it was made"


def _accounts(counter: Counter) -> Iterator[str]:
    ledger = counter.ledger
    yield f"{counter.opened.name}, {counter.opened.origin}, {counted(counter.readings, 'reading')}:"
    rows = {"active": (ledger.active_uj, ACTIVE)}
    rows |= {name: (getattr(ledger, field), words) for field, (name, words) in ACCOUNTS.items()}
    for name, (amount_uj, words) in rows.items():
        share = amount_uj / ledger.measured_uj if ledger.measured_uj else 0.0
        yield f"  {name:<13}{amount_uj / 1e6:>18,.6f} J {share:>7.2%}  {words}"
    yield f"  {'measured':<13}{ledger.measured_uj / 1e6:>18,.6f} J"
    yield f"  {ledger.idle_shared_uj / 1e6:,.6f} J of the idle ones are shown on receipts"
