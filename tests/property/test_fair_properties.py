"""The order of turns against a device that is shared by tokens at every instant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures.queued import request
from tests.fixtures.shared_device import SharedDevice
from wattserve_server.engine.policy import BatchLimits
from wattserve_server.engine.queued import Request

TOKEN_NS = 1_000
LIMITS = BatchLimits(max_sequences=8, max_tokens=256)
BATCH_NS = LIMITS.max_tokens * TOKEN_NS


class Asked(NamedTuple):
    at_ns: int
    caller: str
    lengths: list[int]


ASKED = st.lists(
    st.builds(
        Asked,
        st.integers(0, 20 * BATCH_NS),
        st.sampled_from("abcd"),
        st.lists(st.integers(1, 64), min_size=1, max_size=40),
    ),
    min_size=2,
    max_size=25,
).map(sorted)


def shared_ends_ns(all_asked: Sequence[Asked]) -> list[float]:
    """When each would end if its device computed tokens of all callers at once, of each caller's in order."""
    ends_ns, left = [0.0] * len(all_asked), [float(sum(asked.lengths)) for asked in all_asked]
    queues: defaultdict[str, list[int]] = defaultdict(list)
    now_ns, coming = 0.0, 0
    while coming < len(all_asked) or any(queues.values()):
        busy = [queue for queue in queues.values() if queue]
        steps_ns = [left[queue[0]] * TOKEN_NS * len(busy) for queue in busy]
        if coming < len(all_asked):
            steps_ns.append(all_asked[coming].at_ns - now_ns)
        step_ns = min(steps_ns)
        now_ns += step_ns
        for queue in busy:
            left[queue[0]] -= step_ns / TOKEN_NS / len(busy)
            if left[queue[0]] < 1e-6:
                ends_ns[queue.pop(0)] = now_ns
        while coming < len(all_asked) and all_asked[coming].at_ns <= now_ns:
            queues[all_asked[coming].caller].append(coming)
            coming += 1
    return ends_ns


def run_ends_ns(all_asked: Sequence[Asked]) -> list[int]:
    """When each ends on a device whose batches start for nothing."""
    device = SharedDevice(TOKEN_NS, 0.0, limits=LIMITS, max_queue=10_000, max_queue_ns=float("inf"))
    made = [request(asked.lengths, at_ns=asked.at_ns, caller=asked.caller) for asked in all_asked]
    ends_ns: dict[Request, int] = {}
    coming = 0
    while coming < len(made) or len(device.queue):
        if not len(device.queue):
            device.now_ns = max(device.now_ns, made[coming].accepted_ns)
        while coming < len(made) and made[coming].accepted_ns <= device.now_ns:
            assert device.put(made[coming], device.now_ns)
            coming += 1
        for sequence in device.run():
            ends_ns[sequence.request] = device.now_ns
    return [ends_ns[each] for each in made]


# Who has nothing waiting for a while has saved nothing up for then.
@example([Asked(0, "a", [64] * 4)] * 10 + [Asked(5 * BATCH_NS, "d", [64] * 40)])
@given(ASKED)
def test_nobody_ends_later_than_if_all_were_computed_at_once_but_for_the_batch_that_runs_and_his_own(
    all_asked: list[Asked],
) -> None:
    ends_ns, shared_ns = run_ends_ns(all_asked), shared_ends_ns(all_asked)
    assert all(
        end_ns <= at_most_ns + 2 * BATCH_NS for end_ns, at_most_ns in zip(ends_ns, shared_ns, strict=True)
    )
