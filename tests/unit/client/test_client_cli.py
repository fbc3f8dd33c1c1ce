"""The command `wattserve-client` against a fake server: single calls, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattserve_client import Client, NotPossible, Overloaded, Tls, Unavailable, cli
from wattserve_client._cli.show import receipt_with_lines
from wattserve_client._cli.words import error_line
from wattserve_client._fake.ledger import fake_variant
from wattserve_client.testing import FakeServer

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTSERVE_TARGET", raising=False)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    proxy = replace(fake_variant("int4"), proxy="runs fp32", verified=True)
    with FakeServer(variants=("fp32", proxy)) as fake:
        fake.answer("a delightful film", label="positive", energy_joules=0.0412)
        fake.answer("bad", label="negative", energy_joules=0.0021)
        fake.answer([101, 7592, 102], label="positive", energy_joules=0.5)
        fake.answer("dark", label="negative", energy_joules=None, unknown_reason="the meter died")
        yield fake


def shown(capsys: Output, server: FakeServer, *arguments: str) -> str:
    """What a command prints that does well."""
    code = cli.main(["--target", server.target, *arguments])
    out, error = capsys.readouterr()
    assert (code, error) == (0, "")
    return out


def as_json(capsys: Output, server: FakeServer, *arguments: str) -> Any:
    return json.loads(shown(capsys, server, *arguments, "--json"))


def complaint(capsys: Output, code: int, *arguments: str) -> str:
    """What a refused command says: one line, and nothing else."""
    assert cli.main(arguments) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("wattserve-client: ")
    assert error.count("\n") == 1
    return error.removeprefix("wattserve-client: ").rstrip("\n")


def test_texts_are_one_request_with_a_row_each_and_one_receipt(capsys: Output, server: FakeServer) -> None:
    lines = shown(capsys, server, "predict", "a delightful film", "bad", "--settled").splitlines()
    assert lines[:6] == [
        "label     score  tokens  padded  joules  state    input",
        "positive  0.900       3       3  0.0412  settled  a delightful film",
        "negative  0.900       1       3  0.0021  settled  bad",
        "",
        "energy       0.0433 J above idle (settled, apportioned from joules simulated by fake)",
        "interval     95 % 0.0433 to 0.0433 J of the apportioning, without the sensor's own error",
    ]
    assert any(
        line.startswith("source       simulated by fake, apportioned simulation: a fake server for tests")
        for line in lines
    )
    assert len(server.requests) == 1
    assert server.requests[0].wait_for_settled_energy


def test_a_receipt_that_is_a_sum_shows_its_parts_and_what_they_cover(server: FakeServer) -> None:
    with Client(server.target) as client:
        receipt = client.predict("bad", wait_for_settled_energy=True).receipt
    (alone,) = receipt.parts
    assert (alone.name, alone.energy_uj, alone.state) == ("accelerator", receipt.energy_uj, receipt.state)
    assert "accelerator" not in receipt_with_lines(receipt, 0)
    host = replace(alone, name="host", energy_uj=None, idle_share_uj=None, unknown_reason="powercap is gone")
    lines = receipt_with_lines(replace(receipt, parts=(alone, host)), 0).splitlines()
    assert "accelerator  0.0021 J of it (settled, simulated by fake); 0 J of the idle share" in lines
    assert "host         unknown: powercap is gone" in lines
    assert "covers       no hardware" in lines


def test_a_provisional_figure_says_how_to_get_the_settled_one(capsys: Output, server: FakeServer) -> None:
    out = shown(capsys, server, "predict", "bad")
    assert "0.0021 J above idle (provisional, predicted from joules simulated by fake)" in out
    receipt_id = out.partition("`receipt ")[2].split()[0]
    assert "0.0021 J above idle (settled, apportioned from joules simulated by fake)" in shown(
        capsys, server, "receipt", receipt_id
    )


def test_options_may_stand_among_the_texts_and_behind_the_command(capsys: Output, server: FakeServer) -> None:
    assert cli.main(["predict", "bad", "--settled", "a delightful film", "--target", server.target]) == 0
    assert server.requests[0].inputs == ("bad", "a delightful film")


def test_a_text_that_is_cut_says_how_much_is_missing(capsys: Output, server: FakeServer) -> None:
    server.otherwise(label="positive")
    long = "word " * 515
    assert "513 tokens; this model takes at most 512; shorten it, or give --truncate" in complaint(
        capsys, 1, "--target", server.target, "predict", "bad", "word " * 513
    )
    out = shown(capsys, server, "predict", "bad", long, "--truncate")
    assert "cut         3 tokens of text 2 cut off and not read" in out
    assert as_json(capsys, server, "predict", long, "--truncate")["cut_tokens"] == [3]
    assert "\ncut " not in shown(capsys, server, "predict", "bad", "--truncate")


def test_token_ids_are_sequences(capsys: Output, server: FakeServer) -> None:
    out = shown(capsys, server, "predict", "--tokens", "101,7592,102")
    assert "positive  0.900       3       3     0.5  provisional  3 token ids" in out


def test_a_priority_reaches_the_server_from_the_texts(capsys: Output, server: FakeServer) -> None:
    shown(capsys, server, "predict", "bad", "--priority", "3")
    shown(capsys, server, "predict", "bad")
    assert [each.priority for each in server.requests] == [3, 0]


def test_an_embedding_is_shown_by_its_beginning(capsys: Output) -> None:
    with FakeServer(labels=()) as server:
        server.answer("a film", output=[0.5, 0.25, -1.0, 7.0])
        out = shown(capsys, server, "predict", "a film")
        assert out.splitlines()[0].split()[0] == "embedding"
        assert out.splitlines()[1].startswith("[0.5, 0.25, -1, … 4]      -")
        assert as_json(capsys, server, "predict", "a film")["output"] == [[0.5, 0.25, -1.0, 7.0]]


def test_an_unknown_energy_is_unknown_with_its_reason_and_never_zero(
    capsys: Output, server: FakeServer
) -> None:
    lines = shown(capsys, server, "predict", "dark", "--settled").splitlines()
    assert lines[1].split() == ["negative", "0.900", "1", "1", "unknown", "unknown", "dark"]
    assert lines[3].split(maxsplit=1) == ["energy", "unknown: the meter died"]
    told = as_json(capsys, server, "predict", "dark", "--settled")["receipt"]
    assert (told["energy_uj"], told["energy_joules"], told["state"]) == (None, None, "unknown")
    assert told["unknown_reason"] == "the meter died"


def test_a_proxy_and_an_unverified_variant_are_always_said(capsys: Output, server: FakeServer) -> None:
    proxied = shown(capsys, server, "predict", "bad", "--variant", "int4")
    assert "int4 only stands in for a precision: runs fp32" in proxied
    assert "UNVERIFIED" not in proxied
    plain = shown(capsys, server, "predict", "bad")
    assert "nobody has checked that fp32 ran at the precision of its name" in plain
    assert "PROXY" not in plain
    about = shown(capsys, server, "info")
    assert "PROXY: runs fp32" in about
    verified = {line.split()[0]: line.split()[6] for line in about.splitlines() if "ready" in line}
    assert verified == {"fp32*": "no", "int4": "yes"}


@pytest.mark.parametrize("command", ["predict bad", "info", "ready", "energy"])
def test_json_may_stand_before_the_command_as_the_target_may(
    capsys: Output, server: FakeServer, command: str
) -> None:
    assert isinstance(json.loads(shown(capsys, server, "--json", *command.split())), dict)


def test_json_has_units_in_its_names(capsys: Output, server: FakeServer) -> None:
    told = as_json(capsys, server, "predict", "bad", "--settled")
    assert told["classifications"][0]["label"] == "negative"
    assert (told["receipt"]["energy_uj"], told["receipt"]["energy_joules"]) == (2100, 0.0021)
    assert told["receipt"]["source"]["quality"] == "simulated"
    receipt = as_json(capsys, server, "receipt", told["receipt"]["receipt_id"])
    assert receipt == told["receipt"]


def test_info_says_what_is_served_and_by_what(capsys: Output, server: FakeServer) -> None:
    out = shown(capsys, server, "info")
    assert "labels          negative, positive" in out
    assert "RANDOM WEIGHTS  its answers mean nothing" in out
    assert "fp32*    ready  fake    fp32   none      no      no" in out
    told = as_json(capsys, server, "info")
    assert told["target"] == server.target
    assert [each["name"] for each in told["variants"]] == ["fp32", "int4"]
    assert told["meter"]["idle_watts"] == 0


def test_a_receipt_can_be_waited_for(capsys: Output) -> None:
    with FakeServer(settles=False) as server, Client(server.target) as client:
        server.otherwise(label="positive")
        receipt_id = client.predict("a film").receipt.receipt_id
        assert "(provisional, predicted from joules simulated by fake)" in shown(
            capsys, server, "receipt", receipt_id
        )
        arguments = "--target", server.target, "--timeout", "0.2", "receipt", receipt_id, "--wait"
        assert "no answer within 0.2 s (--timeout) (DEADLINE" in complaint(capsys, 1, *arguments)
        server.settle()
        assert "(settled, apportioned from joules simulated by fake)" in shown(
            capsys, server, "receipt", receipt_id, "--wait"
        )


def test_the_receipts_of_a_request_id_are_shown_newest_first(capsys: Output, server: FakeServer) -> None:
    for text in ("bad", "a delightful film"):
        shown(capsys, server, "predict", text, "--request-id", "mine")
    out = shown(capsys, server, "receipt", "--request-id", "mine", "--wait")
    newest, older = out.removeprefix("== ").split("\n\n== ")
    assert "0.0412 J above idle (settled, apportioned from joules simulated by fake)" in newest
    assert "0.0021 J above idle (settled, apportioned from joules simulated by fake)" in older
    assert "left out" not in out
    told = as_json(capsys, server, "receipt", "--request-id", "mine")
    assert [each["energy_uj"] for each in told["receipts"]] == [41_200, 2100]
    assert told["older_left_out"] is False
    with Client(server.target) as client:
        for _ in range(99):
            client.predict("bad", request_id="mine")
    assert "older ones are left out" in shown(capsys, server, "receipt", "--request-id", "mine")
    assert complaint(capsys, 1, "--target", server.target, "receipt", "--request-id", "theirs") == (
        f"{server.target}: request_id: no receipt of a request 'theirs' (NOT_FOUND)"
    )


def test_an_error_that_was_charged_says_on_which_receipt(capsys: Output, server: FakeServer) -> None:
    server.fail_next(NotPossible, "too large", receipt_id="r-7")
    assert complaint(capsys, 1, "--target", server.target, "predict", "bad") == (
        f"{server.target}: too large; what ran is charged: receipt r-7 "
        "(FAILED_PRECONDITION, NOT_POSSIBLE_HERE)"
    )


@pytest.mark.usefixtures("short_pauses")
def test_several_servers_are_each_shown_and_one_lost_hides_no_other(
    capsys: Output, server: FakeServer
) -> None:
    with FakeServer() as gone:
        lost = gone.target
    arguments = ["--target", f"{server.target},{lost}", "--timeout", "5"]
    assert cli.main([*arguments, "info", "--json"]) == 1
    out, error = capsys.readouterr()
    assert [each["target"] for each in json.loads(out)] == [server.target]
    assert f"wattserve-client: {lost}: out of reach: " in error


def test_the_receipt_is_found_on_the_server_that_has_it(capsys: Output, server: FakeServer) -> None:
    with FakeServer() as other, Client(server.target) as client:
        receipt_id = client.predict("bad").receipt.receipt_id
        out = shown(capsys, other, "--target", server.target, "receipt", receipt_id)
        assert f"receipt      {receipt_id}" in out


def test_the_target_may_come_from_the_environment(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTSERVE_TARGET", server.target)
    assert cli.main(["predict", "bad"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("WATTSERVE_TARGET", "localhost")
    assert complaint(capsys, 2, "info") == (
        "WATTSERVE_TARGET: 'localhost' is not HOST:PORT, like 127.0.0.1:50051"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND (see `wattserve-client --help`)"),
        (["predict"], "predict takes TEXT, --file or --tokens, and only one of them"),
        (["predict", "a", "--file", "b"], "predict takes TEXT, --file or --tokens, and only one of them"),
        (["receipt"], "receipt takes ID or --request-id, and only one of them"),
        (["receipt", "r-1", "--request-id", "x"], "receipt takes ID or --request-id, and only one of them"),
        (["predict", "--tokens", "1,x"], "argument --tokens: '1,x' is not a list of token ids"),
        (["predict", "--tokens", "1_0"], "argument --tokens: '1_0' is not a list of token ids"),
        (["--timeout", "1_0", "info"], "argument --timeout: '1_0' is not a number of seconds above 0"),
        (["predict", "a", "--priority", "4"], "argument --priority: '4' is unknown; choose from 0, 1, 2"),
        (["predict", "a", "--settld"], "there is no option --settld here; did you mean --settled?"),
        (["predict", "a", "--settle"], "there is no option --settle here; did you"),  # no abbreviation
        (["--target", "here", "info"], "argument --target: 'here' is not HOST:PORT, like 127.0.0.1:50051"),
        (
            ["--target", "http://localhost:50051", "info"],
            "argument --target: 'http://localhost:50051' is not HOST:PORT, leave out http://",
        ),
        (["--target", "a:1", "--target", "a:1", "info"], "--target names the same address twice"),
        (["--timeout", "0", "info"], "argument --timeout: '0' is not a number of seconds above 0"),
        (["energy", "--watch", "nan"], "argument --watch: 'nan' is not a number of seconds above 0"),
        (["--tls-cert", "c.pem", "info"], "--tls-cert without --tls-key"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_and_code_2(
    capsys: Output, arguments: list[str], message: str
) -> None:
    assert complaint(capsys, 2, *arguments).startswith(message)


def test_what_the_server_refuses_is_one_line_with_code_and_reason(capsys: Output, server: FakeServer) -> None:
    target = "--target", server.target
    assert complaint(capsys, 1, *target, "predict", "bad", "--variant", "int1") == (
        f"{server.target}: variant: no variant 'int1'; the fake server has fp32, int4 (NOT_FOUND)"
    )
    server.fail_next(NotPossible, "not on this device")
    assert complaint(capsys, 1, *target, "predict", "bad") == (
        f"{server.target}: not on this device (FAILED_PRECONDITION, NOT_POSSIBLE_HERE)"
    )
    server.fail_next(Overloaded, "the queue\nis full", times=5, retry_after_s=0.01)
    assert complaint(capsys, 1, *target, "predict", "bad") == (
        f"{server.target}: the queue is full (RESOURCE_EXHAUSTED, OVERLOADED; try again after 0.01 s)"
    )


def test_an_output_on_a_full_disk_is_one_line(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert complaint(capsys, 1, "--target", server.target, "info").startswith(
            "no room is left on the disk"
        )


@pytest.mark.usefixtures("short_pauses")
def test_a_server_out_of_reach_is_one_line(capsys: Output) -> None:
    with FakeServer() as gone:
        target = gone.target
    assert complaint(capsys, 1, "--target", target, "predict", "bad").startswith(f"{target}: out of reach: ")


def test_a_text_that_is_not_unicode_is_one_line(capsys: Output, server: FakeServer) -> None:
    for command in (
        ["predict", "a\udcff"],
        ["predict", "a", "--request-id", "\udcff"],
        ["receipt", "\udcff"],
    ):
        assert "is not Unicode text" in complaint(capsys, 2, "--target", server.target, *command)


def test_a_file_for_tls_that_is_no_use_is_one_line(capsys: Output, tmp_path: Path) -> None:
    missing, wrong = tmp_path / "none.pem", tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    assert complaint(capsys, 2, "--tls-ca", str(missing), "info") == (
        f"{missing}: cannot be read (No such file or directory)"
    )
    assert f"--tls-ca {wrong}: not a certificate" in complaint(capsys, 2, "--tls-ca", str(wrong), "info")


@pytest.mark.parametrize(
    ("arguments", "tls"),
    [
        ([], False),
        (["--tls"], True),
        (["--tls-server-name", "models"], Tls(server_name="models")),
        (["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"], Tls("a", "b", "c")),
    ],
)
def test_the_options_of_tls_reach_the_client(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tls: object
) -> None:
    class Seen(Exception):
        pass

    def client(target: object, *, timeout_s: float, tls: object, api_key_file: object) -> None:
        raise Seen(target, timeout_s, tls, api_key_file)

    monkeypatch.setattr(cli, "Client", client)
    with pytest.raises(Seen) as caught:
        cli.main(["--target", "a:1", "--timeout", "7", *arguments, "info", "--api-key-file", "k"])
    assert caught.value.args == ("a:1", 7.0, tls, "k")


@pytest.mark.parametrize("command", [[], ["predict"], ["ready"], ["info"], ["receipt"], ["energy"]])
def test_every_command_explains_itself(capsys: Output, command: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: wattserve-client" in capsys.readouterr().out


def test_a_reader_that_leaves_early_gets_no_traceback(server: FakeServer) -> None:
    program = f"{sys.executable} -m wattserve_client.cli --target {server.target} predict bad --json | true"
    done = subprocess.run(
        ["bash", "-c", f"{program}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_hints_about_certificates_name_the_commands_own_options(capsys: Output) -> None:
    assert cli.main(["info", "--tls-cert", "/nowhere/cert.pem"]) == 2
    assert "--tls-cert without --tls-key: a client's certificate needs both" in capsys.readouterr().err
    error = Unavailable("not trusted; see Tls.ca, or pass tls= (Tls.server_name)", "UNAVAILABLE", "a:1")
    assert error_line(error) == (
        "a:1: not trusted; see --tls-ca, or pass --tls (--tls-server-name) (UNAVAILABLE)"
    )
