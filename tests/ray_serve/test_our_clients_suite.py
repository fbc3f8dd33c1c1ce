"""What our client relies on with one server, against two replicas under the real Ray: tests of one server, as
they are. Left out is what each replica has for itself (metrics, a status page), and reflection, which Ray's
ingress has not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.postgres import running_postgres
from tests.integration.test_serving import (  # noqa: F401
    client,
    model_folder,
    test_a_receipt_can_be_fetched_and_watched_by_its_id,
    test_a_receipt_settles_and_has_a_line_for_each_sequence,
    test_a_stream_needs_unique_request_ids,
    test_a_text_that_is_too_long_is_cut_where_that_is_asked_for,
    test_an_answer_does_not_depend_on_its_batch_mates,
    test_bad_input_is_refused_with_its_reason,
    test_every_loaded_variant_answers_near_fp32,
    test_every_report_of_a_run_names_it_and_begins_at_the_same_instant,
    test_text_tokens_and_tensors_give_the_same_answer,
    test_the_answer_is_the_models_own,
    test_the_ledger_adds_up_to_the_meter,
    test_the_server_describes_itself,
    test_the_start_up_probe_found_the_sensor_and_set_the_polls,
)
from tests.ray_serve.serving import Ray, running

pytestmark = pytest.mark.skipif(not os.environ.get("WATTSERVE_RAY"), reason="`make test-ray` brings Ray")


@pytest.fixture(scope="module")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:  # noqa: F811
    """With an account book: what is asked of a receipt comes to whichever replica."""
    binaries, made = Path(os.environ["WATTSERVE_POSTGRES"]), tmp_path_factory.mktemp("ray")
    settings: dict[str, Any] = {"model": str(model_folder), "variants": "fp32,bf16", "meter": "simulated"}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_postgres(binaries, Path(folder)) as postgres,
        running(made, account_book=postgres.new_database(), **settings) as ray,
    ):
        yield ray
