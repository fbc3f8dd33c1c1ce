"""What prose and the files of deploy/ name is there: metrics, variables, targets, modules, files."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.fences import DOCUMENTS, ROOT, name_of
from wattserve_server.config import ENVIRONMENT_PREFIX, OTHER_VARIABLES, ServerConfig
from wattserve_server.telemetry.table import SeriesType, all_metrics

FORMER = ("docs/LOG.md", "docs/adr/")  # of days on which other names held
FILES = [ROOT / "SECURITY.md", *(each for each in DOCUMENTS if not name_of(each).startswith(FORMER))]
DEPLOYED = sorted((ROOT / "deploy").rglob("*.y*ml"))
HOUSES = ("loadgen", "server", "client", "tools", "common", "proto")  # packages, and loadgen's own metrics
NOT_THE_SERVERS = {"WATTSERVE_NAME"}  # which stands for any


def metrics() -> set[str]:
    names = set()
    for metric in all_metrics():
        parts = ("_bucket", "_sum", "_count") if metric.type is SeriesType.HISTOGRAM else ()
        names |= {metric.name, *(metric.name + part for part in parts)}
    return names


def variables() -> set[str]:
    own = {ENVIRONMENT_PREFIX + name.upper() for name in ServerConfig.__dataclass_fields__}
    return own | OTHER_VARIABLES | NOT_THE_SERVERS


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_metrics_that_prose_names_are_served(file: Path) -> None:
    named = set(re.findall(r"`(wattserve_[a-z0-9_]+)(?!\.json|[a-z0-9_])", file.read_text()))
    houses = tuple(f"wattserve_{house}" for house in HOUSES)
    assert [name for name in sorted(named - metrics()) if not name.startswith(houses)] == []


@pytest.mark.parametrize("file", [*FILES, *DEPLOYED], ids=name_of)
def test_variables_are_read_by_somebody(file: Path) -> None:
    assert set(re.findall(r"\bWATTSERVE_[A-Z_]*[A-Z]\b", file.read_text())) - variables() == set()


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_targets_modules_and_files_are_there(file: Path) -> None:
    text = file.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) - targets == set()
    modules = set(re.findall(r"python -m ((?:tests|deploy|wattserve_\w+)[\w.]*)", text))
    assert [module for module in sorted(modules) if find_spec(module) is None] == []
    paths = set(
        re.findall(r"`((?:tests|deploy|tools|server|client|loadgen|common|proto|docs)/[\w./-]+)`", text)
    )
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
