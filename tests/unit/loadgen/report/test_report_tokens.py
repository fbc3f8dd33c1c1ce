"""What report, console and table say of a language model."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache

from tests.fixtures.loadgen_pages import Page, undrawn
from tests.fixtures.loadgen_results import make_language_results, make_results, standing_server
from wattserve_loadgen.figures.verdicts import ENERGY
from wattserve_loadgen.model.results import Results, Verdict
from wattserve_loadgen.report.console import summary
from wattserve_loadgen.report.page import render
from wattserve_loadgen.results.csv_table import csv_text

TITLES = (
    "Energy per output token against load",
    "Output tokens per second against the time from token to token",
    "Where the energy of a request goes",
    "Perplexity against energy",
)


@cache
def page() -> Page:
    return Page(render(make_language_results(), {}))


def test_a_language_model_has_charts_of_its_own_and_a_classifier_has_none_of_them() -> None:
    other = render(make_results(), {})
    for title in TITLES:
        assert page().figure(title)
        assert title not in other
    assert "Accuracy against energy" not in page().text


def test_the_table_side_by_side_has_tokens_in_place_of_answers() -> None:
    first = page().tables[0]
    for text in ("output tokens/s", "TTFT p50", "TPOT p50", "energy per output token", "perplexity"):
        assert text in first
    for figure in ("800", "2.00 mJ", "1.00 mJ", "3.00", "3.05", "0.500×"):
        assert figure in first
    assert "accuracy" not in first


def test_perplexity_is_told_with_its_paired_difference_and_what_it_cost() -> None:
    table = next(one for one in page().tables if "nats per token" in one)
    for text in ("+0.0500", "+0.0400 to +0.0600", "2,000", "5.00 J", "2.50 J"):
        assert text in table


def test_energy_by_token_prompt_generation_and_delay_have_a_table_of_their_own() -> None:
    table = next(one for one in page().tables if "per total token" in one)
    for text in ("per output token", "prompt", "generation", "overhead", "6.00 mJ", "14.0 mJ", "µJ·s"):
        assert text in table
    assert "per output token" not in next(one for one in page().tables if "total by receipts" in one)


def test_with_an_objective_the_table_says_what_share_was_within_it() -> None:
    results = make_language_results()
    assert results.points[0].figures is not None
    held = replace(results.points[0], figures=replace(results.points[0].figures, goodput_share=0.25))
    plan = replace(results.plan, objective="ttft<200ms")
    found = undrawn(replace(results, plan=plan, points=[held, *results.points[1:]]))
    table = next(one for one in found.tables if "ITL p50" in one)
    assert "goodput" in table
    assert "25 %" in table
    assert "within ttft<200ms" in found.text
    assert "goodput" not in next(one for one in page().tables if "ITL p50" in one)


def test_a_proxy_is_named_as_one_beside_its_perplexity() -> None:
    server = standing_server(proxy="products in fp32")
    results = make_language_results()
    targets = [replace(target, server=server) for target in results.targets]
    found = undrawn(replace(results, targets=targets))
    tables = [table for table in found.tables if "perplexity" in table]
    assert len(tables) == 3
    for table in tables:
        assert "int8 (proxy)" in table
        assert "3.05" in table


def test_the_console_counts_tokens() -> None:
    lines = summary(make_language_results())
    assert "tokens/s" in lines[0]
    assert "perplexity" in lines[0]
    fp32 = next(line for line in lines if line.startswith("concurrency 1") and "fp32 " in line)
    assert fp32.split()[3:] == ["800", "2.49", "ms", "1.24", "ms", "2.00", "mJ", "6.25", "mJ", "1", "3.00"]
    assert any("TTFT is the time to the first token" in line for line in lines)
    assert not any(line.startswith("accuracy") for line in lines)


def test_without_rows_held_out_the_reader_is_told_how_to_ask_for_them() -> None:
    results = make_language_results(perplexity={}, held_out="")
    assert "perplexity –: no rows were held out (--held-out)." in summary(results)
    assert "not measured, because no rows were held out" in undrawn(results).text


def unmetered() -> Results:
    """With a verdict on the joules of every point."""
    results = make_language_results()
    gap = Verdict("meter gap", "a meter gap of 0.40 s fell in its cells", ENERGY)
    points = []
    for point in results.points:
        figures = point.figures
        assert figures is not None
        assert figures.generated is not None
        silent = replace(figures.generated, active_uj_per_output_token=None, prompt_uj=None, output_uj=None)
        told = replace(figures, active_uj=None, energy_reason=gap.text, generated=silent)
        points.append(replace(point, figures=told, verdicts=[gap]))
    return replace(results, points=points)


def test_joules_with_a_verdict_are_neither_written_nor_drawn() -> None:
    text = render(unmetered(), {})
    assert "2.00 mJ" not in text
    assert "Energy per output token against load" not in text
    assert "meter gap" in text


def test_the_table_for_spreadsheets_has_a_column_for_each_figure() -> None:
    rows = list(csv.DictReader(csv_text(make_language_results()).splitlines()))
    assert rows[0]["active_uj_per_output_token"] == "2000"
    assert rows[0]["output_tokens_per_second"] == "800"
    assert float(rows[0]["perplexity"]) == 3
    assert rows[0]["ttft_p50_ns"]
    assert rows[0]["token_energy_ratio"] == ""
    assert float(next(row for row in rows if row["arm"] == "int8")["token_energy_ratio"]) == 0.5


def test_a_point_of_which_nothing_was_answered_is_no_reason_to_draw_nothing() -> None:
    results = make_language_results()
    first, *rest = results.points
    assert first.figures is not None
    silent = replace(first, figures=replace(first.figures, generated=None))
    assert "per output token" in render(replace(results, points=[silent, *rest]), {})
