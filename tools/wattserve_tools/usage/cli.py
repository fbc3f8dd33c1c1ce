"""The command `wattserve usage`: what was used, by whom, and what it cost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wattserve_client import Client, Tls, UsageReport, WattserveError
from wattserve_client.errors import in_shared_flags
from wattserve_common.arguments import address, number
from wattserve_common.errors import UserError
from wattserve_server.config import AUTO_BOOK, ServerConfig, add_flags, flag_reader
from wattserve_server.console import wide_console
from wattserve_server.errors import InvalidRequest
from wattserve_tools.usage import show
from wattserve_tools.usage.bill import KEYS, make_bill, needs_hours
from wattserve_tools.usage.tariff import Intensity, Price, Tariff

LAST_UNIX_S = 7_258_118_400  # the year 2200, as of an account book

VARIABLES = {
    "price": "WATTSERVE_PRICE",
    "carbon": "WATTSERVE_CARBON",
    "pue": "WATTSERVE_PUE",
    "embodied": "WATTSERVE_EMBODIED",
}


def add_usage_command(commands: Any) -> None:
    """commands: what `add_subparsers` gave."""
    parser = commands.add_parser(
        "usage",
        help="what was used by whom, in joules, money and carbon, from an account book",
        description="What an account book holds of a span: requests, tokens and joules by tenant, variant or "
        "time, cost and carbon by your own tariff, and what of the meter's joules is nobody's. Of a file or "
        "a PostgreSQL (--account-book), or of a server that runs (--target).",
    )
    add_flags(parser, {"account_book", "port"})
    parser.add_argument(
        "--target", type=flag_reader("--target", address), metavar="HOST:PORT", help="ask this server instead"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="for a server that asks for a key")
    parser.add_argument("--tls", action="store_true", help="encrypt; any other --tls-... implies it")
    parser.add_argument("--tls-ca", metavar="FILE", help="who signs the server's certificate, PEM")
    # With names of their own: as tls_cert and tls_key they would be read as the server's settings.
    parser.add_argument(
        "--tls-cert", dest="own_cert", metavar="FILE", help="your own certificate, PEM, where it asks for one"
    )
    parser.add_argument("--tls-key", dest="own_key", metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--tls-server-name",
        default="",
        metavar="NAME",
        help="the name that the server's certificate must show",
    )
    parser.add_argument(
        "--since", metavar="WHEN", help="ISO 8601: 2026-11-01, or 2026-11-01T08:00 (default: this month)"
    )
    parser.add_argument("--until", metavar="WHEN", help="likewise, itself not included (default: now)")
    parser.add_argument(
        "--by", default="tenant,variant", metavar="KEYS",
        help=f"rows apart by any of {', '.join(KEYS)}, or none for the sum (default: tenant,variant)",
    )  # fmt: skip
    parser.add_argument("--time-zone", default="UTC", metavar="NAME", help="as Europe/Berlin (default: UTC)")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="default: table")
    for name, metavar, text in (
        ("price", "PRICE", "of a kWh, with its currency: 0.30EUR"),
        ("carbon", "G_OR_CSV", "gCO2e of a kWh, or a CSV with the columns hour and g_per_kwh"),
        ("pue", "X", "power usage effectiveness: cost and carbon are of X times the joules (default: 1)"),
        ("embodied", "G", "gCO2e of making the hardware, for each hour of the span, for the SCI line"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=f"{text} [{VARIABLES[name]}]")
    parser.set_defaults(run=_usage)


def _usage(config: ServerConfig, arguments: argparse.Namespace) -> int:
    tariff = _tariff(arguments)
    zone = _zone(arguments.time_zone)
    now_s = time.time()
    begin = datetime.fromtimestamp(now_s, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since_s = _instant("--since", arguments.since, zone, begin.timestamp())
    until_s = _instant("--until", arguments.until, zone, now_s + 1)
    if until_s <= since_s:
        raise UserError("--until is not after --since: nothing lies between them")
    by = _keys(arguments.by)
    keys = {"by_tenant": "tenant" in by, "by_variant": "variant" in by, "by_hour": needs_hours(by, tariff)}
    if arguments.target and "account_book" in arguments:
        raise UserError("--target asks a server, --account-book reads a book itself: give one of them")
    if arguments.target:
        report = _of_server(arguments, since_s, until_s, keys)
    else:
        report = _of_book(config, since_s, until_s, keys)
    bill = make_bill(report, by, zone, arguments.time_zone, tariff)
    if arguments.format == "table":
        show.as_tables(bill, wide_console())
    else:
        print({"csv": show.as_csv, "json": show.as_json}[arguments.format](bill).rstrip("\n"))
    if arguments.format == "csv":  # has no place for them
        for words in show.breaks(bill):
            print(f"wattserve: {words}", file=sys.stderr)
    return 0


def _of_server(
    arguments: argparse.Namespace, since_s: int, until_s: int, keys: dict[str, bool]
) -> UsageReport:
    given = (arguments.tls_ca, arguments.own_cert, arguments.own_key, arguments.tls_server_name)
    try:
        tls = Tls(*given) if any(given) else arguments.tls
        with Client(arguments.target, tls=tls, api_key_file=arguments.api_key_file) as client:
            return client.usage(since_s, until_s, **keys)
    except (WattserveError, ValueError) as error:
        raise UserError(f"{arguments.target}: {in_shared_flags(str(error))}") from None
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _of_book(config: ServerConfig, since_s: int, until_s: int, keys: dict[str, bool]) -> UsageReport:
    from wattserve_client.wire import from_message
    from wattserve_server.accounts.store import default_place, open_book
    from wattserve_server.accounts.usage import By, usage
    from wattserve_server.service.usage import usage_message  # the same values, as a server tells them

    place = config.account_book or AUTO_BOOK
    if place == AUTO_BOOK:
        place = default_place(config.port)
        if not Path(place).is_file():
            raise UserError(
                f"{place}: there is no account book; give --account-book FILE, or --target HOST:PORT"
            )
    book = open_book(place, for_writing=False)
    try:
        by = By(keys["by_tenant"], keys["by_variant"], keys["by_hour"])
        used = usage(book, since_s, until_s, by, lambda tenant: True, sees_all=True)
    except InvalidRequest as error:  # too many rows
        raise UserError(f"--since and --until: {error}") from None
    finally:
        book.close()
    return from_message(UsageReport, usage_message(used))


def _tariff(arguments: argparse.Namespace) -> Tariff:
    given = dict(_given(arguments))
    pue = _number(*given["pue"]) if "pue" in given else 1.0
    if not 1 <= pue < 10:
        text, where = given["pue"]
        raise UserError(
            f"{where} {text}: is from 1, which is a building that draws nothing else, to less than 10"
        )
    return Tariff(
        Price.parse(*given["price"]) if "price" in given else None,
        Intensity.parse(*given["carbon"]) if "carbon" in given else None,
        pue,
        _number(*given["embodied"]) if "embodied" in given else None,
        {name: where for name, (_, where) in given.items()},
    )


def _given(arguments: argparse.Namespace) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of what the tariff is made: its text, and the flag or variable. A flag goes before its variable."""
    for name, variable in VARIABLES.items():
        text = getattr(arguments, name)
        if text == "":
            raise UserError(f"--{name} is empty; give it a value, or leave it out")
        if text is not None:
            yield name, (text, f"--{name}")
        elif os.environ.get(variable):
            yield name, (os.environ[variable], variable)


def _number(text: str, where: str) -> float:
    try:
        value = number(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{where} {text}: {error}") from None
    if not 0 <= value < float("inf"):
        raise UserError(f"{where} {text}: must be 0 or more, and finite")
    return value


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UserError(
            f"--time-zone {name!r}: is no time zone that is known here, such as Europe/Berlin"
        ) from None


def _instant(flag: str, text: str | None, zone: ZoneInfo, default_s: float) -> int:
    """Unix seconds."""
    if text is None:
        return int(default_s)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{flag} {text!r}: is no date or time, such as 2026-11-01 or 2026-11-01T08:00"
        ) from None
    told = found if found.tzinfo else found.replace(tzinfo=zone)
    try:
        seconds = told.timestamp()
    except (OverflowError, ValueError):  # a zone's offset beyond the first or the last year
        seconds = -1.0
    if not 0 <= seconds < LAST_UNIX_S:
        raise UserError(f"{flag} {text!r}: is not between 1970 and 2200")
    return int(seconds)


def _keys(text: str) -> Sequence[str]:
    if text == "none":
        return ()
    keys = [each.strip() for each in text.split(",")]
    wrong = [key for key in keys if key not in KEYS]
    if wrong or len(set(keys)) < len(keys):
        which = f"{wrong[0]!r} is none" if wrong else "one stands there twice"
        raise UserError(f"--by {text}: {which}; choose from {', '.join(KEYS)}, or none")
    return keys
