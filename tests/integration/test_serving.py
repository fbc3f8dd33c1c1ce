"""A real server in a process of its own, a tiny model, and a real client."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from transformers import AutoModelForSequenceClassification

from tests.fixtures.models import MAX_TOKENS, save_classifier, save_encoder
from tests.fixtures.present import booked_uj, present
from tests.fixtures.serve_with_held_lane import PROGRAM as HELD_LANE
from tests.fixtures.serve_with_held_lane import held
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client, InvalidRequest, NotFound, NotPossible, Overloaded, Unavailable
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

SERVICE = "wattserve.v1.Inference"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[RunningServer]:
    with running_server("--model", str(model_folder), "--meter", "simulated", "--threads", "1") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def reference(model_folder: Path, ids: list[int]) -> np.ndarray:
    model = AutoModelForSequenceClassification.from_pretrained(model_folder).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits
    return logits[0].numpy()


def test_the_server_describes_itself(client: Client) -> None:
    info = client.server_info()
    assert info.model_name == "tiny"
    assert info.labels == ("negative", "neutral", "positive")
    assert info.accepts_text
    assert not info.random_weights
    assert info.default_variant == "fp32"
    assert info.limits.max_sequence_tokens == MAX_TOKENS
    assert info.meter.source.quality.value == "simulated"
    fp32 = next(variant for variant in info.variants if variant.name == "fp32")
    assert fp32.parameter_bytes == 4 * info.model_parameters
    assert fp32.warmup_shapes > 0


def test_the_start_up_probe_found_the_sensor_and_set_the_polls(client: Client) -> None:
    meter = client.server_info().meter
    assert meter.probe is not None
    assert meter.probe.stepped
    assert meter.probe.update_period_seconds == pytest.approx(0.1, abs=0.02)
    assert meter.poll_period_seconds == pytest.approx(0.01, abs=0.002)
    assert "counter against power" in meter.probe.unsupported
    assert meter.parts == ()


def test_the_answer_is_the_models_own(client: Client, model_folder: Path) -> None:
    ids = [2, 4, 6, 3]
    answer = client.predict(ids)
    np.testing.assert_allclose(answer.output[0], reference(model_folder, ids), atol=1e-5)
    assert answer.variant == "fp32"


def test_text_tokens_and_tensors_give_the_same_answer(client: Client) -> None:
    by_text = client.predict("good film")
    by_tokens = client.predict([2, 4, 6, 3])
    by_tensors = client.predict(
        {
            "input_ids": np.array([[2, 4, 6, 3, 0]], np.int64),
            "attention_mask": np.array([[1, 1, 1, 1, 0]], np.int64),
        }
    )
    np.testing.assert_array_equal(by_text.output, by_tokens.output)
    np.testing.assert_array_equal(by_text.output, by_tensors.output)
    assert by_text.label in ("negative", "neutral", "positive")


def test_an_answer_does_not_depend_on_its_batch_mates(client: Client, model_folder: Path) -> None:
    sequences = [[2, *([5 + index % 4] * length), 3] for index, length in enumerate((1, 30, 2, 60, 9, 17))]
    together = client.predict(sequences).output
    for row, ids in zip(together, sequences, strict=True):
        np.testing.assert_allclose(row, reference(model_folder, ids), atol=1e-5)


@pytest.mark.parametrize("variant", ["bf16", "int8"])
def test_every_loaded_variant_answers_near_fp32(client: Client, variant: str) -> None:
    if variant not in {item.name for item in client.server_info().variants}:
        with pytest.raises(NotFound):
            client.predict([2, 4, 6, 3], variant=variant)
        return
    exact = client.predict([2, 4, 6, 3]).output
    near = client.predict([2, 4, 6, 3], variant=variant)
    assert near.variant == variant
    assert not np.array_equal(near.output, exact)
    assert np.abs(near.output - exact).max() < 0.1 * np.abs(exact).max()


def test_a_receipt_settles_and_has_a_line_for_each_sequence(client: Client) -> None:
    answer = client.predict([[2, 4, 3], [2, 4, 5, 6, 3]], request_id="mine", wait_for_settled_energy=True)
    receipt = answer.receipt
    assert receipt.state.value == "settled"
    assert receipt.request_id == "mine"
    assert receipt.split_rule == "shapley"
    assert [line.tokens for line in receipt.lines] == [3, 5]
    assert receipt.energy_uj == sum(present(line.energy_uj) for line in receipt.lines)
    assert present(receipt.energy_low_uj) <= receipt.energy_uj <= present(receipt.energy_high_uj)


def test_a_receipt_can_be_fetched_and_watched_by_its_id(client: Client) -> None:
    first, second = client.predict([2, 4, 3]).receipt, client.predict([2, 4, 3]).receipt
    assert first.receipt_id != second.receipt_id
    fetched = client.receipt(first.receipt_id, wait_until_settled=True)
    assert fetched.state.value == "settled"
    watched = list(client.watch_receipts([second.receipt_id, first.receipt_id]))
    assert [receipt.receipt_id for receipt in watched] == [second.receipt_id, first.receipt_id]
    assert {receipt.state.value for receipt in watched} == {"settled"}


def test_a_receipt_that_never_existed_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="never existed"):
        client.receipt("no-such-receipt")
    with pytest.raises(NotFound, match="never existed"):
        list(client.watch_receipts(["no-such-receipt"]))


def test_the_receipts_of_a_run_and_the_ledger_agree_to_the_microjoule(client: Client) -> None:
    def active(name: str) -> int:
        report = client.energy_report()
        assert report.pending_receipts == 0
        return next(present(item.active_uj) for item in report.active if item.variant == name)

    client.predict([2, 4, 3], wait_for_settled_energy=True)  # and with it what other tests left pending
    before = active("fp32")
    outcomes = list(client.predict_many([[2, *([4] * (index % 40)), 3] for index in range(100)]))
    ids = [outcome.prediction.receipt.receipt_id for outcome in outcomes if outcome.prediction]
    assert len(ids) == 100
    charged = sum(present(receipt.energy_uj) for receipt in client.watch_receipts(ids))
    assert active("fp32") - before == charged


def test_the_ledger_adds_up_to_the_meter(client: Client) -> None:
    client.predict([2, 4, 3], wait_for_settled_energy=True)
    report = client.energy_report()
    assert report.measured_uj == booked_uj(report)
    assert report.gap_count == 0


def test_every_report_of_a_run_names_it_and_begins_at_the_same_instant(client: Client) -> None:
    reports = [client.energy_report() for _ in range(5)]
    assert {(each.instance_id, each.since_unix_ns) for each in reports} == {
        (client.server_info().instance_id, reports[0].since_unix_ns)
    }
    assert all(each.since_unix_ns < each.until_unix_ns <= each.now_unix_ns for each in reports)


def test_a_text_that_is_too_long_is_cut_where_that_is_asked_for(client: Client) -> None:
    cut = client.predict(["good " * 100, "a film"], truncate=True, variant="fp32")
    assert cut.cut_tokens == (102 - MAX_TOKENS, 0)
    assert cut.usage is not None
    assert cut.usage.prompt_tokens == cut.usage.total_tokens == sum(line.tokens for line in cut.receipt.lines)
    assert cut.receipt.lines[0].tokens == MAX_TOKENS
    rest = client.predict("good " * (MAX_TOKENS - 2), variant="fp32")
    assert rest.cut_tokens == ()
    np.testing.assert_allclose(cut.output[0], rest.output[0], atol=1e-5)
    (answer,) = client.predict_many(["good " * 100], truncate=True)
    assert answer.result().cut_tokens == (102 - MAX_TOKENS,)
    with pytest.raises(InvalidRequest, match="only texts are cut") as caught:
        client.predict([2] * 65, truncate=True)
    assert caught.value.field == "truncate"


@pytest.mark.parametrize(
    ("inputs", "variant", "error", "words"),
    [
        ([2, 4], "int3", NotFound, "unknown variant 'int3'; this server has fp32"),
        ([2, 64], "", InvalidRequest, "token id 64 is outside the vocabulary, 0 to 63"),
        ([2] * 65, "", InvalidRequest, "has 65 tokens; this model takes at most 64"),
        ("good " * 100, "", InvalidRequest, "has 102 tokens; this model takes at most 64; shorten it"),
        ("  ", "", InvalidRequest, "the text is empty"),
        ([[2, 3]] * 257, "", InvalidRequest, "at most 256 sequences"),
    ],
)
def test_bad_input_is_refused_with_its_reason(
    client: Client, inputs: Any, variant: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        client.predict(inputs, variant=variant)
    assert words in str(caught.value)
    assert client.predict([2, 4, 3]).label  # and nothing else is disturbed


def test_the_status_page_shows_what_happened(server: RunningServer, client: Client) -> None:
    with pytest.raises(NotFound):
        client.predict("good", variant="<b>int3")
    client.predict("good", variant="fp32", wait_for_settled_energy=True)
    with urllib.request.urlopen(server.metrics_url.removesuffix("metrics"), timeout=60) as answer:
        html = answer.read().decode()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>tiny · ready</title>" in html
    assert "The joules are simulated, not measured" in html
    assert "unknown variant &#39;&lt;b&gt;int3&#39;" in html
    assert "<script" not in html


def test_the_metrics_count_what_happened(client: Client, server: RunningServer) -> None:
    client.predict([2, 4, 3], wait_for_settled_energy=True)
    text = urllib.request.urlopen(server.metrics_url, timeout=60).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("wattserve_"))
    assert float(values['wattserve_requests_total{code="OK",variant="fp32"}']) >= 1
    active = next(each.active_uj for each in client.energy_report().active if each.variant == "fp32")
    told = float(values['wattserve_energy_active_joules_total{device="cpu",variant="fp32"}'])
    assert told == pytest.approx(present(active) / 1e6)
    accounts = sum(float(value) for name, value in values.items() if "_energy_account_joules" in name)
    pending = float(values['wattserve_energy_pending_joules{device="cpu"}'])
    measured = float(values['wattserve_energy_measured_joules_total{device="cpu"}'])
    assert accounts + pending == pytest.approx(measured)
    assert 'quality="simulated"' in text


def test_health_and_reflection_answer_generic_tools(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", SERVICE):
            status = check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        file = database.FindFileContainingSymbol(SERVICE)
        assert "PredictRequest" in [message.name for message in file.message_type]


def test_a_stream_needs_unique_request_ids(server: RunningServer) -> None:
    from wattserve_proto.v1 import inference_pb2 as pb
    from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc

    good = pb.PredictRequest(request_id="a", tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 4, 3])]))
    nameless = pb.PredictRequest(tokens=good.tokens)
    with grpc.insecure_channel(server.address) as channel:
        replies = list(pb_grpc.InferenceStub(channel).PredictStream(iter([good, nameless]), timeout=60))
    by_id = {reply.request_id: reply for reply in replies}
    assert by_id["a"].WhichOneof("result") == "response"
    assert by_id[""].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_a_full_queue_refuses_and_what_was_accepted_is_answered(model_folder: Path) -> None:
    arguments = ("--model", str(model_folder), "--variants", "fp32", "--threads", "1", "--meter", "none")
    limits = ("--max-queue-sequences", "40", "--max-request-sequences", "40", "--max-batch-sequences", "1")
    with running_server(*arguments, *limits) as running, Client(running.address) as client:
        outcomes = list(client.predict_many([[[2] * 60] * 20] * 12, in_flight=12))
        answered = [outcome.prediction for outcome in outcomes if outcome.prediction]
        refused = [outcome.error for outcome in outcomes if outcome.error]
        assert answered
        assert refused
        assert all(isinstance(error, Overloaded) for error in refused)
        for answer in answered:
            assert answer.receipt.energy_uj is None
            assert answer.receipt.unknown_reason == "no meter was asked for (--meter none)"


@pytest.mark.parametrize(("number", "sent"), [(signal.SIGTERM, 1), (signal.SIGTERM, 3), (signal.SIGINT, 1)])
def test_a_signal_under_load_answers_what_was_accepted_and_settles_it(
    model_folder: Path, number: signal.Signals, sent: int
) -> None:
    arguments = ("--model", str(model_folder), "--variants", "fp32", "--threads", "1")
    with running_server(*arguments, "--max-batch-sequences", "1") as running:
        settled: list[str] = []

        def watch() -> None:
            with Client(running.address) as watcher:
                settled.extend(receipt.request_id for receipt in watcher.watch_receipts())

        watching = threading.Thread(target=watch)
        watching.start()
        answers: list[object] = []

        def call(index: int) -> None:
            with Client(running.address) as client:
                try:
                    answers.append(client.predict([[2] * 60] * 100, request_id=str(index)))
                except (Unavailable, Overloaded) as error:
                    answers.append(error)

        calls = [threading.Thread(target=call, args=(index,)) for index in range(6)]
        for thread in calls:
            thread.start()
        time.sleep(0.3)  # some are running, some wait
        for _ in range(sent - 1):  # at once, as GNU timeout sends it to its child and to its group
            running.process.send_signal(number)
        assert running.terminate(number) == 0
        for thread in (*calls, watching):
            thread.join(timeout=60)
            assert not thread.is_alive()
        answered = [answer for answer in answers if not isinstance(answer, Exception)]
        assert len(answers) == 6
        assert len(settled) == len(answered)
    assert "drained:" in running.error_text
    assert "pending 0.000" in running.error_text
    assert "Traceback" not in running.error_text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_well_behind_the_first_ends_a_drain_at_once(
    model_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    arguments = ("--model", str(model_folder), "--variants", "fp32", "--meter", "none", "--threads", "1")
    limits, hold = ("--drain-seconds", "600", "--max-queue-ms", "600000"), tmp_path / "hold"
    with (
        running_server(
            *arguments, *limits, program=HELD_LANE, extra={"HELD_LANE_FILE": str(hold)}
        ) as running,
        Client(running.address, retry=False) as client,
        held(hold),
        ThreadPoolExecutor(1) as beside,
    ):
        asked = beside.submit(client.predict, [[2, 4, 3]])
        while not client.energy_report().pending_receipts:
            time.sleep(0.01)
        while running.process.poll() is None:
            running.process.send_signal(number)
            time.sleep(0.1)
        assert running.process.returncode != 0
        assert isinstance(asked.exception(timeout=60), Unavailable)
    assert "drained:" not in running.error_text
    assert "Traceback" not in running.error_text


async def test_who_goes_on_asking_until_the_end_is_never_told_cancelled(model_folder: Path) -> None:
    told: Counter[grpc.StatusCode] = Counter()
    request = pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 4, 3])]))

    async def ask(running: RunningServer) -> None:
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(running.address, alone) as channel:
            predict = pb_grpc.InferenceStub(channel).Predict
            while running.process.poll() is None:
                try:
                    await predict(request, timeout=60)
                except grpc.aio.AioRpcError as error:
                    told[error.code()] += 1
                    await asyncio.sleep(0.02)

    arguments = ("--model", str(model_folder), "--variants", "fp32", "--threads", "1", "--meter", "none")
    with running_server(*arguments) as running:
        asking = [asyncio.create_task(ask(running)) for _ in range(40)]
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(running.terminate) == 0
        await asyncio.gather(*asking)
    assert set(told) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert told[grpc.StatusCode.UNAVAILABLE]


def test_a_drain_that_takes_too_long_cancels_what_is_left_and_charges_what_ran(model_folder: Path) -> None:
    limits = ("--max-batch-sequences", "1", "--drain-seconds", "0.2", "--max-queue-sequences", "20000")
    arguments = ("--model", str(model_folder), "--variants", "fp32", "--meter", "simulated", *limits)
    many = ("--max-request-sequences", "20000", "--threads", "1", "--calibration-seconds", "0")
    with running_server(*arguments, *many) as running, Client(running.address, retry=False) as client:
        ended: list[Exception] = []

        def ask() -> None:
            try:
                client.predict([[2, *[4] * 60, 3]] * 3_000, timeout_s=120)
            except Exception as error:
                ended.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        while not client.energy_report().pending_receipts:
            time.sleep(0.01)
        assert running.terminate() == 0
        asking.join(timeout=60)
    (error,) = ended
    assert isinstance(error, Unavailable)
    assert error.reason == "CUT_BY_SHUTDOWN"
    assert "some requests did not end within 0.2 s; they are told UNAVAILABLE" in running.error_text
    assert "drained: simulated" in running.error_text
    assert "Traceback" not in running.error_text


def test_a_health_watch_does_not_hold_up_a_drain(model_folder: Path) -> None:
    arguments = ("--model", str(model_folder), "--variants", "fp32", "--drain-seconds", "600")
    with running_server(*arguments) as running, grpc.insecure_channel(running.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert running.terminate() == 0  # within its own 60 s, not after 600
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_text_accepted_before_a_drain_is_answered_and_settled(model_folder: Path) -> None:
    with running_server("--model", str(model_folder), "--variants", "fp32") as running:
        settled: list[str] = []
        answered: list[str] = []

        def watch() -> None:
            with Client(running.address) as watcher:
                settled.extend(receipt.request_id for receipt in watcher.watch_receipts())

        def call(index: int) -> None:
            with Client(running.address, retry=False) as client:
                try:
                    client.predict(["good film " * 30] * 200, request_id=str(index))
                    answered.append(str(index))
                except (Unavailable, Overloaded):
                    pass

        threads = [
            threading.Thread(target=watch),
            *(threading.Thread(target=call, args=(n,)) for n in range(4)),
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # some are being tokenised
        assert running.terminate() == 0
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
    assert sorted(settled) == sorted(answered)


def test_a_huge_name_or_id_gets_its_own_code_and_not_a_transport_error(client: Client) -> None:
    with pytest.raises(NotFound):
        client.predict([2, 4, 3], variant="x" * 20_000)
    with pytest.raises(InvalidRequest, match="at most 256 are kept"):
        client.predict([2, 4, 3], request_id="x" * 257)


def test_an_embedding_is_the_mean_over_a_sequences_own_tokens(tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = save_encoder(tmp_path / "encoder")
    with (
        running_server(
            "--model", str(folder), "--task", "feature-extraction", "--variants", "fp32"
        ) as running,
        Client(running.address) as client,
    ):
        answer = client.predict([[2, 4, 3], [2, 4, 5, 6, 7, 3]])
        assert answer.output_name == "embedding"
        assert answer.classifications == ()
        model = AutoModel.from_pretrained(folder).eval()
        with torch.inference_mode():
            hidden = model(torch.tensor([[2, 4, 3]])).last_hidden_state[0]
        np.testing.assert_allclose(answer.output[0], hidden.mean(dim=0).numpy(), atol=1e-5)


def test_the_parts_of_a_meter_that_adds_up_are_seen_and_its_ledger_closes(model_folder: Path) -> None:
    with (
        running_server(
            "--model", str(model_folder), "--variants", "fp32", "--meter", "simulated+estimate",
            "--split-rule", "tokens",
        ) as running,
        Client(running.address) as client,
    ):  # fmt: skip
        receipt = client.predict([[2, 4, 3], [2, 4, 5, 6, 3]], wait_for_settled_energy=True).receipt
        assert (receipt.state.value, receipt.source.name) == ("settled", "simulated+estimate")
        assert receipt.split_rule == "tokens"
        assert [part.name for part in receipt.parts] == ["accelerator", "host"]
        assert sum(part.energy_uj or 0 for part in receipt.parts) == receipt.energy_uj
        report = client.energy_report()
        assert sum(part.measured_uj or 0 for part in report.parts) == report.measured_uj
        meter = client.server_info().meter
        assert [part.source.quality.value for part in meter.parts] == ["simulated", "estimated"]
        assert [part.probe.stepped for part in meter.parts if part.probe] == [True, False]
        with urllib.request.urlopen(running.metrics_url) as answer:
            text = answer.read().decode()
        assert 'wattserve_meter_part_joules_total{device="cpu",part="simulated",quality="simulated"}' in text
        assert 'wattserve_energy_account_joules_total{account="gap",device="cpu"} 0.0' in text
        assert running.terminate() == 0
    assert " + gap 0.000 + pending " in running.error_text


def test_without_a_tokenizer_text_is_refused_and_tokens_are_served(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "bare", with_tokenizer=False)
    with (
        running_server("--model", str(folder), "--variants", "fp32") as running,
        Client(running.address) as client,
    ):
        assert not client.server_info().accepts_text
        with pytest.raises(NotPossible, match="has no tokenizer: send token ids"):
            client.predict("good film")
        assert client.predict([2, 4, 3]).label
