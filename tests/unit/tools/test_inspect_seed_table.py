"""The seed table in Markdown: what is not known is a dash with a footnote, never a number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import ROOT
from wattserve_tools.inspect.seed_markdown import HEADINGS, MISSING, markdown


def row(**changed: Any) -> dict[str, Any]:
    return {
        "variant": "int8",
        "kind": "int8",
        "device": "cpu",
        "proxy": None,
        "how": "25 of 26 linear layers; kept in float32: classifier",
        "kept_layers": ["classifier"],
        "verified": True,
        "verification": "profiled: int8 x int8",
        "refused": None,
        "tensor_bytes": 133_900_000,
        "latency_p50_ms": 0.7,
        "latency_p95_ms": 0.9,
        "energy_active_mj": 47.0,
        "energy_total_mj": 60.0,
        "energy_blocks": 5,
        "energy_reason": None,
        "answers": {
            "rows_not_finite": 0,
            "accuracy": {"count": 90, "of": 100, "share": 0.9, "low": 0.82, "high": 0.95},
        },
        "speed_up": {"ratio": 4.6, "low": 4.4, "high": 4.8},
        "energy_ratio": {"ratio": 0.21, "low": None, "high": None, "pairs": 5, "rounds": 5},
    } | changed


def table(*rows: dict[str, Any], **changed: Any) -> list[str]:
    result = {
        "model": {"name": "demo"},
        "environment": {
            "date": "2026-11-20", "seed": 0, "versions": {"torch": "2.13"}, "hardware": {"cpu": "a CPU"},
            "torch_threads": 2, "load_average_1min": 0.1,
        },
        "data": {"origin": "all rows", "sha256": "ab" * 32},
        "settings": {"batch_size": 1, "warmup_runs": 50, "timed_runs": 500, "blocks": 5},
        "meters": {
            "cpu": {
                "source": "estimate", "quality": "estimated", "boundary": "CPU time", "note": "7.5 W",
                "idle_watts": 5.0, "idle_origin": "declared", "reason": None,
            }
        },
        "accuracy_reason": None,
        "reference_reason": None,
        "fp32_against_itself": {
            "cpu": {"speed_up": {"ratio": 1.01, "low": 0.97, "high": 1.05}, "energy_ratio": None}
        },
        "rows": list(rows),
    }  # fmt: skip
    return markdown(result | changed).splitlines()


def cells(lines: list[str], variant: str) -> dict[str, str]:
    line = next(line for line in lines if line.startswith(f"| {variant}"))
    return dict(zip(HEADINGS, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def test_a_known_row_has_every_figure_with_its_unit_in_the_heading() -> None:
    found = cells(table(row()), "int8")
    assert found["Latency p50 (ms)"] == "0.700"
    assert found["Energy, active (mJ)"] == "47.0"
    assert found["Accuracy (%)"] == "90.00 [82.00, 95.00]"
    assert found["Model size (MB)"] == "133.90"
    assert found["Speed-up"] == "4.60x [4.40, 4.80]"
    assert found["Energy against fp32"] == "0.21"


def test_an_estimate_is_called_one_above_the_table() -> None:
    assert any("Energy on cpu: **ESTIMATED** from CPU time" in line for line in table(row()))


def test_a_refused_variant_has_no_figure_and_says_what_ran() -> None:
    lines = table(row(refused="declares int8 products, but 100 % ran in fp32"))
    found = cells(lines, "int8")
    assert set(list(found.values())[2:]) == {MISSING}
    assert "1. int8 was refused, so it has no figures: declares int8 products, but 100 % ran in fp32" in lines


def test_unknown_energy_is_a_dash_with_the_reason() -> None:
    lines = table(
        row(
            energy_active_mj=None, energy_total_mj=None, energy_ratio=None, energy_blocks=0,
            energy_reason="the counter went back during a block",
        )
    )  # fmt: skip
    found = cells(lines, "int8")
    assert found["Energy, active (mJ)"] == found["total (mJ)"]
    assert found["total (mJ)"].startswith(MISSING)
    assert any(line.endswith("no figure: the counter went back during a block") for line in lines)


def test_a_ratio_of_some_of_the_pairs_only_is_a_dash_with_their_number() -> None:
    short = {"ratio": None, "low": None, "high": None, "pairs": 3, "rounds": 5}
    lines = table(
        row(energy_ratio=short),
        fp32_against_itself={
            "cpu": {"speed_up": {"ratio": 1.01, "low": 0.97, "high": 1.05}, "energy_ratio": short}
        },
    )
    assert cells(lines, "int8")["Energy against fp32"].startswith(MISSING)
    words = "only 3 of 5 pairs of blocks have a known active energy above 0 on both sides"
    assert any(f"no ratio: {words}" in line for line in lines)
    assert any(f"energy not known ({words}" in line for line in lines)


def test_without_an_fp32_the_reason_is_in_a_footnote() -> None:
    lines = table(row(speed_up=None, energy_ratio=None), reference_reason="it comes as int8 only")
    assert any(line.endswith("no ratio: it comes as int8 only") for line in lines)


def test_footnotes_are_numbered_in_the_order_in_which_a_row_is_read() -> None:
    lines = table(row(latency_p95_ms=None))
    assert cells(lines, "int8")["Precision"] == "int8[1]"
    assert cells(lines, "int8")["p95 (ms)"] == f"{MISSING}[2]"


def test_a_proxy_is_marked_in_its_row_even_where_it_was_refused() -> None:
    for refused in (None, "it ran in fp32"):
        lines = table(row(variant="int8-simulated", proxy="rounded to int8 levels", refused=refused))
        assert cells(lines, "int8-simulated")["Precision"] == "int8-simulated (PROXY)[1]"


def test_a_proxy_says_what_really_runs() -> None:
    lines = table(row(variant="fp16-as-int8-proxy", proxy="fp16 in place of int8"))
    assert any("fp16-as-int8-proxy: a PROXY: fp16 in place of int8" in line for line in lines)


def test_accuracy_without_meaning_is_a_dash_with_the_reason() -> None:
    answers = {"rows_not_finite": 0, "accuracy": None}
    lines = table(row(answers=answers), accuracy_reason="the model has random weights")
    assert cells(lines, "int8")["Accuracy (%)"].startswith(MISSING)
    assert any(line.endswith("no accuracy: the model has random weights") for line in lines)


def test_rows_that_are_not_finite_are_told() -> None:
    answers = row()["answers"] | {"rows_not_finite": 3}
    assert any("int8: not finite in 3 rows" in line for line in table(row(answers=answers)))


def test_figures_from_some_of_the_blocks_only_say_so() -> None:
    lines = table(row(energy_blocks=4, energy_reason="gone"))
    assert any(line.endswith("from 4 blocks only: gone") for line in lines)


def test_equal_footnotes_are_written_once() -> None:
    few = {"latency_p50_ms": None, "latency_p95_ms": None}
    lines = table(row(**few), row(variant="llm-int8", **few))
    assert sum("too few timed runs" in line for line in lines) == 1


def test_what_fp32_differs_from_itself_is_told() -> None:
    assert any("fp32 against itself on cpu" in line and "1.01x [0.97, 1.05]" in line for line in table(row()))


PUBLISHED = ROOT / "docs" / "results" / "2026-11-21-variants"


@pytest.mark.parametrize("model", ["demo", "distilbert-base"])
def test_a_published_table_is_what_its_json_gives(model: str) -> None:
    result = json.loads((PUBLISHED / model / "seed-table.json").read_text())
    assert markdown(result) == (PUBLISHED / model / "seed-table.md").read_text()
