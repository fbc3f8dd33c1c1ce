"""Every metric is declared once, named by the conventions, and described where people look."""

import re
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import ROOT
from tests.unit.server.telemetry.test_metrics import GOLDEN, OTHERS, metrics
from wattserve_server.telemetry import describe, table
from wattserve_server.telemetry.state import ServerState
from wattserve_server.telemetry.table import BASE_UNITS, MetricSpec, SeriesType

DOCUMENT = ROOT / "docs" / "metrics.md"
DECLARED = table.all_metrics()
NOT_OURS = ("grpc_server_", "nv_gpu_", "DCGM_FI_DEV_")
"""Names that others have made, which tools and dashboards know."""


def test_the_document_is_the_one_that_the_declarations_make() -> None:
    made = describe.document()
    assert DOCUMENT.read_text() == made, "python -m wattserve_server.telemetry.describe > docs/metrics.md"


def test_every_metric_of_the_table_is_shown_once() -> None:
    rows = [metric for metric in vars(table).values() if isinstance(metric, MetricSpec)]
    assert sorted(metric.name for metric in rows) == sorted(metric.name for metric in DECLARED)
    assert len({metric.name for metric in DECLARED}) == len(DECLARED)


def test_a_new_metric_is_one_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    server = table.Section[ServerState]("Twice", subjects=lambda state: [((), state)])
    batches = table.Section[None]("Odd", ("variant",))
    server.add(table.GAUGE, "wattserve_doubled_sequences", lambda state: 2 * state.queued, "Twice the queue.")
    batches.add(table.COUNTER, "wattserve_odd_batches_total", table.COUNTED, "Batches of odd size.")
    monkeypatch.setattr(table, "SECTIONS", (*table.SECTIONS, server, batches))
    page = metrics().page("")[1].decode()
    assert "# TYPE wattserve_doubled_sequences gauge\nwattserve_doubled_sequences 6.0\n" in page
    assert "# TYPE wattserve_odd_batches_total counter\n" in page
    document = describe.document()
    assert "| `wattserve_doubled_sequences` | gauge | sequences |  | Twice the queue. | never |" in document
    assert "| `wattserve_odd_batches_total` | counter | batches | `variant` | Batches of odd" in document


def test_what_a_scrape_shows_is_declared_with_its_type_and_labels() -> None:
    shown = {family.name: family for family in text_string_to_metric_families(GOLDEN.read_text())}
    declared = {each.name.removesuffix("_total"): each for each in DECLARED}
    assert shown.keys() == declared.keys()
    for name, family in shown.items():
        shown_type = SeriesType.GAUGE if declared[name].type is SeriesType.INFO else declared[name].type
        assert (name, family.type) == (name, shown_type.value)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= set(declared[name].labels)


@pytest.mark.parametrize("each", DECLARED, ids=lambda each: each.name)
def test_names_follow_the_conventions(each: MetricSpec) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*|DCGM_[A-Z_]+", each.name)
    assert each.name.startswith(("wattserve_", *NOT_OURS))
    is_ours = not each.name.startswith(("nv_", "DCGM_"))
    assert each.name.endswith("_total") == (each.type is SeriesType.COUNTER and is_ours)
    if is_ours:
        for unit in BASE_UNITS:
            assert (unit in each.unit.split()) == (unit in each.name.split("_")), "the unit is in the name"
    assert not re.search("_(ms|us|ns|mj|uj|mw|percent|milli[a-z]+|micro[a-z]+)(_|$)", each.name)
    assert each.meaning.endswith(".")
    assert "|" not in each.meaning + each.absent


def test_every_query_of_the_document_asks_for_metrics_that_exist() -> None:
    series = {each.name for each in DECLARED}
    histograms = {each.name for each in DECLARED if each.type is SeriesType.HISTOGRAM}
    series |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    asked = set(re.findall(r"\b(?:wattserve_(?!server\.)|grpc_server_|nv_gpu_)\w+", DOCUMENT.read_text()))
    assert asked <= series
    bounds = {name: [f"{bound:g}" for bound in buckets] for name, buckets in buckets_of().items()}
    for name, le in re.findall(r'(\w+)_bucket\{le="([^"]+)"', DOCUMENT.read_text()):
        assert le in bounds[name]


def buckets_of() -> dict[str, tuple[float, ...]]:
    return {each.name: each.buckets for each in DECLARED if each.type is SeriesType.HISTOGRAM}


def test_buckets_resolve_a_request_of_a_millisecond_and_of_a_millijoule() -> None:
    for name, around in (("request_duration_seconds", 0.001), ("request_energy_joules", 0.001)):
        bounds = buckets_of()[f"wattserve_{name}"]
        place = bounds.index(around)
        assert bounds[place + 1] / bounds[place - 1] <= 5
    for name, bounds in buckets_of().items():
        steps = [high / low for low, high in pairwise(bounds)]
        assert max(steps) <= 5, name


def test_a_declaration_that_breaks_the_conventions_is_refused() -> None:
    with pytest.raises(ValueError, match="_total"):
        MetricSpec("wattserve_things", SeriesType.COUNTER, "things", "Things.")
    with pytest.raises(ValueError, match="buckets"):
        MetricSpec("wattserve_size_bytes", SeriesType.HISTOGRAM, "bytes", "Sizes.")
    with pytest.raises(ValueError, match="buckets"):
        MetricSpec("wattserve_size_bytes", SeriesType.HISTOGRAM, "bytes", "Sizes.", buckets=(2.0, 1.0))


def test_nothing_but_pythons_own_is_left_out_of_the_golden_file() -> None:
    text = metrics().page("")[1].decode()
    others = {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") if OTHERS.match(line)
    }
    assert others
    assert all(name.startswith(("process_", "python_")) for name in others)
