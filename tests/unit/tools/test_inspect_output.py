"""What reports say of where they were made, and how wide they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattserve_server.console import PIPED_WIDTH, wide_console
from wattserve_server.engine.checkpoint import without_path


def test_of_a_folder_only_its_name_is_told_however_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secret" / "model"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for source in (str(folder), f"{folder}/", "secret/model", "./secret/model"):
        assert without_path(source) == "model"
    monkeypatch.chdir(folder)
    assert without_path(".") == "model"


@pytest.mark.parametrize("source", ["demo", "random:distilbert-base", "organisation/model"])
def test_a_name_that_is_no_folder_is_told_in_full(source: str) -> None:
    assert without_path(source) == source


def test_a_pipe_is_as_wide_as_columns_says_and_wide_enough_for_tables_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wide_console().width == PIPED_WIDTH
    monkeypatch.setenv("COLUMNS", "100")
    assert wide_console().width == 100
