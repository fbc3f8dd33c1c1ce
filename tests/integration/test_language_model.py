"""The built-in language model as its users meet it: by the client, by tritonclient, by the command."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import InferInput

from tests.fixtures.present import present
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import AsyncClient, Client, FinishReason, InvalidRequest, NotPossible, cli

PROMPT = "In the beginning God"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(
        *("--model", "demo-llm", "--variants", "fp32", "--threads", "1"),
        *("--meter", "simulated", "--kv-cache-bytes", "4MiB"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def test_a_generation_is_told_piece_by_piece_and_what_it_cost(client: Client) -> None:
    # Of so many steps, also a machine that is busy with other things tells more than one by itself.
    stream = client.generate_stream(PROMPT, max_new_tokens=200, ignore_eos=True, wait_for_settled_energy=True)
    pieces = list(stream)
    answer = stream.result
    assert len(pieces) > 1
    assert len(answer.token_ids) == answer.usage.output_tokens == 200
    assert answer.finish_reason is FinishReason.LENGTH
    spent = answer.receipt.generation
    assert spent is not None
    assert (spent.prompt_tokens, spent.output_tokens) == (answer.usage.prompt_tokens, 200)
    assert answer.receipt.settled
    assert (spent.prompt_energy_uj or 0) + (spent.output_energy_uj or 0) == answer.receipt.energy_uj
    assert client.generate(PROMPT, max_new_tokens=200, ignore_eos=True).text == answer.text
    assert client.receipt(answer.receipt.receipt_id).generation == spent


def test_a_seed_draws_the_same_again_and_a_stop_ends_it(client: Client) -> None:
    first = client.generate(PROMPT, max_new_tokens=16, temperature=1.0)
    again = client.generate(PROMPT, max_new_tokens=16, temperature=1.0, seed=first.seed or 0)
    assert again.token_ids == first.token_ids
    middle = first.text.strip()[3:5]
    stopped = client.generate(PROMPT, max_new_tokens=16, temperature=1.0, seed=first.seed or 0, stop=middle)
    assert (stopped.finish_reason, stopped.stop_string) == (FinishReason.STOP, middle)
    assert first.text.startswith(stopped.text)
    assert middle not in stopped.text


def test_scores_agree_with_what_generating_says(client: Client) -> None:
    answer = client.generate([1, 20, 30], max_new_tokens=4, logprobs=0)
    score = client.score([1, 20, 30, *answer.token_ids])
    (sequence,) = score.sequences
    assert sequence.logprobs[2:] == pytest.approx([each.chosen.logprob for each in answer.scores], abs=1e-4)
    assert score.receipt.generation is None
    assert score.timing.compute_ns <= score.timing.total_ns


def test_a_limit_of_energy_ends_it_a_step_late_at_the_most(client: Client) -> None:
    limited = None
    while limited is None:
        whole = client.generate(PROMPT, max_new_tokens=200, ignore_eos=True, wait_for_settled_energy=True)
        # Simulated joules go by the machine's pace: a limit that is far from the whole, and from the prompt.
        most_uj = (whole.receipt.energy_uj or 0) // 8
        stream = client.generate_stream(PROMPT, max_new_tokens=200, ignore_eos=True, max_energy_uj=most_uj)
        try:
            *told_uj, _ = [piece.energy_uj for piece in stream]
            limited = stream.result
        except NotPossible as error:  # a calibration as short as the tests' has yet to learn
            if error.reason != "LAW_UNKNOWN":
                raise
    so_far_uj = [present(uj) for uj in told_uj]  # also while the next step runs
    assert sum(after < before for before, after in pairwise(so_far_uj)) <= 1  # where the prompt is settled
    assert sum(uj >= most_uj for uj in so_far_uj) <= 2  # the step that reached it, and one that was late
    assert limited.finish_reason is FinishReason.ENERGY
    assert 0 < limited.usage.output_tokens < 200
    assert whole.text.startswith(limited.text)


def test_a_prompt_that_costs_more_than_it_may_is_refused(client: Client) -> None:
    with pytest.raises(NotPossible) as caught:
        client.generate(PROMPT, max_new_tokens=4, max_energy_uj=1)
    assert caught.value.reason in ("ENERGY_LIMIT", "LAW_UNKNOWN")


def test_what_does_not_fit_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="more than the cache of keys and values holds") as caught:
        client.generate(PROMPT, max_new_tokens=1000)
    assert caught.value.field == "max_new_tokens"
    with pytest.raises(InvalidRequest, match=r"at most 1024|context is 1024"):
        client.generate("a " * 3000)
    with pytest.raises(NotPossible, match="call Generate, or Score"):
        client.predict(PROMPT)


async def test_tritonclient_streams(server: RunningServer) -> None:
    def text(name: str, value: str) -> InferInput:
        tensor = InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(np.array([value.encode()], dtype=object))
        return tensor

    stream = InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    sampling = text("sampling_parameters", json.dumps({"max_tokens": 12, "temperature": 0}))

    async def asked() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "demo-llm", "inputs": [text("text_input", PROMPT), stream, sampling]}

    told = []
    async with triton.InferenceServerClient(server.address) as made:
        async for result, error in made.stream_infer(asked()):
            assert error is None
            told.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    whole = "".join(result.as_numpy("text_output")[0].decode() for result in told)
    async with AsyncClient(server.address) as client:
        assert whole == (await client.generate(PROMPT, max_new_tokens=12)).text
    assert len(told) > 1  # the last one tells how it ended
    assert told[-1].get_response().parameters["output_energy_uj"].int64_param > 0


def test_the_command_shows_the_answer_and_its_joules(
    server: RunningServer, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--target", server.address, "generate", PROMPT, "--max-new-tokens", "12"]) == 0
    out, error = capsys.readouterr()
    assert out == client.generate(PROMPT, max_new_tokens=12).text + "\n"
    assert "a token" in error


def test_metrics_tell_tokens_and_a_cache_that_is_empty_again(server: RunningServer, client: Client) -> None:
    client.generate(PROMPT, max_new_tokens=4)
    with urllib.request.urlopen(server.metrics_url) as page:
        lines = page.read().decode().splitlines()
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}
    assert values['wattserve_cache_used_bytes{variant="fp32"}'] == 0
    assert values['wattserve_cache_limit_bytes{variant="fp32"}'] == 4 * 2**20
    assert values["wattserve_preemptions_total"] == 0
    tokens = values['wattserve_output_tokens_total{variant="fp32"}']
    firsts = values['wattserve_time_to_first_token_seconds_count{variant="fp32"}']
    assert values['wattserve_inter_token_seconds_count{variant="fp32"}'] == tokens - firsts > 0
