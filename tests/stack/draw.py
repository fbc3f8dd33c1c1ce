"""`python -m tests.stack.draw OUT`: the dashboards as pictures, of a sweep of the demo model.

Needs the folder of get_stack.sh (WATTSERVE_STACK) or a Prometheus on the PATH. Takes some five minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from tests.fixtures.server import environment, running_server
from tests.stack.conftest import stack_folder
from tests.stack.dashboards import NAMES, load
from tests.stack.drawing import Drawing
from tests.stack.prometheus import INTERVAL_S, Prometheus, committed_config

VARIANTS = ("fp32", "bf16", "int8")
PAUSE_S = 6
"""Before the sweep, so that idling is seen too."""

SWEEP = ("--preset", "look", "--concurrency", "1,8", "--seconds", "8", "--blocks", "2")


def main(out: Path) -> None:
    folder = stack_folder()
    program = shutil.which("prometheus", path=str(folder / "bin") if folder else None)
    if program is None:
        sys.exit("no prometheus here: make test-stack fetches one")
    with (
        tempfile.TemporaryDirectory() as work,
        running_server("--model", "demo", "--variants", ",".join(VARIANTS), fresh=True) as server,
    ):
        target = urllib.parse.urlsplit(server.metrics_url).netloc
        with Prometheus(program, Path(work, "prometheus"), committed_config([target])) as prometheus:
            prometheus.wait_for_scrapes(PAUSE_S)
            start = time.time() - PAUSE_S
            sweep(server.address, Path(work))
            draw(prometheus, start, last_busy(prometheus, start), out)


def last_busy(prometheus: Prometheus, start: float) -> float:
    """When requests were last being answered: single figures are those of the end of the pictures."""
    (rate,) = prometheus.over(
        f"sum(rate(wattserve_requests_total[{2 * INTERVAL_S}s])) > 0", start, time.time(), INTERVAL_S
    )
    return rate.samples[-1][0] - 2 * INTERVAL_S


def sweep(address: str, work: Path) -> None:
    def loadgen(*arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("loadgen")), *arguments]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)

    found = subprocess.run(
        [str(Path(sys.executable).with_name("wattserve")), "demo-model"],
        check=True, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    model = found.stdout.strip()
    columns = ("--text-column", "text", "--label-column", "label", "--tokenizer", model)
    loadgen("prepare", "--input", f"{model}/heldout.jsonl", *columns, "--out", str(work / "dataset"))
    target = ("--target", address, "--dataset", str(work / "dataset"), "--out", str(work / "sweep"))
    loadgen("sweep", *target, *SWEEP)


def draw(prometheus: Prometheus, start: float, end: float, out: Path) -> None:
    seconds = int(end - start)
    values = {
        "__rate_interval": f"{4 * INTERVAL_S}s",  # as Grafana makes it from a scrape interval
        "__range": f"{seconds}s",
        "instance": ".*",
        "variant": ".*",
        "device": ".*",
        "percentile": "0.95",
        "baseline": VARIANTS[0],
    }
    drawing = Drawing(prometheus, start, end, INTERVAL_S, values, {"variant": list(VARIANTS)})
    note = (
        "Drawn by tests/stack/draw.py from the figures of a Prometheus that scraped a server on two CPU"
        f" cores every {INTERVAL_S} s for {seconds} s, while loadgen swept three precisions."
        " Not a screenshot of Grafana."
    )
    for name in NAMES:
        drawing.draw(load(name), note, out / f"dashboard-{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
