"""`wattserve usage` on a book: its rows add up to the meter, in each of its forms."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.fixtures.account_books import BEGINNING_NS, Bookkeeper
from tests.fixtures.fake_server.scripted import ScriptedServer
from wattserve_tools.cli import main

HOUR_NS = 3600 * 10**9
SPAN = ("--since", "2027-01-15", "--until", "2027-01-17")  # it begins at 2027-01-15T08:00Z


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    keeper = Bookkeeper(str(tmp_path_factory.mktemp("books") / "book.sqlite3"))
    for at in range(24):
        keeper.answer(uj=10**6 + at, tenant=("shop", "")[at % 2], host_uj=None, output_tokens=3)
        keeper.writer.write()
        keeper.now_ns += HOUR_NS
    keeper.ledger.meter(5_000_000)
    keeper.ledger.to_warmup(4_000_000)
    keeper.end()
    return keeper.place


@pytest.fixture
def place(made: str, tmp_path: Path) -> str:
    return shutil.copy(made, str(tmp_path / "book.sqlite3"))


def test_the_command_waits_for_no_library_of_models() -> None:
    code = (
        "import sys, wattserve_server.service.usage; print([name for name in sys.modules if name == 'torch'])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def told(capsys: pytest.CaptureFixture[str], place: str, *arguments: str) -> str:
    assert main(["usage", "--account-book", place, *SPAN, *arguments]) == 0
    return capsys.readouterr().out


def test_rows_and_what_is_nobodys_add_up_to_the_meter(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    bill: dict[str, Any] = json.loads(told(capsys, place, "--format", "json"))
    active_uj = sum(10**6 + at for at in range(24))
    assert bill["total"]["accelerator_uj"] == active_uj
    assert [(row["tenant"], row["requests"], row["output_tokens"]) for row in bill["rows"]] == [
        ("", 12, 36),
        ("shop", 12, 36),
    ]
    assert bill["nobodys_uj"] == {
        "idle, unshared": 480,
        "warm-up": 4_000_000,
        "unattributed": 0,
        "gap": 0,
        "pending": 1_000_000,
        "receipts not here": 0,
    }
    assert bill["total"]["energy_uj"] + sum(bill["nobodys_uj"].values()) == bill["measured_uj"]
    assert bill["measured_uj"] == active_uj + 24 * 30 + 5_000_000
    assert bill["sources"] == ["accelerator of cpu: simulated"]
    assert bill["wh_per_1000_queries"] == pytest.approx(bill["total"]["energy_uj"] / 3.6e9 / 24 * 1000)


def test_days_are_those_of_the_time_zone(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    def days(*arguments: str) -> dict[str, int]:
        bill = json.loads(told(capsys, place, "--by", "day", "--format", "json", *arguments))
        return {row["day"]: row["requests"] for row in bill["rows"]}

    assert days() == {"2027-01-15": 16, "2027-01-16": 8}
    assert days("--time-zone", "Asia/Tokyo") == {"2027-01-15": 7, "2027-01-16": 17}
    months = json.loads(told(capsys, place, "--by", "month,tenant", "--format", "json"))["rows"]
    assert [(row["month"], row["tenant"]) for row in months] == [("2027-01", ""), ("2027-01", "shop")]
    assert json.loads(told(capsys, place, "--by", "none", "--format", "json"))["rows"][0]["requests"] == 24


def test_a_negative_rest_is_told(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "less than nothing is receipts not here"
    assert words not in told(capsys, place)
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE hours SET accelerator_uj = accelerator_uj * 3")
    connection.close()
    shown = " ".join(told(capsys, place).split())
    assert words in shown
    assert "the sums contradict each other: run `wattserve audit check`" in shown


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_days_of_a_clock_change_have_their_own_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], day: str, hours: int
) -> None:
    """Berlin's clocks change at 01:00 UTC: in autumn the hour from two o'clock is there twice, in order."""
    begin = datetime.fromisoformat(f"{day}T00:30+00:00")
    place = str(tmp_path / "book.sqlite3")
    keeper = Bookkeeper(place, now_ns=int((begin - timedelta(hours=12)).timestamp()) * 10**9)
    for _ in range(48):
        keeper.answer()
        keeper.writer.write()
        keeper.now_ns += HOUR_NS
    keeper.end()

    def rows(by: str) -> list[dict[str, Any]]:
        asked = ("--since", day, "--until", str(date.fromisoformat(day) + timedelta(days=1)), "--by", by)
        zone = ("--time-zone", "Europe/Berlin", "--format", "json")
        assert main(["usage", "--account-book", place, *asked, *zone]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
        return found

    assert [(row["day"], row["requests"]) for row in rows("day")] == [(day, hours)]
    told = [datetime.fromisoformat(row["hour"]) for row in rows("hour")]
    assert len(told) == hours
    assert {after - before for before, after in pairwise(told)} == {timedelta(hours=1)}


def test_the_table_names_all_that_it_was_made_of(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = ("--price", "0.30EUR", "--carbon", "400", "--pue", "1.2", "--embodied", "5")
    shown = told(capsys, place, *figures)
    for words in (
        "accelerator of cpu: simulated", "0.3 EUR/kWh (--price)", "400 g/kWh (--carbon)", "1.2 (--pue)",
        "5 g/h (--embodied)", "cost EUR", "gCO2e per inference", "Wh per 1,000 queries", "(none)", "shop",
        "idle, unshared", "29.000996",
    ):  # fmt: skip
        assert words in shown
    bare = told(capsys, place)
    assert "for want of a price" in bare
    assert "for want of an intensity" in bare
    assert "EUR" not in bare.replace("--price 0.30EUR", "")


@pytest.mark.parametrize(
    ("uj", "host_uj", "columns"),
    [(7, None, ("active J",)), (0, 5, ("active J",)), (7, 5, ("accelerator J", "host J"))],
)
def test_the_table_has_a_column_for_each_part_that_is_metered(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    uj: int,
    host_uj: int | None,
    columns: Sequence[str],
) -> None:
    keeper = Bookkeeper(str(tmp_path / "book.sqlite3"))
    keeper.answer(uj=uj, idle_uj=0, host_uj=host_uj)
    keeper.end()
    shown = told(capsys, keeper.place)
    names = ("active J", "accelerator J", "host J")
    assert tuple(name for name in names if name in shown) == columns
    assert f"{(uj + (host_uj or 0)) / 1e6:.6f}" in shown


def test_the_tariff_may_stand_in_the_environment(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTSERVE_PRICE", "0.5USD")
    monkeypatch.setenv("WATTSERVE_PUE", "1.2")
    monkeypatch.setenv("WATTSERVE_EMBODIED", "")
    shown = told(capsys, place, "--carbon", "400")
    for words in ("0.5 USD/kWh (WATTSERVE_PRICE)", "1.2 (WATTSERVE_PUE)", "400 g/kWh (--carbon)"):
        assert words in shown
    assert "0.3 EUR/kWh (--price)" in told(capsys, place, "--price", "0.30EUR")


@pytest.mark.parametrize("name", ["price", "carbon", "pue", "embodied"])
def test_an_error_names_the_flag_or_the_variable_that_gave_the_value(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An empty flag is none that was not given."""
    variable = f"WATTSERVE_{name.upper()}"
    for value in ("0.5USD", "-1") if name == "price" else ("1.5", "-1"):
        monkeypatch.setenv(variable, value)
        assert main(["usage", "--account-book", place, *SPAN, f"--{name}", ""]) == 2
        assert f"error: --{name} is empty; give it a value, or leave it out\n" in capsys.readouterr().err
    assert main(["usage", "--account-book", place, *SPAN]) == 2
    assert f"error: {variable} " in capsys.readouterr().err
    assert main(["usage", "--account-book", place, *SPAN, f"--{name}", "-2"]) == 2
    assert f"error: --{name} " in capsys.readouterr().err


def test_a_spreadsheet_gets_rows_and_accounts(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(told(capsys, place, "--format", "csv", "--carbon", "400"))))
    assert [row["account"] for row in rows[:3]] == ["requests", "requests", "idle, unshared"]
    assert sum(int(row["energy_uj"]) for row in rows) == 24_000_276 + 24 * 30 + 5_000_000
    assert float(rows[0]["carbon_g"]) == pytest.approx(float(rows[0]["kwh"]) * 400)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "colour"), "'colour' is none; choose from tenant, variant"),
        (("--by", "tenant,tenant"), "one stands there twice"),
        (("--time-zone", "Mars"), "no time zone that is known here"),
        (("--since", "soon"), "no date or time"),
        (("--since", "2028-01-01"), "--until is not after --since"),
        (("--since", "1960-01-01"), "is not between 1970 and 2200"),
        (("--since", "0001-01-01T00:00+14:00"), "is not between 1970 and 2200"),
        (("--until", "2201-01-01"), "is not between 1970 and 2200"),
        (("--pue", "0.5"), "is from 1,"),
        (("--pue", "1e308"), "to less than 10"),
        (("--carbon", "/dev/zero"), "is longer than 64 MiB"),
        (("--embodied", "-1"), "must be 0 or more"),
        (("--pue", "inf"), "must be 0 or more, and finite"),
        (("--price", "dear"), "such as 0.30EUR"),
        (("--account-book", "/nowhere/book"), "there is no such file"),
        (("--account-book", "/"), "is no regular file"),
        (("--target", "127.0.0.1:1"), "give one of them"),
    ],
)
def test_what_cannot_be(
    place: str, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], words: str
) -> None:
    assert main(["usage", "--account-book", place, *SPAN, *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("column", ["tenant", "variant"])
def test_a_book_with_sums_of_who_has_no_name_is_damaged(
    place: str, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    with closing(sqlite3.connect(place)) as book, book:
        book.execute(f"UPDATE hours SET {column} = 99")
    assert main(["usage", "--account-book", place, *SPAN]) == 2
    assert f"{place}: damaged: it holds sums of a tenant or variant 99" in capsys.readouterr().err


def test_there_is_no_book_in_the_state_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["usage"]) == 2
    assert "account-book-50051.sqlite3: there is no account book" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--target", "127.0.0.1:1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_server_that_asks_for_a_certificate_gets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = trustme.CA()
    its, mine = authority.issue_cert("127.0.0.1"), authority.issue_cert("accounts")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    mine.cert_chain_pems[0].write_to_path(cert)
    mine.private_key_pem.write_to_path(key)
    pair = its.private_key_pem.bytes(), its.cert_chain_pems[0].bytes()
    with ScriptedServer(grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), True)) as server:
        asked = ["usage", "--target", server.target, "--tls-ca", ca, "--tls-cert", cert, "--format", "json"]
        assert main(asked) == 2
        assert "--tls-cert without --tls-key" in capsys.readouterr().err
        assert main([*asked, "--tls-key", key]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == []


def test_the_beginning_is_what_the_spans_say() -> None:
    assert BEGINNING_NS == 1_800_000_000 * 10**9
