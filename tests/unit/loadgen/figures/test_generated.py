"""What a language model did in a cell: times of tokens, joules of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_results import make_generation, make_record
from wattserve_loadgen.figures.generated import generated_samples, measure_generated
from wattserve_loadgen.figures.percentiles import percentiles_of
from wattserve_loadgen.model.cells import GeneratedCell, Record
from wattserve_loadgen.plan.load import OFFLINE, POISSON, Load, closed

CLOSED = closed(2)


def record(sent_ns: int = 0, **changes: Any) -> Record:
    """Sent at an instant; its first token comes 5 ms later, three more in gaps of 1, 2 and 3 ms."""
    own = make_generation(
        output_tokens=4, first_token_ns=sent_ns + 5_000_000, gaps_ns=[1_000_000, 2_000_000, 3_000_000]
    )
    generation = changes.pop("generation", own)
    made = make_record(sent_ns=sent_ns, done_ns=sent_ns + 12_000_000, energy_uj=8_000)
    return replace(made, **{"generation": generation, **changes})


def measured(records: list[Record], ended: list[bool] | None = None, **given: Any) -> GeneratedCell:
    told = {"active_uj_per_request": 8_000.0, "latency_ns": 12e6, **given}
    found = measure_generated(
        records,
        generated_samples(CLOSED, [one for one in records if one.in_window]),
        ended=np.array([True] * len(records) if ended is None else ended),
        seconds=2.0,
        percentiles=lambda values: percentiles_of(values, float(len(values))),
        **told,
    )
    assert found is not None
    return found


def test_the_time_to_the_first_token_counts_from_where_latency_does() -> None:
    samples = generated_samples(CLOSED, [record(100)])
    assert samples is not None
    assert samples.ttft_ns.tolist() == [5_000_000]
    late = record(4_000_000, scheduled_ns=1_000_000)
    opened = generated_samples(Load(POISSON, rate=5), [late])
    assert opened is not None
    assert opened.ttft_ns.tolist() == [8_000_000]


def test_an_offline_load_has_no_time_to_a_first_token() -> None:
    samples = generated_samples(Load(OFFLINE, concurrency=4), [record()])
    assert samples is not None
    assert (len(samples.ttft_ns), len(samples.itl_ns)) == (0, 3)


def test_the_time_of_a_token_is_the_mean_of_those_behind_the_first() -> None:
    single = record(generation=make_generation(output_tokens=1, gaps_ns=[]))
    samples = generated_samples(CLOSED, [record(), single])
    assert samples is not None
    assert samples.tpot_ns.tolist() == [2_000_000]


def test_several_tokens_in_one_message_are_so_many_tokens() -> None:
    joined = record(generation=make_generation(output_tokens=7, gaps_ns=[6_000_000, 6_000_000]))
    samples = generated_samples(CLOSED, [joined])
    assert samples is not None
    assert samples.tpot_ns.tolist() == [2_000_000]
    assert samples.itl_ns.tolist() == [6_000_000, 6_000_000]


def test_gaps_stand_in_the_order_in_which_their_tokens_came() -> None:
    first = record(generation=make_generation(first_token_ns=0, gaps_ns=[10, 30]))  # at 10, 40
    second = record(generation=make_generation(first_token_ns=5, gaps_ns=[7, 9]))  # at 12, 21
    samples = generated_samples(CLOSED, [second, first])
    assert samples is not None
    assert samples.itl_ns.tolist() == [10, 7, 9, 30]


def test_without_tokens_there_is_nothing() -> None:
    assert generated_samples(CLOSED, [make_record(), record(ok=False)]) is None


def test_tokens_per_second_are_of_what_ended_in_the_window_whenever_it_was_sent() -> None:
    before, inside, after = record(in_window=False), record(), record()
    assert measured([before, inside, after], [True, True, False]).output_tokens_per_second == 4.0


def test_joules_per_output_token_hold_what_failed_requests_burned() -> None:
    unknown = record(energy_uj=None)
    cell = measured([record(), record(), unknown], active_uj_per_request=10_000.0)
    assert cell.active_uj_per_output_token == 2_500.0
    assert cell.prompt_uj_per_request == 6_000.0
    assert cell.output_uj_per_request == 14_000.0
    assert cell.energy_delay_uj_seconds == pytest.approx(10_000.0 * 0.012)


def test_joules_that_are_not_known_are_none() -> None:
    silent = make_generation(prompt_uj=None, output_uj=None, overhead_uj=None)
    cell = measured([record(energy_uj=None, generation=silent)], active_uj_per_request=None)
    assert cell.active_uj_per_output_token is None
    assert cell.prompt_uj_per_request is None
    assert cell.energy_delay_uj_seconds is None
    assert measured([record()], latency_ns=None).energy_delay_uj_seconds is None
