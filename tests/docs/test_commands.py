"""Every command of the documents runs as written (`make test-docs`), or `listed.py` says why it does not."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.docs import listed
from tests.docs.fences import DOCUMENTS, Block, blocks, commands, name_of, program
from tests.docs.reader import Reader, is_listed

SHELL = {"sh", "bash", "shell", "console"}
FROM_NOTHING = {"docs/tutorial.md"}
"""Documents that bring all their files along."""


def runnable(document: Path) -> list[Block]:
    found = []
    for block in blocks(document):
        if block.language in SHELL or (block.language == "python" and not reason_of(document, block)):
            found.append(block)
    return found


def reason_of(document: Path, block: Block) -> str:
    for (name, part), reason in listed.NOT_RUN_PYTHON.items():
        if name == name_of(document) and part in block.text:
            return reason
    return ""


def all_commands() -> list[tuple[str, str]]:
    """(document, command)."""
    return [
        (name_of(document), command)
        for document in DOCUMENTS
        for block in blocks(document)
        if block.language in SHELL
        for command in commands(block)
    ]


WITH_SOMETHING = [document for document in DOCUMENTS if runnable(document)]


@pytest.mark.documents
@pytest.mark.parametrize("document", WITH_SOMETHING, ids=name_of)
def test_what_a_document_shows_runs(document: Path, reader: Callable[[bool], Reader]) -> None:
    reader(name_of(document) not in FROM_NOTHING).follow(runnable(document))


@pytest.mark.parametrize("command", sorted({command for _, command in all_commands()}))
def test_a_command_is_one_that_tests_may_run_or_is_listed(command: str) -> None:
    assert program(command) in listed.MAY_RUN or is_listed(command)


@pytest.mark.parametrize(
    "pattern",
    [*listed.NOT_RUN, *listed.SHORTENED, *listed.UNTIL_CTRL_C, *listed.IN_A_BARE_PYTHON],
    ids=lambda pattern: pattern[:40],
)
def test_a_listed_pattern_is_of_a_command_that_is_there(pattern: str) -> None:
    assert [command for _, command in all_commands() if fnmatchcase(command, pattern)]


def test_listed_python_is_there() -> None:
    shown = {(name_of(document), block.text) for document in DOCUMENTS for block in blocks(document)}
    for name, part in listed.NOT_RUN_PYTHON:
        assert [text for where, text in shown if where == name and part in text], (name, part)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_blocks_are_python(document: Path) -> None:
    for block in blocks(document):
        if block.language == "python":
            compile(block.text, f"{name_of(document)}:{block.line}", "exec")


@pytest.mark.parametrize("document", WITH_SOMETHING, ids=name_of)
def test_a_file_that_the_reader_saves_is_run(document: Path) -> None:
    shown = runnable(document)
    run = {command for block in shown if block.language in SHELL for command in commands(block)}
    assert [block.file for block in shown if block.file and f"python {block.file}" not in run] == []
