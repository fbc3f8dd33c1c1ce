"""What a caller without a key may have in flight, and how long the server gives anybody's call."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from wattserve_server.errors import OverloadedError
from wattserve_server.service.methods import Deadlines
from wattserve_server.service.prediction import Unkeyed


def test_a_caller_without_a_key_has_so_many_in_flight_and_is_forgotten() -> None:
    unkeyed = Unkeyed(2)
    here, there = "ipv4:127.0.0.1:4", "ipv4:127.0.0.1:5"
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(unkeyed.prediction(here))
        with pytest.raises(OverloadedError, match="has 2 predictions in flight") as refused:
            calls.enter_context(unkeyed.prediction(here))
        assert refused.value.limit == "peer_in_flight"
        calls.enter_context(unkeyed.prediction(there))
    with unkeyed.prediction(here):
        pass
    assert len(unkeyed) == 0


@pytest.mark.parametrize(
    ("deadlines", "callers_s", "own_s"),
    [
        (Deadlines(), None, None),
        (Deadlines(), 1e6, None),
        (Deadlines(600, 3600), None, 600),
        (Deadlines(600, 3600), 5, None),
        (Deadlines(600, 3600), 3600.5, 3600),
        (Deadlines(600, 60), None, 60),
        (Deadlines(0, 60), None, 60),
        (Deadlines(600, 0), 1e6, None),
    ],
)
def test_the_servers_deadline_counts_where_it_comes_first(
    deadlines: Deadlines, callers_s: float | None, own_s: float | None
) -> None:
    assert deadlines.own_s(callers_s) == own_s
