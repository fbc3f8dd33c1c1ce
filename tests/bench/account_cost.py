"""What an account book costs in CPU time: of the writer and of the event loop for each receipt, and of
`usage` over a year of hours; and what memory it takes at 5,000 receipts/s.

    python -m tests.bench.account_cost [--postgres BINARIES] [--year] [--soak SECONDS]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import insert

from tests.bench.overload import resident_mb
from tests.fixtures.postgres import running_postgres
from wattserve_server.accounts.batch import Scribe
from wattserve_server.accounts.schema import FIGURES, HOURS, SERVERS, TENANTS, VARIANTS
from wattserve_server.accounts.store import Book, open_book
from wattserve_server.accounts.usage import By, usage
from wattserve_server.accounts.writer import Writer
from wattserve_server.energy.ledger import Counted, Ledger
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.service.inference import receipt_message

A_SECOND = 2500  # receipts in half a second at 5,000 receipts/s: one transaction
TRANSACTIONS = 60
YEAR_HOURS, YEAR_TENANTS, YEAR_VARIANTS = 8760, 100, 5
BEGINNING = 1_767_225_600 // 3600  # 2026-01-01
SOURCES = {ACCELERATOR: Source("nvml:GPU-0", "apportioned by a filter", Quality.MEASURED)}


def receipt(at: int, instance: str) -> Receipt:
    """As a server of one classifier makes it for one sequence."""
    made = Receipt(f"{instance}-{secrets.token_hex(13)}", f"order-{at}", "fp16", "cuda:0", time.time_ns())
    made.tenant = f"tenant-{at % 20}"
    line = Line(made, 37)
    made.lines.append(line)
    line.enter(8)
    line.ran(64, 3_000_000, (120_000 + at,))
    made.end(Outcome.COMPLETED)
    made.charge(Charge(line, 118_000 + at, 900.0, 30_000), ACCELERATOR)
    return made


def writer_to(place: str, instance: str, ledger: Ledger) -> Writer:
    book = open_book(place, for_writing=True)
    ledger.begin(0)
    return Writer(
        book,
        Scribe(book, "bench", instance, "0", time.time_ns()),
        lambda each: receipt_message(each, SOURCES).SerializeToString(),
        lambda: {"accelerator of cuda:0": Counted("measured by nvml:GPU-0", ledger)},
        time.time_ns,
    )


def writing(place: str) -> tuple[float, float, float]:
    """Microseconds of CPU for each receipt: of `put`, of the writer, of that its encoding."""
    ledger, instance = Ledger(), secrets.token_hex(6)
    writer = writer_to(place, instance, ledger)
    puts, writes, encodes = [], [], []
    for step in range(TRANSACTIONS):
        receipts = [receipt(A_SECOND * step + at, instance) for at in range(A_SECOND)]
        ledger.meter(A_SECOND * 150_000)
        begun = time.thread_time()
        for each in receipts:
            writer.put(each)
        puts.append(time.thread_time() - begun)
        begun = time.thread_time()
        for each in receipts:
            receipt_message(each, SOURCES).SerializeToString()
        encodes.append(time.thread_time() - begun)
        begun = time.thread_time()
        writer.write()
        writes.append(time.thread_time() - begun)
    if writer.status.written != A_SECOND * TRANSACTIONS:
        raise SystemExit(f"not all was written: {writer.status}")
    writer.start()
    writer.close()
    put, write, encode = (statistics.mean(each[5:]) / A_SECOND * 1e6 for each in (puts, writes, encodes))
    return put, write, encode


def soak(place: str, seconds: int) -> None:
    """Tells every tenth part of the time what memory the process takes, and how many receipts wait."""
    ledger, instance = Ledger(), secrets.token_hex(6)
    writer = writer_to(place, instance, ledger)
    writer.start()
    begun, count, most_waiting = time.monotonic(), 0, 0
    for tenth in range(10):
        while (passed_s := time.monotonic() - begun) < seconds * (tenth + 1) / 10:
            while count < passed_s * A_SECOND * 2:
                ledger.meter(150_000)
                writer.put(receipt(count, instance))
                count += 1
            most_waiting = max(most_waiting, writer.status.waiting)
            time.sleep(0.01)
        memory_mb = resident_mb(os.getpid())
        print(f"{passed_s:6.0f} s: {count:>9,} put, {memory_mb:.0f} MB, at most {most_waiting:,} waited")
    writer.close()
    print(f"{writer.status.written:,} of {count:,} written, {writer.status.left_out} left out")


def fill_year(book: Book) -> None:
    """Hours of a year for each tenant and variant."""
    draw = random.Random(1)
    names = [column.name for column in HOURS.columns]
    with book.engine.begin() as connection:
        connection.execute(insert(SERVERS).values(id=1, name="bench"))
        for table, count in ((TENANTS, YEAR_TENANTS), (VARIANTS, YEAR_VARIANTS)):
            rows = [{"id": at + 1, "name": f"{table.name}-{at}"} for at in range(count)]
            connection.execute(insert(table), rows)
        marks = ", ".join("?" * len(names))
        for hour in range(BEGINNING, BEGINNING + YEAR_HOURS):
            figures = tuple(draw.randrange(10**6) for _ in FIGURES)
            rows_of_hour = [
                (hour, 1, tenant + 1, variant + 1, *figures)
                for tenant in range(YEAR_TENANTS)
                for variant in range(YEAR_VARIANTS)
            ]
            connection.exec_driver_sql(
                f"INSERT INTO hours ({', '.join(names)}) VALUES ({marks})", rows_of_hour
            )


def asked(book: Book, hours: int, by: By) -> tuple[float, int]:
    """CPU seconds, and rows."""
    begin_s = BEGINNING * 3600
    begun = time.process_time()
    used = usage(book, begin_s, begin_s + hours * 3600, by, lambda tenant: True, True)
    return time.process_time() - begun, len(used.rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--postgres", type=Path, help="the folder of its programs: see tests/fixtures/get_postgres.sh"
    )
    parser.add_argument("--year", action="store_true", help="make a year of hours, 4.4 million rows, and ask")
    parser.add_argument("--soak", type=int, metavar="SECONDS", help="put 5,000 receipts/s for so long")
    arguments = parser.parse_args(argv)
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        places = {"SQLite": str(folder / "book.sqlite3")}
        if arguments.postgres:
            (folder / "postgres").mkdir()
            folder.chmod(0o755)
            running = undo.enter_context(running_postgres(arguments.postgres, folder / "postgres"))
            places["PostgreSQL"] = running.new_database()
        print("CPU microseconds a receipt   put    writer   of that encoding")
        for name, place in places.items():
            put, write, encode = writing(place)
            print(f"{name:<24}{put:>8.2f}{write:>10.1f}{encode:>19.1f}")
        print(f"memory at the most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
        for name, place in places.items() if arguments.soak else ():
            print(f"{name}, 5,000 receipts/s for {arguments.soak} s")
            soak(place, arguments.soak)
        if not arguments.year:
            return
        year = folder / "year.sqlite3"
        book = open_book(str(year), for_writing=True)
        fill_year(book)
        book.close()
        book = open_book(str(year), for_writing=False)
        size = year.stat().st_size / 1e6
        print(f"a year: {YEAR_HOURS * YEAR_TENANTS * YEAR_VARIANTS:,} rows, {size:.0f} MB")
        for words, hours, by in (
            ("a month by tenant and variant", 30 * 24, By(tenant=True, variant=True)),
            ("a month by hour", 30 * 24, By(hour=True)),
            ("the year by tenant and variant", YEAR_HOURS, By(tenant=True, variant=True)),
            ("the year by hour", YEAR_HOURS, By(hour=True)),
        ):
            seconds, rows = asked(book, hours, by)
            print(f"{words:<32}{seconds:>7.2f} CPU s, {rows:,} rows")
        book.close()


if __name__ == "__main__":
    main()
