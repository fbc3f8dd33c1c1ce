"""Whether a call that was cut ended because its deadline passed, or because its caller left."""

from __future__ import annotations


def is_late(left_s: float | None, total_s: float | None) -> bool:
    """left_s: until the deadline, by this server's clock; total_s: what the caller gave. None: no deadline.

    gRPC rounds a deadline up on the wire, by up to one percent, so a caller gives up a little before its
    deadline passes here.
    """
    if left_s is None or total_s is None:
        return False
    return left_s <= 0.005 + 0.01 * total_s
