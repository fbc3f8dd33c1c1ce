"""What tritonclient relies on with one server, against two replicas under the real Ray: the suite's tests, as
they are. Left out is what each replica has for itself: statistics and loading."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fixtures.models import save_classifier
from tests.integration.test_oip_tritonclient import (  # noqa: F401
    client,
    test_a_stream_keeps_the_order_and_outlives_an_error,
    test_a_text_is_cut_by_a_parameter_and_the_reply_says_how_much,
    test_a_variant_is_asked_for_by_parameter_or_by_name,
    test_an_input_in_shared_memory_is_refused,
    test_async_infer_calls_back_with_the_result_or_the_error,
    test_classes_come_as_value_index_label_best_first,
    test_compression_headers_priorities_and_time_limits_go_through,
    test_ids_mask_and_text_give_the_native_answer,
    test_shared_memory_is_said_to_be_empty,
    test_the_index_names_the_model_and_each_variant,
    test_the_reply_says_what_the_request_cost,
    test_the_server_and_the_model_are_live_ready_and_described,
)
from tests.ray_serve.serving import Ray, running

pytestmark = pytest.mark.skipif(not os.environ.get("WATTSERVE_RAY"), reason="`make test-ray` brings Ray")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    folder, made = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("ray")
    model = str(save_classifier(folder / "tiny"))
    with running(made, model=model, variants="fp32,bf16", meter="estimate") as ray:
        yield ray
