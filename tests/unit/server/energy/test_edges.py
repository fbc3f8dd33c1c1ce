"""From readings to edges and gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.fixtures.windows import MS, reading
from wattserve_server.energy.edges import FROZEN_AFTER_NS, LOST_AFTER_NS, Edge, EdgeFinder
from wattserve_server.energy.ledger import Gap, Ledger
from wattserve_server.energy.reading import Energy


def finder(wraps_at: int | None = None, may_stand_still: bool = False) -> EdgeFinder:
    return EdgeFinder(Ledger(), Energy(wraps_at) if wraps_at is not None else None, may_stand_still)


def seen(edges: EdgeFinder, *readings: tuple[float, int]) -> list[Edge]:
    """The edges that (ms, uJ) readings show."""
    found = [edges.observe(reading(at_ms, energy_uj)) for at_ms, energy_uj in readings]
    return [edge for edge in found if edge is not None]


def stepped(edges: EdgeFinder, steps: int, poll_ms: int = 10) -> list[Edge]:
    """A counter that grows by 1 mJ in mid-poll, every 100 ms from 95 ms on."""
    return seen(edges, *((at, 1000 * ((at + 5) // 100)) for at in range(0, 100 * steps + 1, poll_ms)))


def test_the_first_reading_is_the_origin_and_shows_no_edge() -> None:
    edges = finder()
    assert seen(edges, (5, 900)) == []
    assert (edges.ledger.since_ns, edges.ledger.until_ns) == (5 * MS, 5 * MS)
    assert edges.ledger.measured_uj == 0


def test_the_first_interval_is_marked_since_nobody_knows_when_it_began() -> None:
    first, second = seen(finder(), (0, 900), (100, 1000), (200, 1300))
    assert first == Edge(0, 100 * MS, 0.0, 100, is_first=True)
    assert second == Edge(100 * MS, 200 * MS, 0.0, 300)


def test_a_continuous_counter_has_an_edge_at_every_poll_with_its_instant_known() -> None:
    edges = finder()
    found = seen(edges, *((10 * step, 7 * step) for step in range(30)))
    assert [edge.at_ns for edge in found] == [10 * MS * step for step in range(1, 30)]
    assert {edge.deviation_ns for edge in found} == {0.0}
    assert edges.period_ns == 10 * MS


def test_at_first_a_step_is_midway_between_the_polls_that_saw_it() -> None:
    found = stepped(finder(), 4)
    assert [edge.at_ns // MS for edge in found] == [95, 195, 295, 395]
    assert found[0].deviation_ns == pytest.approx(10 * MS / 12**0.5)


def test_the_period_is_that_of_the_steps_and_not_of_the_polls() -> None:
    edges = finder()
    stepped(edges, 20)
    assert edges.period_ns == pytest.approx(100 * MS, rel=0.01)


def test_a_step_with_a_known_beat_is_placed_more_closely_than_its_polls() -> None:
    *_, last = stepped(finder(), 40)
    assert last.deviation_ns < 0.7 * 10 * MS / 12**0.5
    assert abs(last.at_ns - 3995 * MS) < 5 * MS


def test_a_step_seen_late_by_a_starved_poll_happened_within_its_own_period() -> None:
    edges = finder()
    stepped(edges, 20)
    (late,) = seen(edges, (2500, 25_000))  # half a second without a poll, and four steps missed
    assert late.energy_uj == 5000
    assert 2400 * MS <= late.at_ns <= 2500 * MS
    assert edges.ledger.gap_count == 0


def test_steps_that_few_polls_see_are_placed_by_the_beat_of_those_before() -> None:
    edges = finder()
    stepped(edges, 40)
    polls_ms = range(4060, 60_000, 270)
    found = seen(edges, *((at, 1000 * ((at + 5) // 100)) for at in polls_ms))
    assert edges.period_ns > 200 * MS
    off_ms = [((edge.at_ns / MS + 55) % 100 - 50) for edge in found]
    assert all(abs(off) <= 50 for off in off_ms)
    assert all(abs(off) < 3 * edge.deviation_ns / MS for off, edge in zip(off_ms, found, strict=True))
    assert all(at - 101 <= edge.at_ns / MS <= at for at, edge in zip(polls_ms[1:], found, strict=True))


def test_edges_never_come_out_of_their_order() -> None:
    edges = finder()
    stepped(edges, 10)
    found = seen(edges, *((1000 + 0.001 * step, 20_000 + step) for step in range(50)))
    instants = [edge.at_ns for edge in found]
    assert instants == sorted(set(instants))
    assert all(before.at_ns == after.start_ns for before, after in pairwise(found))


def test_a_counter_that_wraps_goes_on() -> None:
    edges = finder(wraps_at=10_000)
    assert [edge.energy_uj for edge in seen(edges, (0, 9500), (100, 600), (200, 700))] == [1100, 100]
    assert edges.ledger.measured_uj == 1200
    assert edges.ledger.gap_count == 0


def test_a_counter_that_steps_back_from_below_half_its_range_has_not_wrapped() -> None:
    edges = finder(wraps_at=10_000)
    (edge,) = seen(edges, (0, 4000), (100, 600))
    assert (edge.energy_uj, edge.gap_reason) == (0, "the meter's counter stepped back by 3400 uJ")


def test_a_counter_that_steps_back_makes_a_gap_and_invents_nothing() -> None:
    edges = finder()
    back, after, good = seen(edges, (0, 9000), (100, 50), (200, 250), (300, 350))
    assert back == Edge(0, 100 * MS, 0.0, 0, True, "the meter's counter stepped back by 8950 uJ")
    assert after.energy_uj == 200
    assert after.is_first  # of what came before it, nothing is known
    assert not good.is_first
    assert list(edges.ledger.recent_gaps) == [Gap(0, 100 * MS, "the meter's counter stepped back by 8950 uJ")]
    assert (edges.ledger.gap_count, edges.ledger.gap_ns, edges.ledger.measured_uj) == (1, 100 * MS, 300)


def test_a_jump_that_the_device_cannot_have_drawn_is_lost_and_makes_a_gap() -> None:
    edges = finder()
    edges.most_watts = 300.0
    good, jump, back, after = seen(
        edges, (0, 0), (100, 30_000_000), (200, 10**12), (300, 90_000_000), (400, 91_000_000)
    )
    assert (good.energy_uj, good.gap_reason) == (30_000_000, "")
    why = "the meter's counter jumped by 999970 J in 0.1 s, beyond 600 W"
    assert jump == Edge(100 * MS, 200 * MS, 0.0, 0, gap_reason=why)
    assert (back.energy_uj, back.gap_reason[:36]) == (0, "the meter's counter stepped back by ")
    assert (after.energy_uj, after.gap_reason) == (1_000_000, "")
    assert (edges.ledger.measured_uj, edges.ledger.gap_uj, edges.ledger.gap_count) == (31_000_000, 0, 2)


@pytest.mark.parametrize(("most_watts", "limit_w"), [(300.0, 600), (None, 20_000)])
def test_what_a_late_counter_shows_at_once_is_of_a_second_at_the_least(
    most_watts: float | None, limit_w: int
) -> None:
    for uj, is_wrong in ((limit_w * 10**6, False), (limit_w * 10**6 + 1, True)):
        edges = finder()
        edges.most_watts = most_watts
        (edge,) = seen(edges, (0, 0), (100, uj))
        assert bool(edge.gap_reason) == is_wrong
    edges = finder()
    edges.most_watts = most_watts
    (edge,) = seen(edges, (0, 0), (5000, 5 * limit_w * 10**6))
    assert edge.energy_uj == 5 * limit_w * 10**6


def test_a_frozen_counter_is_a_gap_until_it_moves() -> None:
    edges = finder()
    frozen_ms = FROZEN_AFTER_NS // MS
    seen(edges, (0, 0), (100, 1000), (100 + frozen_ms, 1000))
    assert edges.ledger.open_gap is None
    seen(edges, (101 + frozen_ms, 1000))
    assert edges.ledger.open_gap == Gap(100 * MS, None, "the meter's counter stands still")
    (edge,) = seen(edges, (200 + frozen_ms, 4000))
    assert (edge.start_ns, edge.energy_uj) == (100 * MS, 3000)
    assert edge.gap_reason == "the meter's counter stands still"
    assert edges.ledger.open_gap is None
    assert edges.ledger.gap_ns == 100 * MS + FROZEN_AFTER_NS


def test_a_device_that_draws_nothing_at_rest_may_stand_still() -> None:
    edges = finder(may_stand_still=True)
    found = seen(edges, (0, 0), (100, 0), (9000, 0), (9100, 7))
    assert [edge.energy_uj for edge in found] == [0, 0, 7]
    assert edges.ledger.gap_count == 0


def test_a_short_failure_is_bridged() -> None:
    edges = finder()
    seen(edges, (0, 0), (100, 1000))
    edges.failed(150 * MS, "busy")
    edges.failed(1900 * MS, "busy")
    (edge,) = seen(edges, (2000, 5000))
    assert edge == Edge(100 * MS, 2000 * MS, 0.0, 4000)
    assert (edges.failure, edges.ledger.gap_count) == ("busy", 0)


def test_a_lost_meter_is_a_gap_with_its_own_words_and_comes_back() -> None:
    edges = finder()
    seen(edges, (0, 0), (100, 1000))
    edges.failed(200 * MS, "the GPU is lost")
    edges.failed(200 * MS + LOST_AFTER_NS + 1, "the GPU is lost")
    assert edges.ledger.open_gap == Gap(100 * MS, None, "the GPU is lost")
    back, good = seen(edges, (3000, 8000), (3100, 8100))
    assert (back.gap_reason, back.energy_uj) == ("the GPU is lost", 7000)
    assert (good.gap_reason, good.is_first, good.energy_uj) == ("", True, 100)
    assert edges.ledger.gap_ns == 2900 * MS


def test_a_failure_that_is_over_does_not_count_towards_the_next() -> None:
    edges = finder()
    seen(edges, (0, 0))
    edges.failed(100 * MS, "busy")
    seen(edges, (1000, 1))
    edges.failed(1100 * MS, "busy")
    edges.failed(100 * MS + LOST_AFTER_NS + 1, "busy")
    assert edges.ledger.open_gap is None


def test_a_meter_that_was_never_read_has_no_gap_but_a_reason() -> None:
    edges = finder()
    assert edges.failure == "the meter has not been read yet"
    edges.failed(0, "no driver")
    edges.failed(10 * LOST_AFTER_NS, "no driver")
    assert edges.failure == "no driver"
    assert edges.ledger.gap_count == 0


def test_a_counter_back_from_a_gap_finds_its_beat_anew() -> None:
    edges = finder()
    stepped(edges, 20)
    seen(edges, (2010, 0))  # a reset
    found = seen(edges, *((2010 + at, 1000 * ((at + 38) // 100)) for at in range(10, 3000, 10)))
    assert all(abs((edge.at_ns - 2000 * MS) % (100 * MS) - 72 * MS) < 10 * MS for edge in found[1:])
