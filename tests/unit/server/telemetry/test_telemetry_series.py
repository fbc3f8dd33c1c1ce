"""Our counters and histograms print what prometheus_client's would, and a scrape may come at any time."""

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from wattserve_server.telemetry.series import Counters, Histograms, Read
from wattserve_server.telemetry.table import MetricSpec, SeriesType

disable_created_metrics()

BOUNDS = (0.001, 0.5, 1.0, 1_000_000.0, 2.5e9)
SIZES = MetricSpec(
    "sizes_bytes", SeriesType.HISTOGRAM, "bytes", 'Of "things",\nby \\ kind.', ("kind",), buckets=BOUNDS
)
THINGS = MetricSpec("things_total", SeriesType.COUNTER, "things", "Things.", ("kind", "end"))


@given(
    st.lists(st.tuples(st.sampled_from(["a", 'b"\n\\', ""]), st.sampled_from(BOUNDS) | st.floats(0, 1e10)))
)
def test_a_histogram_prints_what_prometheus_client_prints(observed: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histograms(SIZES, ours)
    other = Histogram("sizes_bytes", SIZES.meaning, ["kind"], registry=theirs, buckets=BOUNDS)
    for kind, value in observed:
        mine.of(kind).observe(value)
        other.labels(kind).observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_series_is_there_from_its_first_mention_and_once() -> None:
    registry = CollectorRegistry()
    things = Counters(THINGS, registry)
    assert things.of("a", "good") is things.of("a", "good")
    things.of("a", "good").add()
    things.of("a", "good").add(2.5)
    things.of("b", "bad")
    samples = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert samples == ['things_total{end="good",kind="a"} 3.5', 'things_total{end="bad",kind="b"} 0.0']


def test_labels_that_were_not_declared_are_refused() -> None:
    registry = CollectorRegistry()
    for family in (Counters(THINGS, registry), Histograms(SIZES, registry)):
        with pytest.raises(ValueError, match="zip"):
            family.of("a", "b", "c")
    with pytest.raises(ValueError, match="zip"):
        Read().add(THINGS, 1, "a")


def test_what_is_not_known_leaves_no_series() -> None:
    read = Read()
    read.add(THINGS, None, "a", "good")
    assert list(read.families()) == []


def test_a_scrape_while_requests_are_counted_is_whole() -> None:
    registry, stop = CollectorRegistry(), threading.Event()
    sizes, things = Histograms(SIZES, registry), Counters(THINGS, registry)

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            sizes.of(str(number % 50)).observe(number % 3)
            things.of(str(number % 50), "good").add()

    writer = threading.Thread(target=count)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or the writer's turns would be too seldom to fall into a scrape
    writer.start()
    try:
        last, grown = 0.0, 0
        while grown < 20:
            families = {
                each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())
            }
            counted = 0.0
            for sample in families["sizes_bytes"].samples:
                if sample.labels.get("le") == "+Inf":
                    infinite = sample.value
                if sample.name.endswith("_count"):
                    assert sample.value == infinite
                    counted += sample.value
            assert counted >= last
            grown += counted > last
            last = counted
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(usual_s)
