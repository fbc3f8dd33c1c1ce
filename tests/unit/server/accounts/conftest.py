"""An account book's place: a file, and with `make test-accounts` a database of PostgreSQL too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.postgres import Postgres, running_postgres

BINARIES = os.environ.get("WATTSERVE_POSTGRES", "")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    if not BINARIES:
        pytest.skip("PostgreSQL is tried by make test-accounts")
    folder = tmp_path_factory.mktemp("postgres")
    for each in (folder, *folder.parents[:2]):  # pytest keeps them to their owner, who does not run it
        each.chmod(0o755)
    with running_postgres(Path(BINARIES), folder) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "book.sqlite3")
    url: str = request.getfixturevalue("postgres").new_database()
    return url
