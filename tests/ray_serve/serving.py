"""The application of deploy/ray/serve.yaml with two replicas on CPUs, as `serve run` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.ports import free_ports
from wattserve_client import Client, WattserveError

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "ray" / "serve.yaml"
REPLICA = b"ray::ServeReplica:wattserve:Wattserve"
STARTING_S = 240.0


class Ray:
    """address: of the ingress."""

    def __init__(self, address: str, mark: str, log: Path) -> None:
        self.address, self._mark, self._log = address, mark.encode(), log

    @property
    def text(self) -> str:
        """What was logged."""
        return self._log.read_text(errors="replace")

    def replicas(self) -> list[int]:
        """Their processes."""
        return [pid for pid in self.processes() if _read(pid, "cmdline").startswith(REPLICA)]

    def processes(self) -> list[int]:
        """All of Ray's: those that this run has marked."""
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in numbers if self._mark in _read(pid, "environ")]

    def until_replicas(self, count: int) -> None:
        """Until so many have their ledger in the report, which any of them gives."""
        give_up = time.monotonic() + STARTING_S
        with Client(self.address) as client:
            while time.monotonic() < give_up:
                try:
                    report = client.energy_report()
                except WattserveError:
                    report = None
                if report is not None and 1 + len(report.other_devices) == count:
                    return
                time.sleep(0.5)
        raise AssertionError(f"not {count} replicas: {self.text[-3000:]}")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@contextmanager
def running(folder: Path, replicas: int = 2, most: int = 0, **settings: Any) -> Iterator[Ray]:
    """replicas: at the begin. most: to which a queue of calls brings them; 0: no more. settings: beside those
    of the file."""
    config = yaml.safe_load(CONFIG.read_text())
    port, config["http_options"]["port"] = free_ports(2)
    config["grpc_options"]["port"] = port
    (application,) = config["applications"]
    application["args"] |= {"metrics_port": 0, "calibration_seconds": 0.5} | settings
    (deployment,) = application["deployments"]
    scaling = deployment["autoscaling_config"]
    scaling |= {"min_replicas": replicas, "max_replicas": most or replicas}
    if most:  # by a test's few callers, at once
        scaling |= {"target_ongoing_requests": 2, "upscale_delay_s": 1}
    file, log = folder / "serve.yaml", folder / "log"
    file.write_text(yaml.safe_dump(config))
    mark = f"WATTSERVE_RAY_TEST={port}"
    name, value = mark.split("=")
    # The second: Ray kills replicas where a machine's memory is nearly full, whoever fills it.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    environment = {**os.environ, **quiet, name: value}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("serve"), "run", file],
            stdout=out, stderr=out, env=environment, start_new_session=True,
        )  # fmt: skip
    made = Ray(f"127.0.0.1:{port}", mark, log)
    try:
        made.until_replicas(replicas)
        yield made
    finally:
        process.send_signal(signal.SIGINT)  # replicas drain, then Ray ends
        try:
            process.wait(timeout=90)
        finally:
            for pid in made.processes():
                if pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
