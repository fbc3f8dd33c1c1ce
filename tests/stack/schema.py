"""Grafana's own types, held against dashboards by the TypeScript compiler."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TYPES = Path(__file__).with_name("dashboard_types.ts")
OPTIONS = {
    "strict": True,
    "noEmit": True,
    "skipLibCheck": True,
    "module": "esnext",
    "moduleResolution": "bundler",
    "target": "esnext",
    "types": [],
    "noErrorTruncation": True,
}
_ERROR = re.compile(r"^(\w+)\.ts\((\d+),\d+\): error (.*)$")


def mistakes(schema: Path, dashboards: Mapping[str, dict[str, Any]]) -> dict[str, list[str]]:
    """What Grafana's types say against each dashboard. schema: the folder that get_stack.sh made."""
    folder = schema / "check"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(TYPES, folder)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["*.ts"]}))
    texts = {name: json.dumps(made, indent=1) for name, made in dashboards.items()}
    for name, text in texts.items():
        lines = (
            f"import type {{ Checked }} from './dashboard_types';\nexport default {text} satisfies Checked;\n"
        )
        (folder / f"{name}.ts").write_text(lines)
    compiler = schema / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [schema / "node", compiler, "--pretty", "false", "-p", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found: dict[str, list[str]] = {name: [] for name in dashboards}
    for line in done.stdout.splitlines():
        error = _ERROR.match(line)
        if error is not None:
            at = texts.get(error[1], "").splitlines()
            where = at[int(error[2]) - 2].strip() if at else ""
            found.setdefault(error[1], []).append(f"{where}: {error[3][:400]}")
    if done.returncode and not any(found.values()):
        raise RuntimeError(f"the compiler failed: {done.stdout}{done.stderr}")
    return found
