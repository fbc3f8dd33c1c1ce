"""A disk without room, or no file that may be opened, is one sentence, whichever library met it."""

from __future__ import annotations

import errno

import pytest

from wattserve_common.errors import shortage
from wattserve_tools import cli


def wrapped() -> Exception:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", "/models/a")
    except OSError:
        try:
            raise ValueError("cannot save")
        except ValueError as error:
            return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/models/a"),
        wrapped(),
        OSError(errno.EDQUOT, "", "/models/a"),
    ],
)
def test_it_is_told_from_other_errors(error: Exception) -> None:
    assert shortage(error) == "no room is left on the disk of /models/a: make some, and try again"


def test_a_library_that_has_only_words_for_it_is_understood() -> None:
    error = RuntimeError("I/O error: No space left on device (os error 28)")
    assert shortage(error) == "no room is left on the disk: make some, and try again"
    assert not shortage(OSError(errno.EACCES, "Permission denied", "/models/a"))


def test_no_more_files_is_told_too() -> None:
    told = shortage(OSError(errno.EMFILE, "Too many open files", "/models/a"))
    assert "no file can be opened any more" in told
    assert "ulimit -n" in told


def test_the_command_says_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/models/a")

    monkeypatch.setattr(cli, "read_config", full)
    assert cli.main(["variants"]) == 2
    assert capsys.readouterr().err == (
        "wattserve: error: no room is left on the disk of /models/a: make some, and try again\n"
    )
