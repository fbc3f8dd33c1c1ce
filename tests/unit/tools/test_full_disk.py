"""A disk without room is one sentence, whichever library met it."""

from __future__ import annotations

import errno

import pytest

from wattserve_common.errors import full_disk
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
    assert full_disk(error) == "no room is left on the disk of /models/a: make some, and try again"


def test_a_library_that_has_only_words_for_it_is_understood() -> None:
    error = RuntimeError("I/O error: No space left on device (os error 28)")
    assert full_disk(error) == "no room is left on the disk: make some, and try again"
    assert not full_disk(OSError(errno.EACCES, "Permission denied", "/models/a"))


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
