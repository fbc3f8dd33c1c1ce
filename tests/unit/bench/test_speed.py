"""The benchmark of speed: medians, verdicts, tables, and lines from figures whose answers are known."""

from __future__ import annotations

import json

import pytest

from tests.bench.speed import __main__ as command
from tests.bench.speed import quiet, rows
from tests.bench.speed.child import plain, whole_set
from tests.bench.speed.figures import (
    DISTURBED,
    MISSED,
    NOT_SHOWN,
    REACHED,
    Goal,
    Line,
    Spread,
    per_round,
    spread,
)
from tests.bench.speed.options import Options
from tests.bench.speed.scenes import Scene, Turn, play
from tests.bench.speed.sequences import requests_of, sequences_like_sst2
from tests.bench.speed.table import markdown, record
from wattserve_proto.v1 import inference_pb2 as pb


def test_quartiles_lie_on_values_or_linearly_between_them() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert spread([1.0, 2.0, 3.0, 4.0]) == Spread(1.75, 2.5, 3.25)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_ratios_are_of_the_same_round() -> None:
    assert per_round([10.0, 30.0], [20.0, 10.0]) == [0.5, 3.0]
    with pytest.raises(ValueError, match="longer"):
        per_round([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("values", "is_floor", "verdict"),
    [
        ([0.9, 0.95, 1.0], True, REACHED),  # quartiles 0.925 and 0.975
        ([0.7, 0.75, 0.8], True, MISSED),
        ([0.7, 0.9, 1.1], True, NOT_SHOWN),
        ([0.9, 0.9, 0.9], True, REACHED),
        ([0.9, 0.9, 0.9], False, REACHED),
        ([0.7, 0.75, 0.8], False, REACHED),
        ([1.0, 1.1, 1.2], False, MISSED),
        ([0.7, 0.9, 1.1], False, NOT_SHOWN),
        ([2.0, 2.0], True, NOT_SHOWN),  # of two rounds nothing is said
    ],
)
def test_a_goal_is_reached_or_missed_only_where_both_quartiles_say_so(
    values: list[float], is_floor: bool, verdict: str
) -> None:
    assert Goal(0.9, is_floor).verdict(values) == verdict


def test_the_table_says_goal_verdict_and_spread() -> None:
    goals = (Goal(0.75, True), Goal(0.9, True, "with the best engine"))
    line = Line(
        "limit", "server / limit", [0.7, 0.8, 0.9, 0.8, 0.8], (), goals, detail="80 of 100 per second"
    )
    overhead = Line("engine", "overhead", [1.0, 2.0, 3.0], (), (Goal(3.0, False),), "+.1f", " %")
    machine = {"cores": 2, "versions": {"torch": "2.13", "numpy": "2.4"}, "environment": {}}
    assert markdown([line, overhead], machine, ["A note."]) == (
        "| what | median (quartiles) | rounds | goal | verdict | medians of what it is made of |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| server / limit | 0.80 (0.80 to 0.80) | 5 | ≥ 0.75; ≥ 0.90 with the best engine | reached; missed "
        "| 80 of 100 per second |\n"
        "| overhead | +2.0 % (+1.5 to +2.5) | 3 | ≤ 3.0 % | reached |  |\n"
        "\nA note.\n\n- cores: 2\n- versions: torch 2.13, numpy 2.4\n- environment: none\n"
    )


def test_the_record_holds_every_round() -> None:
    line = Line("tail", "p99 / p50", [1.0, 2.0, 3.0], (), (Goal(2.0, False),))
    found = json.loads(json.dumps(record([line], {"base.fp32.server32": [5.0, 6.0, 7.0]}, {"cores": 2})))
    assert found["machine"] == {"cores": 2}
    assert found["figures"] == {"base.fp32.server32": [5.0, 6.0, 7.0]}
    (written,) = found["lines"]
    assert (written["rounds"], written["low"], written["middle"], written["high"]) == (
        [1.0, 2.0, 3.0],
        1.5,
        2.0,
        2.5,
    )
    assert written["goals"] == [{"limit": 2.0, "is_floor": False, "words": "", "verdict": "not shown"}]


class _Recorded(Scene):
    def __init__(self) -> None:
        super().__init__("base", Options(frozenset(), sequences=1))
        self.taken: list[str] = []

    def server(self, variant: str, concurrency: int) -> dict[str, float]:
        self.taken.append(f"{variant}{concurrency}")
        return {"": float(len(self.taken)), ".tail": 2.0}


def test_every_round_takes_every_turn_and_every_other_in_reverse_order() -> None:
    scene = _Recorded()
    figures = play(scene, [Turn("server", "fp32", 32), Turn("server", "bf16")], 3)
    assert scene.taken == ["fp3232", "bf160", "bf160", "fp3232", "fp3232", "bf160"]
    assert figures["base.fp32.server32"] == [1.0, 4.0, 5.0]
    assert figures["base.bf16.server"] == [2.0, 3.0, 6.0]
    assert figures["base.bf16.server.tail"] == [2.0, 2.0, 2.0]
    assert len(figures["base.bf16.server.foreign_cores"]) == 3


def test_a_turn_that_several_rows_need_is_taken_once() -> None:
    turns = rows.base_turns(frozenset({"tail", "padding", "int8"}), ("fp32", "int8"))
    assert turns == [
        Turn("server", "fp32", 32),
        Turn("short", "fp32"),
        Turn("server", "int8", 32),
        Turn("short", "int8"),
    ]
    assert rows.base_turns(frozenset({"echo", "energy"}), ("fp32",)) == []


def test_the_overhead_is_in_percent_of_the_bare_forward() -> None:
    figures = {
        "base.fp32.bare8": [0.100, 0.200, 0.100],
        "base.fp32.whole8": [0.102, 0.202, 0.104],
        "base.fp32.bare8.threads": [2.0, 2.0, 2.0],
    }
    (line,) = rows.engine_lines(figures)
    assert line.values == pytest.approx([2.0, 1.0, 4.0])
    assert line.goals == (Goal(3.0, is_floor=False),)
    assert line.detail == "104.00 ms of 100.00 ms, 2 threads"


def test_the_server_is_compared_with_the_limit_and_with_its_own_engine() -> None:
    figures = {
        "tiny.fp32.limit": [100.0, 200.0],
        "tiny.fp32.sorted": [200.0, 200.0],
        "tiny.fp32.arrival": [50.0, 50.0],
        "tiny.fp32.server64": [50.0, 80.0],
    }
    lines = rows.limit_lines(figures, "tiny", "tiny", (64,))
    assert [list(line.values) for line in lines] == [[0.5, 0.4], [2.0, 1.0], [0.5, 0.25], [0.25, 0.4]]
    assert [line.goals for line in lines] == [(Goal(0.55, True),), (), (), ()]
    assert lines[0].detail == "65 of 150 per second"


def test_the_goals_of_the_limit_differ_by_precision() -> None:
    figures = {
        f"base.{variant}.{what}": [1.0]
        for variant in ("fp32", "bf16")
        for what in ("limit", "sorted", "arrival", "server32", "server64")
    }
    goals = {
        line.what.split(", ", 1)[1]: [goal.limit for goal in line.goals]
        for line in rows.limit_lines(figures, "limit", "base", (32, 64))
        if line.goals
    }
    assert goals == {
        "DistilBERT-base fp32, concurrency 32": [0.75, 0.9],
        "DistilBERT-base fp32, concurrency 64": [0.75, 0.9],
        "DistilBERT-base bf16, concurrency 32": [0.7, 0.9],
        "DistilBERT-base bf16, concurrency 64": [0.7, 0.9],
    }


def test_int8_is_compared_with_what_was_measured_beside_it() -> None:
    figures = {
        "base.int8.server32": [90.0, 120.0],
        "base.fp32.server32": [60.0, 60.0],
        "base.int8.server32.cpu_ms": [20.0, 15.0],
        "base.fp32.server32.cpu_ms": [30.0, 30.0],
        "base.int8.short.server_ms": [9.0, 11.0],
        "base.int8.short.engine_ms": [8.0, 8.0],
    }
    throughput, cpu_time, latency = rows.int8_lines(figures)
    assert list(throughput.values) == [1.5, 2.0]
    assert list(cpu_time.values) == pytest.approx([2 / 3, 0.5])
    assert list(latency.values) == [9.0, 11.0]
    assert latency.detail == "bare forward of own engine 8.00 ms"


def test_the_set_is_like_sst2_and_the_same_for_a_seed() -> None:
    sequences = sequences_like_sst2(1000, 3)
    assert sequences == sequences_like_sst2(1000, 3)
    assert sequences != sequences_like_sst2(1000, 4)
    lengths = [len(ids) for ids in sequences]
    assert max(lengths) <= 128
    assert min(lengths) >= 3
    assert sum(lengths) / 1000 == pytest.approx(28, abs=2)


def test_a_request_holds_its_sequence() -> None:
    (message,) = requests_of([[5, 6, 7]], "bf16")
    request = pb.PredictRequest.FromString(message)
    assert (request.variant, list(request.tokens.sequences[0].ids)) == ("bf16", [5, 6, 7])


def test_a_set_is_cut_without_losing_its_end() -> None:
    assert whole_set([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]


def test_plain_torch_runs_without_our_settings_of_threads() -> None:
    ours = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "LRU_CACHE_CAPACITY": "64"}
    assert plain({**ours, "PATH": "/bin", "OPENBLAS_CORETYPE": "Haswell"}) == {
        "PATH": "/bin",
        "OPENBLAS_CORETYPE": "Haswell",
    }


def test_what_others_disturbed_gets_no_verdict() -> None:
    figures = {"a.foreign_cores": [0.01, 0.02, 1.0], "b.foreign_cores": [0.3, 0.02, 1.0]}
    assert not quiet.is_disturbed(figures, ("a",))
    assert quiet.is_disturbed(figures, ("a", "b"))
    goal = Goal(0.9, True)
    assert Line("limit", "ratio", [1.0, 1.0, 1.0], ()).verdict(goal) == REACHED
    assert Line("limit", "ratio", [1.0, 1.0, 1.0], (), is_disturbed=True).verdict(goal) == DISTURBED


def test_every_line_names_turns_that_were_watched() -> None:
    turns = [
        *rows.base_turns(frozenset(command.ROWS), ("fp32", "bf16", "int8")),
        *(Turn(kind, "fp32", size) for kind in ("bare", "whole") for size in (8, 32)),
    ]
    names = [f"base.{turn}" for turn in turns] + [f"tiny.{turn}" for turn in rows.tiny_turns()]
    names += ["metering.base.bf16.pair32", "echo", "against.fp32.pair32", "against.fp32.latency"]
    endings = (
        "", ".foreign_cores", ".threads", ".tail", ".padding", ".p50_ms", ".cpu_ms", ".server_ms",
        ".engine_ms", ".torch_ms", ".over_engine_ms", ".over_torch_ms", ".of_allowed_engine",
        ".of_allowed_torch", ".estimate", ".none", ".this", ".other", ".this_ms", ".other_ms",
        *(f".Predict.{who}{unit}" for who in ("ours", "empty") for unit in ("", ".cpu_us")),
    )  # fmt: skip
    figures = {name + ending: [1.0] for name in names for ending in endings}
    lines = [
        *rows.engine_lines(figures), *rows.limit_lines(figures, "limit", "base", (32, 64)),
        *rows.limit_lines(figures, "tiny", "tiny", (64,)), *rows.echo_lines(figures, 64),
        *rows.call_lines(figures, 64),
        *rows.latency_lines(figures), *rows.tail_lines(figures), *rows.padding_lines(figures),
        *rows.metering_lines(figures, "base", "bf16", 32), *rows.int8_lines(figures),
        *rows.against_lines(figures),
    ]  # fmt: skip
    assert {line.row for line in lines} == {*command.ROWS, "against"}
    for line in lines:
        assert line.turns
        assert quiet.is_disturbed(figures, line.turns), line.what  # 1.0 of a core


def test_calls_are_compared_by_kind_with_the_empty_call_of_their_round() -> None:
    figures = {
        "echo.Predict.empty.cpu_us": [100.0, 200.0],
        "echo.Predict.ours.cpu_us": [150.0, 400.0],
        "echo.Predict.ours": [2000.0, 1000.0],
        "echo.ModelInfer.empty.cpu_us": [100.0, 100.0],
        "echo.ModelInfer.ours.cpu_us": [60.0, 80.0],
        "echo.foreign_cores": [0.0],
    }
    predict, open_inference = rows.call_lines(figures, 64)
    assert predict.values == [1.5, 2.0]
    assert predict.goals == (Goal(1.5, is_floor=False),)
    assert predict.detail == "275 of 150 us"
    assert "ModelInfer" in open_inference.what
    assert open_inference.values == [0.6, 0.8]


def test_a_machine_that_others_use_is_told() -> None:
    calm = {"a.foreign_cores": [0.01, 0.02, 0.03], "a": [900.0]}
    assert quiet.summary(calm) == "0.02 (median of all turns), 0.03 (one turn in ten had more)"
    assert "NOT QUIET" in quiet.summary({"a.foreign_cores": [0.0, 0.0, 1.5]})
    assert quiet.summary({"a": [1.0]}) == "unknown"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rows", "limits"],
        ["--variants", "fp33"],
        ["--rounds", "0"],
        ["--rows", ""],
        ["--against", "/nowhere"],
        ["--sequences", "31"],
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parsed(arguments)
    assert ended.value.code == 2
