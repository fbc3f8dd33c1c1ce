"""`wattserve-client predict --file`: the lines of a file, as they are answered."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattserve_client import Unavailable, cli
from wattserve_client._cli.predict_lines import MAX_LINE, Sum, lines
from wattserve_client._cli.words import ArgumentsError
from wattserve_client.testing import FakeServer, Reply

Output = pytest.CaptureFixture[str]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        fake.otherwise(lambda given: Reply(label="positive", energy_joules=len(given) / 1000))
        yield fake


def run(server: FakeServer, path: object, *more: str) -> int:
    return cli.main(["--target", server.target, "predict", "--file", str(path), *more])


def test_each_line_is_a_request_with_a_row_and_all_are_added_up(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\ufeffabc\n\nabcdef\r\n", encoding="utf-8")
    assert run(server, path, "--settled") == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert [row.split() for row in out.splitlines()[:3]] == [
        ["line", "label", "score", "tokens", "padded", "joules", "state", "input"],
        ["1", "positive", "0.900", "1", "1", "0.003", "settled", "abc"],
        ["3", "positive", "0.900", "1", "1", "0.006", "settled", "abcdef"],
    ]
    assert "energy      0.009 J above idle for 2 lines (2 settled)" in out
    assert "source      simulated by fake" in out
    assert "UNVERIFIED  nobody has checked that fp32" in out
    assert "skipped     1 empty line" in out
    assert [each.text for each in server.requests] == ["abc", "abcdef"]
    assert all(each.streamed and each.wait_for_settled_energy for each in server.requests)


def test_a_line_that_fails_is_told_and_disturbs_no_other(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\nbad\nabcdef\n")
    server.fail_next("INVALID_ARGUMENT", "too long", field="text.texts[0]")
    assert run(server, path) == 1
    out, error = capsys.readouterr()
    told = f"{server.target}: text.texts[0]: too long (INVALID_ARGUMENT, INVALID_REQUEST)"
    assert error == f"wattserve-client: line 1: {told}\n"
    assert "failed      1 of 3 lines" in out
    assert "0.009 J above idle for 2 lines" in out


def test_json_is_one_object_a_line_with_errors_among_them(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\nabcdef\n")
    server.fail_next("RESOURCE_EXHAUSTED", "full")
    assert run(server, path, "--json") == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "line": 1,
        "error": {
            "code": "RESOURCE_EXHAUSTED",
            "reason": "OVERLOADED",
            "field": "",
            "message": "full",
            "retry_after_seconds": 0.1,
            "receipt_id": "",
            "target": server.target,
        },
    }
    assert (second["line"], second["receipt"]["energy_uj"]) == (2, 6000)


def test_an_unknown_energy_is_left_out_of_the_sum_and_said(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\ndark\n")
    server.answer("dark", label="negative", energy_joules=None, unknown_reason="the meter died")
    assert run(server, path, "--settled") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split()[5:7] == ["unknown", "unknown"]
    assert "0.003 J above idle for 1 line (1 settled, 1 unknown)" in out
    assert "unknown     for 1 line, not in the sum" in out
    assert "unknown     the meter died" in out


def test_only_unknown_energies_make_no_sum_of_zero(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("dark\n")
    server.answer("dark", label="negative", energy_joules=None, unknown_reason="no meter")
    assert run(server, path, "--settled") == 0
    assert "energy      unknown (1 unknown)" in capsys.readouterr().out


def test_a_stream_that_breaks_names_the_lines_it_leaves_open(
    capsys: Output, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\n\nabcdef\n")
    server.fail_next(Unavailable, "draining", method="PredictStream")
    assert run(server, path) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith(f"wattserve-client: {path}: sent, and not answered: lines 1")
    assert error[1] == f"wattserve-client: {server.target}: draining (UNAVAILABLE, STARTING_OR_STOPPING)"


def test_a_stream_that_reached_no_server_leaves_no_line_in_doubt(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\n")
    with FakeServer() as gone:
        pass
    assert run(gone, path) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"wattserve-client: {gone.target}: out of reach: no server took the call")


def test_each_line_has_the_priority_that_was_asked_for(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\nabcdef\n")
    assert run(server, path, "--priority", "1") == 0
    assert [each.priority for each in server.requests] == [1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "there is no text in it"),
        (b"\n \n", "there is no text in it"),
        (b"\xff\xfe\x00", "not UTF-8 text, at line 1 or soon after (invalid start byte)"),
        (b"a\0b\n", "line 1 holds a null character: this is no text file"),
    ],
)
def test_a_file_that_is_no_use_is_one_line(
    capsys: Output, server: FakeServer, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_bytes(content)
    assert run(server, path) == 2
    out, error = capsys.readouterr()
    assert (out, error) == ("", f"wattserve-client: {path}: {message}\n")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--request-id", "a\udcff", "request_id is not Unicode text"),
        ("--max-energy-uj", "0", "max_energy_uj is 0; it must be at least 1"),
    ],
)
def test_a_mistake_in_the_options_of_a_file_is_one_line(
    capsys: Output, server: FakeServer, tmp_path: Path, option: str, value: str, message: str
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("abc\n")
    assert run(server, path, option, value) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"wattserve-client: {message}")


def test_a_folder_is_no_file(capsys: Output, server: FakeServer, tmp_path: Path) -> None:
    assert run(server, tmp_path) == 2
    assert capsys.readouterr().err == f"wattserve-client: {tmp_path}: cannot be read (Is a directory)\n"


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    endless = io.StringIO("x" * (MAX_LINE + 2))
    with pytest.raises(ArgumentsError, match="line 1 has more than 1000000 characters"):
        list(lines(endless, "big"))
    assert endless.tell() == MAX_LINE + 1


def test_standard_input_is_read_as_it_comes(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("abc\ndéf\n".encode()), "ascii"))
    assert run(server, "-") == 0
    assert [each.text for each in server.requests] == ["abc", "déf"]


def test_no_more_lines_are_read_than_the_server_is_asked(server: FakeServer) -> None:
    """A file without end is read only as far as answers make room."""
    read, write = os.pipe()
    with FakeServer(delay_s=600) as slow, os.fdopen(read) as file:
        os.write(write, b"%99d\n" % 0 * 500)
        os.close(write)
        assert (
            cli.main(["--target", slow.target, "--timeout", "0.3", "predict", "--file", f"/dev/fd/{read}"])
            == 1
        )
        assert len(slow.requests) <= 64
        assert file.read()


def test_ctrl_c_still_shows_the_sum_and_what_is_open(
    capsys: Output, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(65))  # one more than may be open at once, so that one is answered by then

    class Endless(io.TextIOWrapper):
        def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # as TextIOWrapper
            if next(numbers, None) is None:
                raise KeyboardInterrupt
            return "abc\n"

    monkeypatch.setattr("sys.stdin", Endless(io.BytesIO()))
    assert run(server, "-") == 130
    out, error = capsys.readouterr()
    assert "J above idle for " in out
    assert error.splitlines()[-1] == "wattserve-client: stopped"


def test_the_sum_keeps_few_remarks_however_many_lines_there_are(server: FakeServer, capsys: Output) -> None:
    total = Sum()
    for number in range(1000):
        total.remark("warning", f"number {number}")
    assert len(total.remarks) == 10
    assert "there were more remarks than these" in total.text(0)
