"""The benchmark of the server without compute: what it compares is what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.bench import echo
from tests.bench.echo_server import ECHO, ID_BYTES
from tests.fixtures.impostors import made
from tests.fixtures.models import save_classifier
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.engine.model import load_model
from wattserve_server.engine.tasks import task_named
from wattserve_server.engine.variants.catalogue import KINDS


def test_the_echo_answers_every_sequence_and_says_that_it_computes_nothing(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "tiny")
    variant = made(load_model(str(folder), task_named("sequence-classification")), ECHO)
    items = [np.array(ids, dtype=np.int64) for ids in ([2, 3], [2, 4, 6, 3], [5])]
    assert variant.run(variant.prepare(items)).tolist() == [[-1.0, 1.0]] * 3
    assert "nothing is computed" in ECHO.proxy


def test_no_server_but_the_benchmarks_own_offers_the_echo() -> None:
    assert ECHO.name not in KINDS


def test_a_request_is_known_by_its_first_bytes_as_its_reply_on_a_stream_is() -> None:
    requests = echo.requests_of(echo.Load("a stream", echo.STREAM, 3))
    heads = [request[:ID_BYTES] for request in requests]
    replies = [
        pb.PredictStreamResponse(
            request_id=pb.PredictRequest.FromString(request).request_id, response=pb.PredictResponse()
        )
        for request in requests
    ]
    assert len(set(heads)) == 3
    assert [reply.SerializeToString()[:ID_BYTES] for reply in replies] == heads


def test_ratios_are_of_what_ran_in_the_same_round() -> None:
    def turns(*rates: float) -> list[echo.Turn]:
        return [echo.Turn(rate, 1.0, 1.0, 1.0) for rate in rates]

    assert echo.ratio(turns(50, 10, 90), turns(100, 10, 100)) == "0.900 (0.700-0.950)"


def test_calls_of_both_protocols_ask_for_the_same_and_the_refused_name_no_variant() -> None:
    native, open_inference, refused = (echo.requests_of(load) for load in echo.loads_of(2))
    ids = [list(pb.PredictRequest.FromString(request).tokens.sequences[0].ids) for request in native]
    raw = [oip.ModelInferRequest.FromString(request).raw_input_contents[0] for request in open_inference]
    assert [np.frombuffer(each, dtype="<i8").tolist() for each in raw] == ids
    assert {pb.PredictRequest.FromString(request).variant for request in native} == {""}
    assert {pb.PredictRequest.FromString(request).variant for request in refused} == {"none"}


def test_the_other_tree_has_a_server_beside_the_empty_one_and_ours() -> None:
    programs = echo.metered_programs(against="/tree")
    assert list(programs) == [echo.EMPTY, echo.METERED, echo.OTHER]
    assert [program.tree for program in programs.values()] == ["", "", "/tree"]
