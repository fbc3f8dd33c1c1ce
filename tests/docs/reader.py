"""Somebody who follows a document: runs its commands in order, in a folder of their own.

Ports are free ones, models are tiny, energy is simulated, calibration is left out: by environment variables
and by replacing addresses, so that commands stay as they are written.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from tests.docs import listed
from tests.docs.fences import Block, commands
from tests.fixtures.server import ALL_READY, READY
from wattserve_client import Client

_RECEIPT = re.compile(r"(?<=receipt )[0-9a-f]{12}-\w+")
_SERVE = "wattserve serve", "wattserve audit record"
_TIMEOUT_S = 600
# Once it has shown something, it is ended as a person would. -m: a shell's background jobs hear Ctrl-C.
_UNTIL_SHOWN = (
    "(rm -f shown; set -m; {} >shown & until [ -s shown ] || ! kill -0 $!; do sleep 0.1; done;"
    " kill -INT $!; wait $!)"
)


def environment(bin_folder: Path, cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WATTSERVE_")}
    return kept | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "WATTSERVE_CACHE": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "WATTSERVE_PORT": "0",
        "WATTSERVE_METRICS_PORT": "0",
        "WATTSERVE_METER": "simulated",
        "WATTSERVE_CALIBRATION_SECONDS": "0",
        "WATTSERVE_THREADS": "1",
        "COLUMNS": "160",
    }


class Server:
    """A `wattserve serve` as a document shows it, ready."""

    def __init__(self, command: str, folder: Path, variables: dict[str, str]) -> None:
        self.command = command
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._errors: list[str] = []
        self._all_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        ready = READY.search(self._process.stdout.readline())
        if ready is None:
            self._process.wait(timeout=60)
            self._reader.join(timeout=10)
            raise AssertionError(f"{command}\n{''.join(self._errors)}")
        self.openai = (ready[3] or "").removesuffix("/v1")
        self.address, self.metrics = ready[1], ready[2].removeprefix("http://").removesuffix("/metrics")

    def wait_for_all(self) -> None:
        """For the last variant, as somebody does who reads on: it takes long where the CPU emulates it."""
        if "--lazy-variants" not in self.command:
            assert self._all_ready.wait(timeout=300), f"{self.command}\n{''.join(self._errors)}"

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._errors.append(line)
            if ALL_READY in line:
                self._all_ready.set()
        self._all_ready.set()  # or it has ended: the next command tells

    def end(self) -> None:
        """As SIGTERM does: drained, with exit code 0."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=60)
        self._reader.join(timeout=10)
        assert code == 0, f"{self.command}\n{''.join(self._errors)}"


class Reader:
    """server: the one that runs already; a `wattserve serve` of the document takes its place."""

    def __init__(self, folder: Path, variables: dict[str, str], server: Server) -> None:
        self._folder, self._variables, self._server = folder, variables, server
        self._own: Server | None = None
        self._imports: list[str] = []  # of earlier blocks, which later ones go on from

    def follow(self, shown: list[Block]) -> None:
        """In order. Raises AssertionError, with what was said, where a command fails."""
        for index, block in enumerate(shown):
            if block.language == "python":
                self._follow_python(block)
                continue
            lines: list[str] = []
            to_run = [command for command in commands(block) if not is_listed(command)]
            for number, command in enumerate(to_run):
                if not command.startswith(_SERVE):
                    lines.append(self._fitted(command))
                    continue
                self._bash(lines)
                lines = []
                self._serve(command, _is_asked(to_run[number + 1 :], shown[index + 1 :]))
            self._bash(lines)

    def _follow_python(self, block: Block) -> None:
        text = self._addressed(block.text)
        if block.file:  # a command runs it later
            (self._folder / block.file).write_text(text, encoding="utf-8")
            return
        program = "\n".join([*self._imports, text])
        (self._folder / "block.py").write_text(program, encoding="utf-8")
        self._imports += re.findall(r"^(?:from|import) .*$", text, re.MULTILINE)
        self._bash(["python block.py"])

    def leave(self) -> None:
        if self._own is not None:
            self._own.end()
        self._own = None

    def _serve(self, command: str, is_asked: bool) -> None:
        self.leave()
        command = command.replace("--http-port 8000", "--http-port 0")
        server = Server(command, self._folder, self._variables)
        if not is_asked or "--tls-" in command:  # a document's other commands speak to one without
            server.end()
            return
        server.wait_for_all()
        self._server = self._own = server

    def _fitted(self, command: str) -> str:
        fitted = self._addressed(command)
        if _RECEIPT.search(fitted):
            with Client(self._server.address) as client:
                fitted = _RECEIPT.sub(client.predict("a good film").receipt.receipt_id, fitted)
        for pattern, flags in listed.SHORTENED.items():
            if fnmatchcase(command, pattern):
                fitted += f" {flags}"
        if command in listed.IN_A_BARE_PYTHON:
            fitted = fitted.replace("python", sys.executable, 1)
        if any(fnmatchcase(command, pattern) for pattern in listed.UNTIL_CTRL_C):
            fitted = _UNTIL_SHOWN.format(fitted)
        return fitted

    def _addressed(self, text: str) -> str:
        shown = {"127.0.0.1:50051": self._server.address, "127.0.0.1:9464": self._server.metrics}
        if self._server.openai:
            shown["http://127.0.0.1:8000"] = self._server.openai
        for address, real in shown.items():
            text = text.replace(address, real)
        return text

    def _bash(self, lines: list[str]) -> None:
        if not lines:
            return
        ended = subprocess.run(
            ["bash", "-c", "\n".join(["set -euxo pipefail", *lines])],
            cwd=self._folder,
            env=self._variables | {"WATTSERVE_TARGET": self._server.address},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"


def is_listed(command: str) -> bool:
    return any(fnmatchcase(command, pattern) for pattern in listed.NOT_RUN)


def _is_asked(commands_after: list[str], blocks_after: list[Block]) -> bool:
    """Whether anything speaks to a server before the next one takes its place; if not, its start-up need not
    probe a meter."""
    later = list(commands_after)
    for block in blocks_after:
        later += ["python"] if block.language == "python" else commands(block)
    for command in later:
        if is_listed(command):
            continue
        if command.startswith(_SERVE):
            return False
        if command.startswith(("wattserve-client", "loadgen sweep", "python", "curl")):
            return True
    return False
