"""A real Prometheus on a free port, with the committed rules, and its HTTP API."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.fixtures.server import RunningServer
from tests.stack.dashboards import LABEL

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "deploy" / "prometheus"
INTERVAL_S = 1
LISTENING = re.compile(r'msg="?(?:Listening on|TLS is disabled\.)"?.* address=(\S+:[1-9]\d*)')
READY = "Server is ready to receive web requests"
START_S = 60.0
"""A bound on waiting for what would otherwise hang; nothing is measured by it."""

Json = dict[str, Any]


def committed_config(targets: Sequence[str], interval_s: float = INTERVAL_S) -> Json:
    """deploy/prometheus/prometheus.yml, but for whom it scrapes, how often, and where its rules are.

    Rules that have an interval of their own keep it no longer: `Prometheus` evaluates all of them as often.
    """
    config: Json = yaml.safe_load((COMMITTED / "prometheus.yml").read_text())
    every = f"{round(interval_s * 1000)}ms"
    config["global"] = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    config["rule_files"] = [str(COMMITTED / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    del job["file_sd_configs"]
    job["static_configs"] = [{"targets": list(targets)}]
    return config


@dataclass(frozen=True)
class Series:
    """One answer of an instant query."""

    labels: dict[str, str]
    value: float
    samples: tuple[tuple[float, float], ...] = ()  # of a range: Unix time and value

    def named(self, legend: str) -> str:
        """As a legend such as `{{variant}}` calls it."""
        return LABEL.sub(lambda found: self.labels.get(found[1], ""), legend)


class Prometheus:
    """From entering it until leaving it."""

    def __init__(self, program: str, folder: Path, config: Json) -> None:
        folder.mkdir(parents=True)
        names = []
        for name in config["rule_files"]:
            rules = yaml.safe_load(Path(name).read_text())
            for group in rules["groups"]:
                group.pop("interval", None)
            (folder / Path(name).name).write_text(yaml.safe_dump(rules))
            names.append(Path(name).name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump({**config, "rule_files": names}))
        self._command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
        ]
        self._said: list[str] = []
        self._address = ""
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_S) or not self._address or self._process.poll() is not None:
            self.__exit__(None, None, None)
            raise RuntimeError(f"Prometheus did not start: {''.join(self._said)}")
        return self

    def _read(self) -> None:
        assert self._process.stderr is not None
        is_ready = False
        for line in self._process.stderr:
            self._said.append(line)
            found = LISTENING.search(line)
            if found is not None:
                self._address = found[1]
            is_ready = is_ready or READY in line
            if is_ready and self._address:  # it says the two in either order
                self._ready.set()
        self._ready.set()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        self._reader.join(timeout=10)

    def get(self, path: str, **parameters: str | float | list[str]) -> Any:
        """`data` of an answer of the API. Raises RuntimeError with its words when it refuses."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Now, or at a Unix time. A range selector gives samples in place of a value."""
        when = {} if at is None else {"time": at}
        found = self.get("query", query=expression, **when)
        if found["resultType"] == "scalar":
            return [Series({}, float(found["result"][1]))]
        return [
            Series(
                each["metric"],
                float(each["value"][1]) if "value" in each else float("nan"),
                tuple((float(when), float(value)) for when, value in each.get("values", ())),
            )
            for each in found["result"]
        ]

    def figures(self, expression: str) -> list[Series]:
        """What it gives once all of it are figures; in the end, what it gives."""
        until = time.monotonic() + START_S
        while not (found := self.query(expression)) or not all(math.isfinite(each.value) for each in found):
            if time.monotonic() > until:
                break
            time.sleep(INTERVAL_S / 2)
        return found

    def value(self, expression: str, at: float | None = None) -> float:
        (only,) = self.query(expression, at)
        return only.value

    def over(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """The values at each step from start to end."""
        found = self.get("query_range", query=expression, start=start, end=end, step=step)
        return [
            Series(each["metric"], float("nan"), tuple((float(t), float(v)) for t, v in each["values"]))
            for each in found["result"]
        ]

    def wait_for_scrapes(self, more: int) -> None:
        """Until every target has been scraped well so many times more, and the rules have been evaluated."""
        begun = time.time()
        until = time.monotonic() + 10 * START_S
        while time.monotonic() < until:
            ago = f"{max(1, int(1000 * (time.time() - begun)))}ms"  # none from before counts
            counts = self.query(f"sum_over_time(up[{ago}])")
            if counts and min(each.value for each in counts) >= more:
                return
            time.sleep(INTERVAL_S / 2)
        raise RuntimeError(f"too few scrapes: {self.query('up')}; {''.join(self._said[-20:])}")


@dataclass
class Stack:
    server: RunningServer
    gpu: RunningServer | None
    prometheus: Prometheus = field(init=False)

    @property
    def target(self) -> str:
        return _target(self.server)

    @property
    def gpu_target(self) -> str:
        assert self.gpu is not None
        return _target(self.gpu)


def _target(server: RunningServer) -> str:
    return urllib.parse.urlsplit(server.metrics_url).netloc
