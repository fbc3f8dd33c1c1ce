"""`loadgen` against a real language model: prompts in, figures of tokens out, and the sums agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.loadgen_sweeps import Outcome, Told, read, shortened
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Client
from wattserve_common import dataset
from wattserve_loadgen import cli
from wattserve_loadgen.data.lengths import parse_lengths
from wattserve_loadgen.data.prompts import prepare_random_prompts
from wattserve_loadgen.plan.load import CONSTANT, Load, closed
from wattserve_loadgen.plan.options import SweepOptions
from wattserve_loadgen.report.page import write_report
from wattserve_loadgen.sweeping.sweep import run_sweep

pytestmark = pytest.mark.long

VOCABULARY = 1000  # of random:llama-tiny at least


SERVING = (
    *("--model", "random:llama-tiny", "--variants", "fp32,bf16", "--threads", "1"),
    *("--meter", "simulated", "--calibration-seconds", "0"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*SERVING) as running:
        yield running


def prompts(folder: Path, seed: int = 0, output: str = "uniform:3-8") -> Path:
    lengths = {
        "prompt_tokens": parse_lengths("--prompt-tokens", "uniform:4-20"),
        "output_tokens": parse_lengths("--output-tokens", output),
    }
    prepare_random_prompts(folder, rows=12, vocabulary_size=VOCABULARY, seed=seed, **lengths)
    return folder


def refused(server: RunningServer, out: Path, data: Path, *more: str) -> int:
    where = ("sweep", "--target", server.address, "--dataset", str(data), "--out", str(out))
    return cli.main([*where, "--preset", "look", "--no-calibrate", *more])


def swept(target: str, data: Path, out: Path, **options: Any) -> Outcome:
    """With windows that last until something was sent in them, however slow the machine is."""
    asked: dict[str, Any] = {"variants": ("fp32",), "calibrate": False, "least_requests": 8, **options}
    with shortened(seconds=0.4):
        wanted = SweepOptions(target=target, dataset=data, out=out, preset="look", **asked)
        assert asyncio.run(run_sweep(wanted, Told())) is not None
    write_report(out)
    return read(out, 0)


@pytest.fixture(scope="module")
def outcome(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("sweep")
    data, held_out = prompts(folder / "data"), prompts(folder / "held-out", seed=1)
    return swept(
        server.address,
        data,
        folder / "out",
        variants=("fp32", "bf16"),
        loads=(closed(4),),
        held_out=held_out,
        objective="ttft<60s,tpot<60s",
    )


def test_every_point_says_when_tokens_came_and_what_they_cost(outcome: Outcome) -> None:
    assert len(outcome.results.points) == 3
    for point in outcome.results.points:
        told = point.shown.generated
        assert told is not None
        assert told.output_tokens_per_second is not None
        assert told.ttft.samples == point.answered
        assert told.active_uj_per_output_token is not None
        assert told.prompt_uj is not None
        assert point.shown.goodput_share == 1.0
    assert outcome.results.target_of(outcome.results.plan.baseline).protocol == "native generation"


def test_every_record_agrees_with_its_prompt_and_its_own_sums(outcome: Outcome) -> None:
    data = dataset.load(Path(outcome.results.dataset.folder))
    for record in outcome.records:
        (row,), told = record["rows"], record["generation"]
        assert told["prompt_tokens"] == len(data.rows[row])
        assert told["output_tokens"] == data.max_new_tokens[row]
        assert record["tokens"] == told["prompt_tokens"] + told["output_tokens"]
        assert len(told["gaps_ns"]) <= told["output_tokens"] - 1
        assert record["sent_ns"] < told["first_token_ns"]
        assert told["first_token_ns"] + sum(told["gaps_ns"]) <= record["done_ns"]
        assert record["energy_state"] == "settled"
        assert told["prompt_uj"] + told["output_uj"] == record["energy_uj"]


def test_what_the_receipts_say_is_what_the_ledger_grew_by(outcome: Outcome) -> None:
    for cell in outcome.results.cells:
        assert cell.energy.accounts_residual_uj == 0
        assert cell.energy.receipts_residual_uj == 0
        assert cell.energy.foreign_sequences == 0


def test_perplexity_is_what_the_server_says_of_the_rows_held_out(
    server: RunningServer, outcome: Outcome
) -> None:
    rows = [row.tolist() for row in dataset.load(Path(outcome.results.held_out)).rows]
    with Client(server.address) as client:
        scores = [client.score(row, variant="fp32") for row in rows]
    told = outcome.results.perplexity
    nats = -sum(score.sequences[0].logprob_sum for score in scores)
    assert told["fp32"].nats_per_token == pytest.approx(nats / sum(len(row) - 1 for row in rows), rel=1e-4)
    assert (told["fp32"].rows, told["fp32"].difference) == (len(rows), None)
    assert told["bf16"].difference is not None
    assert (told["bf16"].energy_uj or 0) > 0


def test_the_report_and_the_checklist_know_it(outcome: Outcome) -> None:
    checks = {check.name: check.passed for check in outcome.results.checks}
    assert all(checks[name] for name in ("records agree", "closed accounts", "finite figures", "every cell"))
    assert "Where the energy of a request goes" in outcome.report


def test_an_open_loop_counts_the_first_token_from_the_schedule(server: RunningServer, tmp_path: Path) -> None:
    data = prompts(tmp_path / "data", output="4")
    found = swept(server.address, data, tmp_path / "out", loads=(Load(CONSTANT, rate=20.0),))
    window = [one for one in found.records if one["in_window"]]
    assert window
    assert all(one["generation"]["first_token_ns"] > one["sent_ns"] >= one["scheduled_ns"] for one in window)
    cell = next(one for one in found.results.cells if one.arm == "fp32")
    assert cell.generated is not None
    longest = max(
        one["generation"]["first_token_ns"] - one["scheduled_ns"]
        for one in window
        if one["cell"] == cell.position
    )
    assert cell.generated.ttft.max_ns == longest


def test_two_servers_are_measured_as_one(server: RunningServer, tmp_path: Path) -> None:
    data = prompts(tmp_path / "data")
    with running_server(*SERVING) as other:
        addresses = [server.address, other.address]
        found = swept(",".join(addresses), data, tmp_path / "out", loads=(closed(4),))
    for cell in found.results.cells:
        assert [part.address for part in cell.servers] == addresses
        assert all(part.answered > 0 for part in cell.servers)
        assert cell.energy.accounts_residual_uj == cell.energy.receipts_residual_uj == 0
        assert cell.energy.measured_uj == sum(part.measured_uj or 0 for part in cell.servers)
    assert {record["server"] for record in found.records} == set(addresses)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stream"], "--stream: a language model always answers with a stream; leave it out"),
        (["--slo", "ttft<5ms", "--find-max"], "needs objectives of percentiles"),
        (["--held-out", "{data}"], "is the dataset of the load; name rows of their own"),
        (["--held-out", "{long}"], "row 0 has 3000 tokens, this server takes at most"),
    ],
)
def test_what_does_not_fit_a_language_model_is_told_before_the_first_request(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    data = prompts(tmp_path / "data")
    dataset.save(tmp_path / "long", [[1] * 3000], [-1], {})
    places = {"data": data, "long": tmp_path / "long"}
    flags = [flag.format(**places) for flag in flags]
    assert refused(server, tmp_path / "out", data, *flags) == 2
    assert message in capsys.readouterr().err


def test_rows_without_lengths_and_answers_beyond_the_context_are_refused(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset.save(tmp_path / "rows", [[1, 2, 3]], [-1], {})
    assert refused(server, tmp_path / "out", tmp_path / "rows") == 2
    assert "max_new_tokens.pt" in capsys.readouterr().err
    dataset.save(tmp_path / "long", [[1, 2, 3]], [-1], {}, max_new_tokens=[100_000])
    assert refused(server, tmp_path / "out", tmp_path / "long") == 2
    assert "row 0 has 3 tokens and is to be followed by 100000" in capsys.readouterr().err


def test_the_plan_it_leaves_repeats_it(outcome: Outcome) -> None:
    plan = (Path(outcome.results.dataset.folder).with_name("out") / "plan.toml").read_text()
    assert "held-out" in plan
    assert "ttft<60s,tpot<60s" in plan
    assert json.dumps(outcome.results.held_out)[1:-1] in plan
