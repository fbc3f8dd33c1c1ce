"""`wattserve-client energy`: the ledger, by itself and against an earlier one."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from wattserve_client import (
    Client,
    EnergyQuality,
    EnergyReport,
    EnergySource,
    Gap,
    Unavailable,
    VariantEnergy,
    cli,
)
from wattserve_client._cli import commands
from wattserve_client._cli.show import ledger, rates, together
from wattserve_client.testing import FakeServer

Output = pytest.CaptureFixture[str]

REPORT = EnergyReport(
    source=EnergySource("nvml:GPU-5f", "apportioned counter", EnergyQuality.MEASURED, ""),
    since_unix_ns=1_000_000_000,
    until_unix_ns=11_000_000_000,
    measured_uj=1_000_000_000,
    active=(VariantEnergy("fp32", 200_000_000, 100, 900, 1000), VariantEnergy("int8", 0, 0, 0, 0)),
    warmup_uj=50_000_000,
    idle_uj=700_000_000,
    idle_shared_uj=30_000_000,
    unattributed_uj=20_000_000,
    pending_uj=20_000_000,
    gap_count=1,
    gap_seconds=0.25,
    recent_gaps=(Gap(5_000_000_000, 5_250_000_000, "the counter stood still"),),
    unknown_sequences=3,
    pending_receipts=1,
    idle_watts=70.0,
    unknown_reason="",
    gap_uj=10_000_000,
    device="cuda:0",
    instance_id="5f0c12ab34cd",
)
LATER = replace(
    REPORT,
    until_unix_ns=13_000_000_000,
    measured_uj=1_260_000_000,
    active=(VariantEnergy("fp32", 320_000_000, 148, 0, 0), VariantEnergy("int8", 0, 0, 0, 0)),
    idle_uj=840_000_000,
)


def test_the_ledgers_of_several_devices_add_up_in_one_line() -> None:
    other = replace(LATER, device="cuda:1", source=replace(LATER.source, quality=EnergyQuality.ESTIMATED))
    assert together((REPORT, other)) == (
        "on cuda:0, cuda:1 together: measured and estimated 2,260.000 J = active 520.000 + warm-up 100.000 + "
        "idle 1,540.000 + unattributed 40.000 + gap 20.000 + pending 40.000"
    )
    lost = replace(other, measured_uj=None)
    assert together((REPORT, lost)) == "on cuda:0, cuda:1 together: unknown, as is what cuda:1 used"


def test_the_ledger_is_a_sum_with_shares_and_joules_per_sequence() -> None:
    assert ledger(REPORT, 0).splitlines() == [
        "account            joules    share  sequences  J/sequence",
        "measured        1,000.000  100.0 %",
        "= active fp32     200.000   20.0 %        100           2",
        "+ active int8       0.000    0.0 %          0           -",
        "+ warm-up          50.000    5.0 %",
        "+ idle            700.000   70.0 %",
        "+ unattributed     20.000    2.0 %",
        "+ gap              10.000    1.0 %",
        "+ pending          20.000    2.0 %",
        "",
        "active        on the receipts of requests, above idle",
        "warm-up       warming up and calibrating, what was run again in parts or computed again",
        "idle          what the device draws while nothing runs",
        "unattributed  above idle, with no batch to explain it",
        "gap           counted over times in which the meter told nothing",
        "pending       counted; its batches are not settled yet",
        "",
        "source       measured by nvml:GPU-5f, apportioned counter (cuda:0)",
        "idle draw    70.0 W now",
        "idle shared  30 J of idle are shown on receipts",
        "waiting      1 receipt not settled yet",
        "unknown      3 sequences ran at an unknown energy",
        "gaps         1, 250 ms in all",
        "gap          1970-01-01 00:00:05 UTC: the counter stood still",
        "run          5f0c12ab34cd",
        "from         1970-01-01 00:00:01 UTC",
        "to           1970-01-01 00:00:11 UTC",
    ]


def test_a_gap_that_has_not_ended_is_told_beside_the_others() -> None:
    (gap,) = REPORT.recent_gaps
    lines = ledger(replace(REPORT, recent_gaps=(replace(gap, end_unix_ns=None),)), 0).splitlines()
    assert "gaps         1, 250 ms in all without one that has not ended" in lines


def test_a_sum_shows_what_each_counter_adds_and_what_it_covers() -> None:
    rapl = EnergySource("rapl", "apportioned counter", EnergyQuality.MEASURED, "", "CPU packages")
    board = replace(REPORT, part="accelerator", measured_uj=900_000_000)
    host = replace(REPORT, part="host", source=rapl, measured_uj=None, unknown_reason="powercap is gone")
    source = replace(REPORT.source, boundary="GPU board + CPU packages")
    lines = ledger(replace(REPORT, source=source, parts=(board, host)), 0).splitlines()
    assert "covers       GPU board + CPU packages" in lines
    assert (
        "accelerator  900.000 J of it, 200.000 active and 700.000 idle (measured by nvml:GPU-5f); "
        "70.0 W idle draw" in lines
    )
    assert "host         unknown: powercap is gone" in lines


def test_against_an_earlier_one_it_has_watts_and_joules_per_new_sequence() -> None:
    rows = [line.split() for line in ledger(LATER, 0, REPORT).splitlines()]
    assert rows[1][-1] == "130.00"
    assert rows[2][-2:] == ["60.00", "2.5"]
    assert rows[3][-2:] == ["0.00", "-"]
    assert rows[5][-1] == "70.00"


def test_the_watts_of_the_accounts_add_up_to_the_meters() -> None:
    told = rates(LATER, REPORT)
    assert told.pop("measured") == 130.0
    assert sum(watts for watts in told.values() if watts is not None) == 130.0


def test_it_fits_a_terminal_of_eighty_columns() -> None:
    assert max(map(len, ledger(LATER, 80, REPORT).splitlines())) <= 80


@pytest.mark.parametrize("quality", [EnergyQuality.ESTIMATED, EnergyQuality.SIMULATED])
def test_a_total_that_no_sensor_measured_is_not_called_measured(quality: EnergyQuality) -> None:
    shown = ledger(replace(REPORT, source=replace(REPORT.source, quality=quality)), 0)
    assert shown.splitlines()[1].split()[0] == quality
    assert "measured" not in shown


def test_a_ledger_without_figures_is_unknown_with_its_reason() -> None:
    none = EnergySource("none", "none", EnergyQuality.NONE, "started with --meter none")
    report = replace(
        REPORT, source=none, measured_uj=None, unknown_reason="no meter was found", idle_watts=None
    )
    shown = ledger(report, 0)
    assert shown.startswith("energy       unknown: no meter was found\n")
    assert "source       no meter: started with --meter none" in shown
    assert "account" not in shown


def test_another_run_of_the_server_has_another_ledger() -> None:
    """Told by its name, whatever the clock says; of an older server, that names none, by the clock."""
    assert set(rates(replace(LATER, instance_id="another"), REPORT).values()) == {None}
    nameless = replace(REPORT, instance_id="")
    fresh = replace(nameless, since_unix_ns=20_000_000_000, until_unix_ns=21_000_000_000)
    assert set(rates(fresh, nameless).values()) == {None}
    assert rates(replace(LATER, instance_id=""), nameless)["measured"] == 130.0


def test_without_a_new_reading_there_are_no_watts() -> None:
    assert set(rates(REPORT, REPORT).values()) == {None}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(variants=("fp32", "bf16")) as fake, Client(fake.target) as client:
        fake.otherwise(label="positive", energy_joules=0.25)
        client.predict(["a", "b"])
        client.predict("c", variant="bf16")
        yield fake


def test_the_command_shows_the_servers_ledger(capsys: Output, server: FakeServer) -> None:
    assert cli.main(["--target", server.target, "energy"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == ["simulated", "0.750", "100.0", "%"]
    assert rows[2] == ["=", "active", "fp32", "0.500", "66.7", "%", "2", "0.25"]
    assert rows[3] == ["+", "active", "bf16", "0.250", "33.3", "%", "1", "0.25"]


def test_its_json_adds_up(capsys: Output, server: FakeServer) -> None:
    assert cli.main(["--target", server.target, "energy", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured_uj"] == sum(each["active_uj"] for each in told["active"]) == 750_000


def ticks(monkeypatch: pytest.MonkeyPatch, count: int, between: Any = lambda: None) -> list[float]:
    """Let a watch look that many times, then press Ctrl-C; the pauses it asked for."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == count:
            raise KeyboardInterrupt
        between()

    monkeypatch.setattr(commands, "pause", pause)
    return pauses


def test_a_watch_shows_one_table_after_another_until_ctrl_c_which_is_no_error(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = ticks(monkeypatch, 3)
    assert cli.main(["--target", server.target, "energy", "--watch"]) == 0
    out, error = capsys.readouterr()
    assert (pauses, error) == ([2.0, 2.0, 2.0], "")
    assert out.count("now J/seq") == 3
    assert "\x1b" not in out


def test_a_watch_as_json_is_one_object_a_line_with_watts(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def between() -> None:
        with Client(server.target) as client:
            client.predict("more", variant="bf16")

    ticks(monkeypatch, 2, between)
    assert cli.main(["--target", server.target, "energy", "--watch", "0.5", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["seconds_since_last"] is None
    assert first["watts_since_last"]["active bf16"] is None
    assert second["watts_since_last"]["active fp32"] == 0
    assert second["watts_since_last"]["active bf16"] * second["seconds_since_last"] == pytest.approx(0.25)


def test_a_watch_outlives_a_restart_of_the_server(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Unavailable("no server took the call", "UNAVAILABLE", server.target)
    again = replace(LATER, instance_id="ab34cd5f0c12", since_unix_ns=12_000_000_000)
    for options in ([], ["--json"]):
        said: Iterator[EnergyReport | Unavailable] = iter(
            (REPORT, gone, gone, again, replace(again, until_unix_ns=15_000_000_000))
        )

        def report(self: object, said: Iterator[EnergyReport | Unavailable] = said) -> EnergyReport:
            what = next(said)
            if isinstance(what, Unavailable):
                raise what
            return what

        monkeypatch.setattr(Client, "energy_report", report)
        ticks(monkeypatch, 5)
        assert cli.main(["--target", server.target, "energy", "--watch", *options]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    tables, lines = out.split("\n\n{", 1)
    assert tables.count("waiting for the server: ") == 2
    new = "server restarted: new ledger since 1970-01-01 00:00:12 UTC\n\naccount "
    before, *after = tables.split(new)
    assert (len(after), before.count("now J/seq")) == (2, 1)
    first, *waits, second, third = map(json.loads, ("{" + lines).splitlines())
    assert [wait["error"]["code"] for wait in waits] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert [tick["instance_id"] for tick in (first, second)] == ["5f0c12ab34cd", "ab34cd5f0c12"]
    assert (second["seconds_since_last"], third["seconds_since_last"]) == (None, 2.0)


@pytest.mark.usefixtures("short_pauses")
def test_a_watch_of_a_server_that_was_never_there_is_an_error(capsys: Output) -> None:
    with FakeServer() as gone:
        target = gone.target
    assert cli.main(["--target", target, "energy", "--watch"]) == 1
    assert f"{target}: out of reach: " in capsys.readouterr().err


def test_ctrl_c_elsewhere_is_130(capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "energy_report", interrupted)
    assert cli.main(["--target", server.target, "energy"]) == 130
    assert capsys.readouterr() == ("", "wattserve-client: stopped\n")


def test_on_a_terminal_each_table_takes_the_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pseudo-terminal: nothing else is one."""
    controller, terminal = pty.openpty()
    tables = iter(("one\ntwo", "three\nfour"))
    with os.fdopen(terminal, "w") as screen:
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setenv("TERM", "xterm")
        ticks(monkeypatch, 2)
        commands.watch(lambda: next(tables), 2.0)
        shown = ""
        while "four" not in shown:  # a terminal hands out what it has, in parts
            shown += os.read(controller, 10_000).decode()
    os.close(controller)
    assert shown.index("one") < shown.index("two") < shown.index("\x1b[1A\x1b[2K") < shown.index("three")
    assert shown.count("one") == 1
