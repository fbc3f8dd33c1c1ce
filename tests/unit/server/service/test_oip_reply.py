"""From an answered request to a ModelInferResponse: rows, classes as Triton writes them, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.clients.oip_stub import infer_request, rows, told
from tests.clients.oip_world import NAME, ready
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.energy.reading import Quality, Source
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Charge, Line, Outcome, Receipt
from wattserve_server.service.oip_reply import response
from wattserve_server.service.prediction import Answered, DeviceMeter
from wattserve_server.telemetry.observer import Times

LOGITS = np.array([[0.5, 2.25, -1.0], [3.0, 3.0, 7.5]], np.float32)
SOURCE = Source("rapl", "apportioned counter", Quality.MEASURED)
NO_METER = Source("none", "none", Quality.NONE, note="no meter was asked for")


def receipt(provisional_uj: int | None = None) -> Receipt:
    """Of two sequences that ran in batches of four and of one. provisional_uj: of each line."""
    made = Receipt("server-1", "mine", "bf16", "cpu", 0)
    for tokens, batch in ((3, 4), (5, 1)):
        line = Line(made, tokens, padded_tokens=6, batch_size=batch, compute_ns=9, windows=1)
        line.tallies[0].foresee(provisional_uj)
        made.lines.append(line)
    made.end(Outcome.COMPLETED)
    return made


def settled() -> Receipt:
    made = receipt(provisional_uj=100)
    for line, energy_uj in zip(made.lines, (70, 50), strict=True):
        made.charge(Charge(line, energy_uj, 5.0, 11, ""), ACCELERATOR)
    return made


def replied(
    of: Receipt,
    classes: int = 0,
    labels: tuple[str, ...] = ("a", "b", "c"),
    source: Source = SOURCE,
    sources: Mapping[str, Source] | None = None,
) -> oip.ModelInferResponse:
    """sources: of the receipt's parts, where it is a sum."""
    host = ready(labels=labels)
    parts: Any = {
        part: SimpleNamespace(source=each) for part, each in (sources or {ACCELERATOR: source}).items()
    }
    host.meters["cpu"] = DeviceMeter("cpu", parts[ACCELERATOR], pb.MeterInfo(), parts)
    host.charging["cpu"] = parts
    return response(asked(classes), host, Answered(of, list(LOGITS), Times(1, 20, 300, 4000, 50000)))


def asked(classes: int = 0) -> oip.ModelInferRequest:
    request = infer_request(f"{NAME}@bf16")
    request.id = "mine"
    output = request.outputs.add(name="logits")
    if classes:
        output.parameters["classification"].int64_param = classes
    return request


def test_rows_come_as_bytes_and_names_are_echoed() -> None:
    reply = replied(settled())
    assert (reply.model_name, reply.model_version, reply.id) == (f"{NAME}@bf16", "1", "mine")
    np.testing.assert_array_equal(rows(reply), LOGITS)
    assert reply.raw_output_contents[0] == LOGITS.astype("<f4").tobytes()
    assert not reply.outputs[0].contents.ListFields()


def elements(reply: oip.ModelInferResponse) -> list[str]:
    (raw,), found = reply.raw_output_contents, []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


@pytest.mark.parametrize(
    ("classes", "width", "wanted"),
    [
        (1, 1, ["2.250000:1:b", "7.500000:2:c"]),
        (2, 2, ["2.250000:1:b", "0.500000:0:a", "7.500000:2:c", "3.000000:0:a"]),  # the first of equals
        (
            *(99, 3),
            ["2.250000:1:b", "0.500000:0:a", "-1.000000:2:c", "7.500000:2:c", "3.000000:0:a", "3.000000:1:b"],
        ),
    ],
)  # fmt: skip
def test_classes_come_best_first(classes: int, width: int, wanted: list[str]) -> None:
    reply = replied(settled(), classes)
    (output,) = reply.outputs
    assert (output.datatype, list(output.shape)) == ("BYTES", [2, width])
    assert elements(reply) == wanted


def test_classes_without_labels_are_numbers() -> None:
    assert elements(replied(settled(), 1, labels=())) == ["2.250000:1", "7.500000:2"]


def test_a_settled_receipt_is_told_in_the_parameters() -> None:
    assert told(replied(settled())) == {
        "energy_uj": 120,
        "energy_low_uj": 100,  # 1.96 * 10 to both sides, outwards
        "energy_high_uj": 140,
        "energy_state": "settled",
        "energy_source": "rapl",
        "energy_method": "apportioned counter",
        "energy_quality": "measured",
        "idle_share_uj": 22,
        "variant": "bf16",
        "receipt_id": "server-1",
        "batch_size": 4,
        "tokens": 8,
        "padded_tokens": 12,
        "queue_ns": 20,
        "compute_ns": 300,
    }


def test_a_sum_tells_its_parts_and_every_figure_what_it_covers() -> None:
    made = Receipt("server-1", "mine", "bf16", "cpu", 0, (ACCELERATOR, HOST))
    made.lines.append(line := Line(made, 3, batch_size=1, windows=1))
    made.end(Outcome.COMPLETED)
    made.charge(Charge(line, 70, 5.0, 11, ""), ACCELERATOR)
    made.charge(Charge(line, 50, 5.0, 11, ""), HOST)
    board = replace(SOURCE, name="nvml:GPU-5", boundary="GPU board")
    found = told(replied(made, sources={ACCELERATOR: board, HOST: replace(SOURCE, boundary="CPU packages")}))
    assert (found["energy_uj"], found["accelerator_energy_uj"], found["host_energy_uj"]) == (120, 70, 50)
    assert found["energy_source"] == "nvml:GPU-5+rapl"
    assert found["energy_boundary"] == "GPU board + CPU packages"


def test_a_provisional_figure_has_no_interval_and_no_idle_share_yet() -> None:
    found = told(replied(receipt(provisional_uj=100)))
    assert (found["energy_uj"], found["energy_state"]) == (200, "provisional")
    assert not {"energy_low_uj", "energy_high_uj", "idle_share_uj", "energy_unknown_reason"} & set(found)


def test_an_energy_that_is_not_known_is_absent_and_says_why() -> None:
    lost = receipt(provisional_uj=100)
    for line in lost.lines:
        lost.charge(Charge(line, None, 0.0, None, "the meter was lost"), ACCELERATOR)
    found = told(replied(lost))
    assert (found["energy_state"], found["energy_unknown_reason"]) == ("unknown", "the meter was lost")
    assert not {"energy_uj", "energy_low_uj", "energy_high_uj", "idle_share_uj"} & set(found)
    early = told(replied(receipt()))
    assert "is not known yet; this will settle" in str(early["energy_unknown_reason"])
    none = told(replied(receipt(), source=NO_METER))
    assert (none["energy_unknown_reason"], none["energy_quality"]) == ("no meter was asked for", "none")


def test_what_a_reader_must_know_is_told_only_when_there_is_something() -> None:
    marked = settled()
    marked.proxy, marked.is_unverified = "fp16 stands in", True
    marked.warnings += ["a neighbour", "another"]
    found = told(replied(marked))
    assert found["proxy"] == "fp16 stands in"
    assert found["unverified"] is True
    assert found["energy_warnings"] == "a neighbour; another"
    assert not {"proxy", "unverified", "energy_warnings"} & set(told(replied(settled())))
