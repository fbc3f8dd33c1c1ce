"""Two replicas under the real Ray, with one account book: clients as they are, a replica that is killed under
load, and books that close. `make test-ray` runs it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import tritonclient.grpc as triton

from tests.fixtures.postgres import Postgres, running_postgres
from tests.ray_serve.serving import Ray, running
from wattserve_client import Client, NotFound, Overloaded, Unavailable, WattserveError
from wattserve_proto.v1 import inference_pb2 as pb

BINARIES = os.environ.get("WATTSERVE_POSTGRES", "")
TEXT = "a delightful film"
pytestmark = pytest.mark.skipif(not os.environ.get("WATTSERVE_RAY"), reason="`make test-ray` brings Ray")
DEMO = Path(__file__).parents[2] / "server" / "wattserve_server" / "engine" / "builtin" / "demo"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory() as folder, running_postgres(Path(BINARIES), Path(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def book(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture(scope="module")
def ray(book: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    folder = tmp_path_factory.mktemp("ray")
    with running(folder, variants="fp32", meter="simulated", account_book=book) as made:
        yield made


@pytest.fixture
def client(ray: Ray) -> Iterator[Client]:
    with Client(ray.address) as made:
        yield made


def ledgers(report: Any) -> dict[str, Any]:
    return {ledger.device: ledger for ledger in (report, *report.other_devices)}


def test_a_receipt_is_found_by_whichever_replica_is_asked(client: Client) -> None:
    answers = [client.predict(TEXT, wait_for_settled_energy=True) for _ in range(8)]
    instances = {answer.receipt.receipt_id.partition("-")[0] for answer in answers}
    assert len(instances) == 2  # both have answered
    for answer in answers:
        for _ in range(3):
            told = client.receipt(answer.receipt.receipt_id, wait_until_settled=True)
            assert told.energy_uj == answer.receipt.energy_uj


def test_the_report_is_of_both_and_the_same_whoever_tells_it(client: Client) -> None:
    reports = [ledgers(client.energy_report()) for _ in range(6)]
    first, second = reports[0]
    assert (first, second.partition("@")[0]) == ("cpu", "cpu")
    assert {tuple(report) for report in reports} == {(first, second)}
    instances = {report[first].instance_id for report in reports}
    assert {client.server_info().instance_id for _ in range(6)} == instances
    assert len(instances) == 1


def test_errors_come_with_their_details(client: Client) -> None:
    with pytest.raises(NotFound) as unknown:
        client.predict(TEXT, variant="fp9")
    assert (unknown.value.reason, unknown.value.field) == ("NOT_FOUND", "variant")
    with pytest.raises(WattserveError, match="same variants"):
        client.unload_variant("fp32")


def test_a_message_that_is_too_large_is_refused_in_one_sentence(client: Client) -> None:
    with pytest.raises(Overloaded, match=r"^this message has \d+ bytes, and the server takes 4194304 "):
        client.predict("a " * 2_200_000)


def test_a_callers_deadline_comes_through(client: Client) -> None:
    with pytest.raises(WattserveError) as late:
        client.predict([TEXT] * 200, timeout_s=0.001)
    assert late.value.code == "DEADLINE_EXCEEDED"


def test_streams_of_both_protocols(ray: Ray, client: Client) -> None:
    ours = list(client.predict_many([TEXT] * 10, wait_for_settled_energy=True))
    assert [answer.result().label for answer in ours] == ["positive"] * 10
    other = triton.InferenceServerClient(ray.address)
    text = triton.InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXT]], dtype=object))
    answers: queue.Queue[Any] = queue.Queue()
    other.start_stream(lambda result, error: answers.put((result, error)))
    for _ in range(5):
        other.async_stream_infer("demo", [text])
    told = [answers.get(timeout=60) for _ in range(5)]
    assert [error for _, error in told] == [None] * 5
    other.stop_stream()
    assert other.is_server_live()
    assert other.is_model_ready("demo")
    settled = other.infer("demo", [text], parameters={"energy": "settled"}).get_response()
    assert settled.parameters["energy_uj"].int64_param > 0


def test_loadgen_measures_both_together(ray: Ray, tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\n" + "".join(f"film {n} is good,{n % 2}\n" for n in range(40)))
    loadgen, rows = Path(sys.executable).with_name("loadgen"), tmp_path / "rows"
    columns = ("--text-column", "text", "--label-column", "label")
    subprocess.run(
        [loadgen, "prepare", "--input", data, *columns, "--tokenizer", DEMO, "--out", rows],
        check=True,
        timeout=120,
        capture_output=True,
    )
    short = ("--preset", "look", "--blocks", "1", "--seconds", "1", "--no-calibrate", "--concurrency", "4")
    out = str(tmp_path / "results")
    asked = (
        "run",
        "--target",
        ray.address,
        "--dataset",
        str(rows),
        "--variant",
        "fp32",
        *short,
        "--out",
        out,
    )
    done = subprocess.run([loadgen, *asked], timeout=200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Load:
    """Callers until they are told to stop: what each call came to."""

    def __init__(self, address: str) -> None:
        self._stop = threading.Event()
        self.receipts: list[str] = []
        self.failures: list[WattserveError] = []
        self._threads = [threading.Thread(target=self._ask, args=(address,)) for _ in range(8)]

    def _ask(self, address: str) -> None:
        with Client(address, retry=False) as client:
            while not self._stop.is_set():
                try:
                    self.receipts.append(client.predict([TEXT] * 4).receipt.receipt_id)
                except WattserveError as error:
                    self.failures.append(error)

    def until(self, count: int) -> None:
        """Until so many more are answered."""
        goal = len(self.receipts) + count
        while len(self.receipts) < goal:
            time.sleep(0.02)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def in_book(url: str) -> dict[str, pb.Receipt]:
    with psycopg.connect(url) as connection:
        bodies = connection.execute("SELECT body FROM receipts").fetchall()
    receipts = [pb.Receipt.FromString(bytes(body)) for (body,) in bodies]
    return {receipt.receipt_id: receipt for receipt in receipts}


def test_a_replica_that_is_killed_loses_what_was_in_flight_and_no_more(ray: Ray, book: str) -> None:
    assert len(ray.replicas()) == 2
    with Load(ray.address) as load:
        load.until(100)
        before = list(load.receipts)
        while not set(before) <= set(in_book(book)):
            time.sleep(0.1)
        os.kill(ray.replicas()[0], signal.SIGKILL)
        load.until(100)
    assert {type(error) for error in load.failures} <= {Unavailable}
    assert len(load.failures) <= 8  # one of each caller
    ray.until_replicas(2)  # Ray has started another
    with Client(ray.address) as client:
        client.predict(TEXT, wait_for_settled_energy=True)
    held = in_book(book)
    assert set(before) <= set(held)
    while set(load.receipts) - held.keys() and len(instances_of(set(load.receipts) - held.keys())) > 1:
        time.sleep(0.1)
        held = in_book(book)
    assert len(instances_of(set(load.receipts) - held.keys())) <= 1  # what the dead one had not yet written
    with psycopg.connect(book) as connection:
        (breaks,) = connection.execute("SELECT count(*) FROM breaks").fetchone() or (0,)
    assert breaks == 1  # its successor has said from when to when


def instances_of(receipt_ids: set[str]) -> set[str]:
    return {receipt_id.partition("-")[0] for receipt_id in receipt_ids}


def test_a_language_model_streams_and_its_receipt_is_of_all_that_came(tmp_path: Path) -> None:
    with (
        running(tmp_path, replicas=1, model="demo-llm", variants="fp32", meter="simulated") as made,
        Client(made.address) as client,
    ):
        stream = client.generate_stream("In the beginning", max_new_tokens=24, ignore_eos=True)
        pieces = [piece.token_ids for piece in stream]
        assert sum(map(len, pieces)) == len(stream.result.token_ids) == 24
        assert len([ids for ids in pieces if ids]) > 1
        receipt = client.receipt(stream.result.receipt.receipt_id, wait_until_settled=True)
        assert receipt.state.value == "settled"
        assert receipt.energy_uj == sum(line.energy_uj or 0 for line in receipt.lines) > 0


def test_calls_that_wait_bring_another_replica(tmp_path: Path) -> None:
    with running(tmp_path, replicas=1, most=2, variants="fp32", meter="simulated") as made:
        assert len(made.replicas()) == 1
        with Load(made.address) as load:
            made.until_replicas(2)
            load.until(100)
        assert load.failures == []


def test_at_the_end_book_and_ledgers_agree(postgres: Postgres, tmp_path: Path) -> None:
    """Of an application of its own, whose replicas all drain."""
    url = postgres.new_database()
    with (
        running(tmp_path, variants="fp32", meter="simulated", account_book=url) as made,
        Load(made.address) as load,
    ):
        load.until(200)
    assert load.failures == []
    held = in_book(url)
    assert set(load.receipts) <= set(held)
    with psycopg.connect(url) as connection:
        ended = connection.execute("SELECT ended_unix_ns IS NOT NULL FROM instances").fetchall()
        accounts = connection.execute(
            "SELECT sum(measured_uj), sum(active_uj), sum(warmup_uj + idle_uj + unattributed_uj + gap_uj) "
            "FROM account_hours"
        ).fetchone()
    assert ended == [(True,), (True,)]
    assert accounts is not None
    measured_uj, active_uj, others_uj = map(int, accounts)
    assert active_uj == sum(receipt.energy_uj for receipt in held.values())
    assert measured_uj >= active_uj + others_uj  # what is left was pending when the meters stopped
