"""Whatever is sent, every call ends with a status that says who must act, and leaves nothing behind.

WATTSERVE_FUZZ_INPUTS: how many calls; of many, a model of images gets some more. WATTSERVE_FUZZ_SEED: another
number makes other calls. WATTSERVE_FUZZ_REPLAY: a file of calls to send instead, one a line, as a failed run
leaves it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fixtures.models import IMAGE_SHAPE, save_classifier, save_vit
from tests.fixtures.present import booked_uj
from tests.fixtures.server import RunningServer, running_server
from tests.fuzz.calls import Call, read_call
from tests.fuzz.judging import codes, problems
from tests.fuzz.making import LOADING_SHARES, SHARES, make_calls
from tests.fuzz.sending import Outcome, send_all
from tests.fuzz.watched_server import MARK
from wattserve_client import Client
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

INPUTS = int(os.environ.get("WATTSERVE_FUZZ_INPUTS", "800"))
SEED = int(os.environ.get("WATTSERVE_FUZZ_SEED", "0"))

IMAGES_PART = 6
"""One in so many more for a model of images."""

LOADING_PART = 12
"""One in so many comes while variants are loaded and unloaded."""

AT_ONCE = 24
FAILED = Path("build/fuzz/failed.jsonl")
MODELS = ("text", "images") if INPUTS >= 5000 else ("text",)
VARIANTS = ("fp32", "bf16")

KEPT_RECEIPTS = 200
OBJECTS = 8_000
"""By so many may what the server keeps have grown: receipts, and series and statistics of a first time."""

MEMORY_BYTES = 250_000_000
SERIES = 3000
"""There are 33 methods, 17 codes and two variants."""

SERVE = (
    "--variants", ",".join(VARIANTS), "--threads", "1", "--meter", "simulated",
    "--calibration-seconds", "0.2", "--receipt-retention-count", str(KEPT_RECEIPTS),
)  # fmt: skip
WRONG = re.compile(r"ERROR|CRITICAL|WARNING|Traceback|unexpected|never retrieved|was destroyed|has died")


@dataclass
class Tally:
    """What came of the calls that were sent."""

    sent: int = 0
    messages: int = 0
    families: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[Call, str]] = field(default_factory=list)

    async def see(self, call: Call, outcome: Outcome) -> None:
        self.sent += 1
        self.messages += len(call.messages)
        self.families[call.family] += 1
        self.codes.update(codes(call, outcome))
        self.failed += [(call, problem) for problem in problems(call, outcome)]

    def report(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.codes.most_common())
        made = ", ".join(f"{name} {count}" for name, count in self.families.most_common())
        return f"fuzz: {self.sent} calls ({made}) with {self.messages} messages: {counts}"

    def complaint(self) -> str:
        """One example of each problem, and where all of them are."""
        FAILED.parent.mkdir(parents=True, exist_ok=True)
        FAILED.write_text(
            "".join(f"{call.line()}\n" for call in dict.fromkeys(call for call, _ in self.failed))
        )
        kinds: dict[tuple[str, str], tuple[Call, str, int]] = {}
        for call, problem in sorted(self.failed, key=lambda item: sum(map(len, item[0].messages))):
            key = (call.path, re.sub(r"'.*|\d+", "", problem)[:60])
            first = kinds.get(key, (call, problem, 0))
            kinds[key] = (*first[:2], first[2] + 1)
        lines = [f"{count} x {problem}\n    {call.shown()}" for call, problem, count in kinds.values()]
        return "\n".join((*lines, f"again: WATTSERVE_FUZZ_REPLAY={FAILED} python -m pytest tests/fuzz"))


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(model: str, tmp_path: Path) -> Iterator[RunningServer]:
    folder = tmp_path / "tiny"
    flags = ["--model", str(folder), *SERVE]
    if model == "images":
        save_vit(folder)
        flags += ["--task", "image-classification"]
    else:
        save_classifier(folder)
    with running_server(*flags, program=("-m", "tests.fuzz.watched_server")) as running:
        yield running


def made_calls(model: str) -> list[list[Call]]:
    """In two phases, the second of which loads and unloads."""
    if replayed := os.environ.get("WATTSERVE_FUZZ_REPLAY"):
        return [[read_call(line) for line in Path(replayed).read_text().splitlines()]]
    count, images = (INPUTS, False) if model == "text" else (INPUTS // IMAGES_PART, True)
    few = count // LOADING_PART
    phases = [make_calls(count - few, SHARES, images, SEED), make_calls(few, LOADING_SHARES, images, SEED)]
    assert sum(map(len, phases)) >= count
    return phases


def snapshot(server: RunningServer) -> dict[str, Any]:
    """What the server holds, once it has come to rest."""
    seen = len(server.errors)
    server.process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for line in server.errors[seen:]:
            if line.startswith(MARK):
                held: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return held
        time.sleep(0.01)
    raise AssertionError(f"the server says nothing any more: {server.error_text[-2000:]}")


def at_rest(server: RunningServer, like: dict[str, Any] | None = None) -> dict[str, Any]:
    """A snapshot with nothing in progress, which takes a moment to come about; or the last one."""
    until = time.monotonic() + 60
    while True:
        now = snapshot(server)
        rests = not any(now[key] for key in ("accepted", "open", "queued", "pending", "watches", "waiters"))
        if (rests and (like is None or now["tasks"] <= like["tasks"])) or time.monotonic() > until:
            return now
        time.sleep(0.2)


def resident_bytes(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def series(server: RunningServer) -> list[str]:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        text = answer.read().decode()
    return [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


def honest(client: Client, model: str) -> list[np.ndarray]:
    """Answers that must not change."""
    inputs: tuple[Any, ...] = ([2, 4, 6, 3], "good film", [[2, 5, 3], [2, 4, 5, 6, 7, 3]])
    if model == "images":
        images = np.linspace(-1, 1, 2 * 3 * 32 * 48, dtype=np.float32).reshape(2, *IMAGE_SHAPE)
        inputs = ({"pixel_values": images}, {"pixel_values": images[1:]})
    return [client.predict(each, variant=variant).output for each in inputs for variant in VARIANTS]


def load_all(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        load = pb_grpc.InferenceStub(channel).LoadVariant
        for variant in VARIANTS:
            load(pb.LoadVariantRequest(variant=variant), timeout=60)


def check_the_ledger(client: Client) -> None:
    until = time.monotonic() + 60
    while (report := client.energy_report()).pending_receipts and time.monotonic() < until:
        time.sleep(0.1)
    assert report.measured_uj == booked_uj(report)
    assert {item.variant for item in report.active} == set(VARIANTS)
    assert report.pending_receipts == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_no_input_breaks_the_server(server: RunningServer, model: str) -> None:
    phases = made_calls(model)
    with Client(server.address) as client:
        before = honest(client, model)
        check_the_ledger(client)
    base, base_bytes, seen = at_rest(server), resident_bytes(server), len(server.errors)
    tally, begun = Tally(), time.monotonic()
    for phase in phases:
        await send_all(server.address, phase, AT_ONCE, tally.see)
    print(f"\n{tally.report()}; {time.monotonic() - begun:.1f} s")
    assert not tally.failed, tally.complaint()
    assert tally.sent == sum(map(len, phases))
    assert server.process.poll() is None, server.error_text[-2000:]
    load_all(server)
    with Client(server.address) as client:
        for now, then in zip(honest(client, model), before, strict=True):
            np.testing.assert_allclose(now, then, atol=1e-5)
        check_the_ledger(client)
    after = at_rest(server, base)
    grown_bytes = resident_bytes(server) - base_bytes
    print(
        f"fuzz: {base} before, {after} after, {grown_bytes / 1e6:.1f} MB more; {len(series(server))} series"
    )
    for key in ("accepted", "open", "queued", "pending", "watches", "waiters", "leaving"):
        assert after[key] == 0, (key, after)
    assert after["tasks"] <= base["tasks"]
    assert after["resident"] == dict.fromkeys(VARIANTS, 0)
    assert after["request_ids"] <= KEPT_RECEIPTS
    assert after["objects"] - base["objects"] < OBJECTS
    assert grown_bytes < MEMORY_BYTES
    found = series(server)
    named = {name for line in found for name in re.findall(r'[{,]variant="([^"]*)"', line)}
    assert named <= {*VARIANTS, "none"}
    assert len(found) < SERIES
    wrong = [line for line in server.errors[seen:] if WRONG.search(line)]
    assert not wrong, f"{len(wrong)} lines of log: {''.join(server.errors[seen:])[:4000]}"
    assert server.terminate() == 0
    assert "drained: simulated" in server.error_text
