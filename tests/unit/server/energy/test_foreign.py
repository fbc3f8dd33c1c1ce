"""When something else is believed to draw on the device, and when no longer."""

from wattserve_server.energy.device import QUIET_EDGES, QUIET_WORK, SETTLES_AFTER_S, ForeignLoad


def test_whoever_is_told_to_compute_is_suspected_whatever_the_counter_says() -> None:
    assert ForeignLoad(neighbours=1, at_work=0.3).is_suspected(0.0, 1.0, 0.0)
    assert ForeignLoad(watches_floor=False, at_work=0.3).is_suspected(0.0, 1.0, 0.0)
    assert not ForeignLoad(neighbours=1, at_work=QUIET_WORK).is_suspected(0.0, 1.0, 0.0)


def test_whoever_is_only_listed_is_suspected_once_edges_together_say_so() -> None:
    listed, nobody = ForeignLoad(neighbours=1), ForeignLoad(neighbours=0)
    assert [listed.is_suspected(2.0, 1.0, 0.0) for _ in range(5)] == [False] * 4 + [True]
    assert not any(nobody.is_suspected(2.0, 1.0, 0.0) for _ in range(5))
    assert not any(ForeignLoad(neighbours=1).is_suspected(0.4, 1.0, 0.0) for _ in range(50))
    assert not any(ForeignLoad(neighbours=1).is_suspected(2.0, 1.0, 6.0) for _ in range(50))  # a law is off


def test_an_unseen_load_must_be_beyond_chance_and_beyond_what_a_law_is_off_by() -> None:
    load = ForeignLoad()
    assert load.is_suspected(off_j=5.0, deviation_j=1.0, expected_j=10.0)
    assert not load.is_suspected(off_j=3.9, deviation_j=1.0, expected_j=0.0)
    assert not load.is_suspected(off_j=5.0, deviation_j=1.0, expected_j=15.0)
    assert not load.is_suspected(off_j=-50.0, deviation_j=1.0, expected_j=0.0)


def test_it_has_ended_after_enough_quiet_edges_in_a_row() -> None:
    load = ForeignLoad()
    load.begin()
    ended = [load.has_ended(0.0, 1.0, 50.0, 0.1) for _ in range(QUIET_EDGES)]
    assert ended == [False] * (QUIET_EDGES - 1) + [True]


def test_a_loud_edge_among_quiet_ones_begins_their_count_anew() -> None:
    load = ForeignLoad()
    load.begin()
    for _ in range(QUIET_EDGES - 1):
        assert not load.has_ended(0.0, 1.0, 50.0, 0.1)
    assert not load.has_ended(40.0, 1.0, 50.0, 0.1)
    assert not load.has_ended(0.0, 1.0, 50.0, 0.1)


def test_edges_that_give_or_take_end_it_by_their_mean() -> None:
    """One of four is more than the limit of 2.5 W, and their mean is 1.5."""
    load = ForeignLoad()
    load.begin()
    ended = [load.has_ended(watts, 1.0, 50.0, 0.1) for watts in 5 * [3.0, 1.0, 0.0, 2.0]]
    assert ended.index(True) == QUIET_EDGES - 1
    still = ForeignLoad()
    still.begin()
    assert not any(still.has_ended(watts, 1.0, 50.0, 0.1) for watts in 5 * [5.0, 1.0, 3.0, 2.0])


def test_it_ends_beside_whoever_is_listed_and_not_beside_whoever_computes() -> None:
    load = ForeignLoad(neighbours=1, at_work=0.3)
    load.begin()
    assert not any(load.has_ended(0.0, 1.0, 50.0, 0.1) for _ in range(5 * QUIET_EDGES))
    load.at_work = None
    assert any(load.has_ended(0.0, 1.0, 50.0, 0.1) for _ in range(QUIET_EDGES))


def test_where_a_floor_is_no_sign_it_ends_with_the_word_of_it() -> None:
    load = ForeignLoad(watches_floor=False, at_work=0.3)
    load.begin()
    assert not any(load.has_ended(40.0, 1.0, 50.0, 0.1) for _ in range(2 * QUIET_EDGES))
    load.at_work = 0.0
    assert any(load.has_ended(40.0, 1.0, 50.0, 0.1) for _ in range(QUIET_EDGES))


def test_an_unseen_floor_settles_after_a_minute_and_a_seen_one_never() -> None:
    unseen, seen = ForeignLoad(), ForeignLoad(neighbours=1)
    for load in (unseen, seen):
        load.begin()
        load.has_ended(30.0, 1.0, 50.0, SETTLES_AFTER_S - 1)
        assert not load.has_settled()
        load.has_ended(30.0, 1.0, 50.0, 2.0)
    assert unseen.has_settled()
    assert not seen.has_settled()


def test_a_new_load_has_its_own_time() -> None:
    load = ForeignLoad()
    load.begin()
    load.has_ended(30.0, 1.0, 50.0, SETTLES_AFTER_S + 1)
    load.begin()
    assert not load.has_settled()
