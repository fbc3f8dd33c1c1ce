"""When a call that was cut counts as late: gRPC rounds a deadline up on its way."""

import pytest

from wattserve_server.service.status import LATE, LEFT, when_cut


@pytest.mark.parametrize(
    ("left_s", "total_s", "late"),
    [
        (None, None, False),
        (-0.1, 1.0, True),
        (0.009, 1.0, True),  # the caller's own clock ran out, ours will in a moment
        (0.5, 1.0, False),
        (0.25, 30.0, True),
        (1.0, 30.0, False),
        (0.004, 0.05, True),
        (0.04, 0.05, False),
    ],
)
def test_a_call_is_late_when_nearly_all_of_its_time_is_gone(
    left_s: float | None, total_s: float | None, late: bool
) -> None:
    reaction, _ = when_cut(left_s, total_s)
    assert reaction is (LATE if late else LEFT)
