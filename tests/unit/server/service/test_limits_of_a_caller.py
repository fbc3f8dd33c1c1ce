"""What a caller without a key may have in flight, and how long the server gives anybody's call."""

from __future__ import annotations

import pytest

from wattserve_server.errors import OverloadedError
from wattserve_server.service.methods import Deadlines
from wattserve_server.service.prediction import Unkeyed


def test_a_caller_without_a_key_has_so_many_in_flight_and_is_forgotten() -> None:
    unkeyed = Unkeyed(2)
    here, there = "ipv4:127.0.0.1:4", "ipv4:127.0.0.1:5"
    for _ in range(2):
        unkeyed.begin(here)
    with pytest.raises(OverloadedError, match="has 2 predictions in flight") as refused:
        unkeyed.begin(here)
    assert refused.value.limit == "peer_in_flight"
    unkeyed.begin(there)
    for name in (here, here, there):
        unkeyed.end(name)
    unkeyed.begin(here)
    unkeyed.end(here)
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
