"""An account book's place: a file, and with `make test-accounts` a database of PostgreSQL too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.postgres import Postgres, running_postgres

BINARIES = os.environ.get("WATTSERVE_POSTGRES", "")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if not BINARIES:
        pytest.skip("PostgreSQL is tried by make test-accounts")
    with tempfile.TemporaryDirectory() as folder:  # pytest shuts its own ones to all but their owner again
        Path(folder).chmod(0o755)
        with running_postgres(Path(BINARIES), Path(folder)) as running:
            yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "book.sqlite3")
    url: str = request.getfixturevalue("postgres").new_database()
    return url
