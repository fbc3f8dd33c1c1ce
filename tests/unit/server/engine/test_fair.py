"""Whose turn it is: a device that many callers share, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.fixtures.queued import request
from tests.fixtures.shared_device import Call, SharedDevice, calls_at_random, p99
from wattserve_server.engine import fair, pace
from wattserve_server.engine.policy import FIRST_PRIORITY, LAST_PRIORITY, NORMAL_PRIORITY, BatchLimits
from wattserve_server.errors import OverloadedError

CAPACITY = 137.0  # of `SharedDevice`, in full batches of sequences of 32 tokens, per second
SECONDS = 30.0
FIRST = 10  # calls of the victim's, while the device has only begun to be behind
BATCH = BatchLimits(max_sequences=8, max_tokens=1024)


def at_once(caller: str, count: int, length: int = 32) -> Iterator[Call]:
    return (Call(0, caller, (length,)) for _ in range(count))


@dataclass(frozen=True)
class Rig:
    """A device, and how much of it there is to share."""

    make: Callable[[], SharedDevice]
    capacity: float  # in full batches of sequences of 32 tokens, per second
    victim: float  # calls a second
    deadline_ns: int | None
    seconds: float = SECONDS


FAST = Rig(SharedDevice, CAPACITY, 10, None)
# Two slow cores: what may wait with that deadline is less than a full batch, so every batch takes all of it.
SLOW = Rig(
    partial(SharedDevice, 1_560_000, 25.0, limits=BatchLimits(64, 8192)), 19.3, 1.75, 2_000_000_000, 200.0
)


def seen_by_victim(rig: Rig, *others: Iterator[Call]) -> SharedDevice:
    device = rig.make()
    victim = calls_at_random("victim", rig.victim, rig.seconds, deadline_ns=rig.deadline_ns)
    device.serve(victim, *others)
    assert not device.refused["victim"]
    assert not device.expired["victim"]
    return device


def beside_the_well_behaved_ns(rig: Rig) -> int:
    """The victim's p99 where the load is 80 % of what the device can do."""
    rate = (0.8 * rig.capacity - rig.victim) / 4
    others = (
        calls_at_random(f"other {number}", rate, rig.seconds, deadline_ns=rig.deadline_ns)
        for number in range(4)
    )
    device = seen_by_victim(rig, *others)
    assert device.refused.total() < 0.005 * sum(map(len, device.batches))
    assert not device.expired.total()
    return p99(device.latencies_ns["victim"][FIRST:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("rig", "connections", "deadline_ns"),
    [
        (FAST, 1, None),
        (FAST, 4, 2_000_000_000),
        (SLOW, 1, 2_000_000_000),
        (SLOW, 2, 2_000_000_000),
    ],
)
def test_a_flood_at_ten_times_capacity_costs_a_victim_little_and_none_of_its_calls(
    rig: Rig, connections: int, deadline_ns: int | None
) -> None:
    rate = 10 * rig.capacity / connections
    flood = (
        calls_at_random(f"flood {number}", rate, rig.seconds, deadline_ns=deadline_ns)
        for number in range(connections)
    )
    device = seen_by_victim(rig, *flood)
    assert p99(device.latencies_ns["victim"][FIRST:]) <= 1.3 * beside_the_well_behaved_ns(rig)
    assert device.refused.total() > 0.8 * 9 * rig.capacity * rig.seconds  # the surplus
    assert device.expired.total() < 0.01 * sum(map(len, device.batches))
    assert sum(map(len, device.batches)) > 0.9 * rig.capacity * rig.seconds  # nothing is left undone for it


@pytest.mark.parametrize("times", [4, 10])
@pytest.mark.parametrize(
    ("callers", "sequences", "deadline_s"), [(1, 64, 2), (3, 64, 2), (6, 64, 2), (12, 16, 1)]
)
def test_what_callers_have_accepted_with_deadlines_ends_in_time_however_many_they_are(
    times: int, callers: int, sequences: int, deadline_s: int
) -> None:
    token_ns, seconds = 73_000, 60.0  # 64 sequences of 128 tokens take 0.6 s
    device = SharedDevice(token_ns, 40.0, limits=BatchLimits(64, 8192))
    device.serve(at_once("before", 8))  # how long a batch takes is known
    device.tokens.clear()
    device.in_time.clear()
    capacity = 1e9 / token_ns / 128 / sequences  # requests a second
    floods = (
        calls_at_random(
            f"caller {number}", times * capacity / callers, seconds, [128], deadline_s * 10**9, sequences
        )
        for number in range(callers)
    )
    device.serve(*floods)
    in_time = device.in_time.total()
    assert in_time >= 0.97 * device.tokens.total()
    assert in_time * token_ns >= 0.88e9 * seconds
    assert device.late.total() <= 0.06 * device.accepted.total()
    shares = device.in_time.values()
    assert min(shares) > 0.6 * in_time / callers


@pytest.mark.parametrize("rate", [0, 12, 20, 40])
def test_who_asks_for_much_is_let_in_only_where_those_who_will_come_meanwhile_leave_him_time(
    rate: int,
) -> None:
    device, seconds = SharedDevice(435_000, limits=BatchLimits(64, 8192)), 60.0
    device.serve(
        calls_at_random("much", 15, seconds, [512], 4_000_000_000),  # three times what the device can do
        calls_at_random("little", rate, seconds, [32], 2_000_000_000) if rate else iter(()),
        calls_at_random("less", rate / 2, seconds, [64], 5_000_000_000) if rate else iter(()),
    )
    assert device.late.total() <= 0.005 * device.accepted.total()
    assert device.in_time.total() * 435_000 >= 0.95e9 * seconds
    if rate < 40:  # else they ask for more than their part
        assert device.refused.total() == device.refused["much"]


def test_a_batch_ends_before_the_deadlines_of_those_in_it_though_more_would_wait_than_it_takes() -> None:
    device = SharedDevice(limits=BatchLimits(64, 8192))
    device.serve(at_once("only", 8))
    each_ns = 512 * 224_000
    for number in range(16):
        deadline_ns = device.now_ns + round(1.4 * (number + 1) * each_ns)
        made = request([512], at_ns=device.now_ns, deadline_ns=deadline_ns, caller="only")
        assert device.put(made, device.now_ns)
    device.serve()
    assert not device.late.total()


@pytest.mark.parametrize("times", [1, 4, 10])
def test_a_batch_is_as_long_as_the_deadlines_of_those_in_it_allow(times: int) -> None:
    """Of one caller who floods: what starting a batch takes is a tenth of a short one."""
    device, seconds = SharedDevice(820_000, limits=BatchLimits(64, 8192)), 60.0
    device.serve(calls_at_random("flood", times / 32 / 820e-6, seconds, [32], 2_000_000_000))
    assert not device.late.total()
    assert device.in_time.total() * 820_000 >= 0.95e9 * seconds
    assert sum(map(len, device.batches)) > (10 if times == 1 else 20) * len(device.batches)


def test_a_batch_is_not_short_for_who_cannot_be_in_time_in_a_short_one_either() -> None:
    device = SharedDevice(limits=BatchLimits(64, 8192))
    device.serve(at_once("only", 8))
    late = request([512], at_ns=device.now_ns, deadline_ns=device.now_ns + 512 * 224_000 // 2)
    assert device.put(late, device.now_ns)
    for _ in range(20):
        assert device.put(request([32], at_ns=device.now_ns), device.now_ns)
    assert len(device.run()) == 20
    assert device.late.total() == 1


def test_who_asks_for_little_is_not_refused_for_large_requests_that_run_after_his() -> None:
    device = SharedDevice(73_000, 40.0, limits=BatchLimits(64, 8192))
    large = (Call(0, f"large {number}", (128,) * 200) for number in range(4))  # 7.5 s of work
    small = calls_at_random("small", 8, 7, [16], 1_000_000_000)
    patient = calls_at_random("patient", 3, 7, [16])
    device.serve(large, small, patient)
    assert not device.refused.total()
    assert not device.expired.total()
    assert max(device.latencies_ns["patient"]) < 1_000_000_000


def test_of_several_requests_that_wait_those_count_whose_turn_comes_before() -> None:
    queue, second = fair.FairQueue(), 1_000_000_000
    queue.put(request([128] * 10, caller="large"), 0)
    queue.put(request([16], caller="mixed"), 0)
    queue.put(request([128] * 10, caller="mixed"), 0)
    queue.put(request([64, 64], "int8", caller="middle"), 0)
    ahead = partial(queue.ahead, "small", NORMAL_PRIORITY, second)
    assert sorted(ahead(32)) == [fair.Ahead("fp32", 1, 16)]
    assert sorted(ahead(128)) == [fair.Ahead("fp32", 1, 16), fair.Ahead("int8", 2, 128)]
    assert sorted(ahead(1280)) == [fair.Ahead("fp32", 11, 1296), fair.Ahead("int8", 2, 128)]
    assert sorted(ahead(1296)) == [fair.Ahead("fp32", 21, 2576), fair.Ahead("int8", 2, 128)]


def test_of_the_callers_own_what_has_waited_for_long_goes_before_a_higher_priority() -> None:
    queue, second = fair.FairQueue(), 1_000_000_000
    queue.put(request([128] * 10, priority=LAST_PRIORITY, caller="own"), 0)
    assert not queue.ahead("own", LAST_PRIORITY - 2, 2 * second - 1)[0].sequences
    assert queue.ahead("own", LAST_PRIORITY - 2, 2 * second) == [fair.Ahead("fp32", 10, 1280)]
    assert queue.ahead("own", LAST_PRIORITY, 0) == [fair.Ahead("fp32", 10, 1280)]


def test_who_asks_for_as_much_does_not_slow_down_who_came_before_and_who_asks_for_less_goes_first() -> None:
    device = SharedDevice(limits=BATCH)
    for number in range(3):
        device.put(request([32] * 24, caller=f"large {number}"), 0)
        device.run()
    device.put(request([32], caller="small"), device.now_ns)
    first = [each.request.caller for each in device.run()]
    assert "small" in first
    first.remove("small")
    while len(device.queue):
        first += sorted(each.request.caller for each in device.run())
    assert first == sorted(first)


def test_for_a_place_a_long_prompt_waits_its_turn_and_no_longer() -> None:
    by_end, by_start = fair.FairQueue(), fair.FairQueue(by_end=False)
    for queue in (by_end, by_start):
        queue.put(request([8000], caller="long"), 0)
        for number in range(3):
            queue.put(request([50], caller=f"short {number}"), 0)
    first = [queue.first() for queue in (by_end, by_start)]
    assert [each and each.request.caller for each in first] == ["short 0", "long"]


@pytest.mark.parametrize("packs", [False, True])
def test_who_always_has_something_waiting_gets_as_many_computed_tokens_as_any_other(packs: bool) -> None:
    device = SharedDevice(packs=packs, limits=BATCH)
    lengths = {"short": 16, "long": 128, "middle": 50}
    for caller, length in lengths.items():
        for _ in range(300):
            device.put(request([length], caller=caller), 0)
    most = BATCH.max_sequences * max(lengths.values())  # of a batch
    for _ in range(40):
        device.run()
        shares = [device.tokens[caller] for caller in lengths]
        assert max(shares) - min(shares) <= most


def test_a_batch_is_filled_from_several_callers_and_the_device_is_never_idle() -> None:
    device = SharedDevice(limits=BATCH, overhead_tokens=22.0)  # worth a start: a full batch
    for caller in ("a", "b", "c"):
        for _ in range(8):
            device.put(request([32], caller=caller), 0)
    first = device.run()
    assert len(first) == BATCH.max_sequences
    assert {each.request.caller for each in first} == {"a", "b", "c"}
    for left in (8, 0):
        device.run()
        assert len(device.queue) == left
    assert device.queue.take(device.now_ns) is None


def test_who_comes_while_others_wait_is_in_the_next_batch_and_nobody_saves_up() -> None:
    device = SharedDevice(limits=BATCH)
    device.serve(at_once("rested", 8))  # and then asks for nothing, while others do
    for _ in range(200):
        device.put(request([32], caller="busy"), device.now_ns)
    for _ in range(10):
        device.run()
    for _ in range(100):
        device.put(request([32], caller="rested"), device.now_ns)
    before = device.tokens.copy()
    assert any(each.request.caller == "rested" for each in device.run())
    for _ in range(5):
        device.run()
    gained = device.tokens - before
    assert abs(gained["rested"] - gained["busy"]) <= 2 * BATCH.max_sequences * 32


def test_a_priority_is_honoured_among_the_callers_own_sequences_only() -> None:
    device = SharedDevice(limits=BATCH)
    for number in range(16):
        priority = FIRST_PRIORITY if number >= 12 else LAST_PRIORITY
        device.put(request([32], caller="pushing", priority=priority), 0)
        device.put(request([32], caller="modest", priority=LAST_PRIORITY), 0)
    first = device.run()
    own = [each.request.priority for each in first if each.request.caller == "pushing"]
    assert own == [FIRST_PRIORITY] * 4
    assert len(first) - len(own) == 4


def test_every_caller_of_a_thousand_is_answered_beside_a_flood_and_then_forgotten() -> None:
    device = SharedDevice(limits=BATCH, max_queue_ns=float("inf"))
    device.serve(at_once("flood", 900), *(at_once(f"caller {number}", 1) for number in range(1000)))
    waited = {caller: max(latencies) for caller, latencies in device.latencies_ns.items()}
    assert device.refused == {"flood": 876}, "for whom there is room, beside the flood's part of it"
    assert len(waited) == 1001
    assert not device.queue._waiting._remembered
    assert not device.queue._waiting._flows


def test_of_those_who_have_nothing_waiting_only_so_many_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair, "MOST_REMEMBERED", 10)
    device = SharedDevice(limits=BATCH)
    for number in range(50):
        device.put(request([32], caller=f"caller {number}"), 0)
    for _ in range(5):
        device.run()
        assert len(device.queue._waiting._remembered) <= 10


def test_a_wait_is_foreseen_from_the_callers_own_place_never_from_the_flood_behind_it() -> None:
    device = SharedDevice(limits=BATCH, max_queue_ns=2e9)
    device.serve(at_once("first", 8))
    while device.put(request([32], caller="flood", at_ns=device.now_ns), device.now_ns):
        pass
    second_ns = 1_000_000_000  # less than what waits takes
    for _ in range(5):
        made = request([32], caller="victim", at_ns=device.now_ns, deadline_ns=device.now_ns + second_ns)
        assert device.put(made, device.now_ns)
        device.run()
    while device.put(request([32], caller="flood", at_ns=device.now_ns), device.now_ns):
        pass
    with pytest.raises(OverloadedError, match="no more than 2 s may wait"):
        device.queue.put(request([32], caller="flood", at_ns=device.now_ns), device.now_ns)


def test_a_request_that_others_run_beside_is_refused_where_its_end_would_be_too_late() -> None:
    device = SharedDevice(limits=BATCH)
    device.serve(at_once("first", 8))
    for _ in range(100):
        device.put(request([32], caller="other", at_ns=device.now_ns), device.now_ns)
    begun_ns, own = device.now_ns, [32] * 80
    alone_ns = 80 * 34 * 224_000
    with pytest.raises(OverloadedError, match="deadline cannot be met"):
        device.queue.put(request(own, caller="many", deadline_ns=begun_ns + round(1.5 * alone_ns)), begun_ns)
    made = request(own, caller="many", at_ns=begun_ns, deadline_ns=begun_ns + 3 * alone_ns)
    device.queue.put(made, begun_ns)
    device.serve()
    assert 1.5 * alone_ns < max(device.latencies_ns["many"]) < 2.5 * alone_ns


def test_who_has_less_than_his_part_of_a_full_queue_is_let_in_and_the_newest_of_the_largest_makes_room() -> (
    None
):
    device = SharedDevice(limits=BATCH, max_queue=20)
    flood = [request([32], caller="flood") for _ in range(20)]
    for each in flood:
        device.queue.put(each)
    assert not device.put(request([32], caller="flood"), 0)
    (evicted,) = device.queue.put(request([32], caller="victim"))
    assert (evicted.request, evicted.sequences) == (flood[-1], 1)
    assert "made room for another's" in str(evicted.error)
    assert len(device.queue) == 20
    for _ in range(9):
        device.queue.put(request([32], caller="victim"))
    with pytest.raises(OverloadedError, match="10 of them this caller's, whose part is 10"):
        device.queue.put(request([32], caller="victim"))


def test_who_has_begun_to_run_is_not_sent_away_for_another() -> None:
    device = SharedDevice(limits=BATCH, max_queue=20)
    large = request([32] * 20, caller="large")
    device.queue.put(large)
    device.run()
    for _ in range(8):
        device.queue.put(request([32], caller="other"))
    (evicted,) = device.queue.put(request([32], caller="third"))
    assert evicted.request.caller == "other"
    assert len(large.receipt.lines) == 20
    for _ in range(3):
        device.queue.put(request([32], caller="third"))
    with pytest.raises(OverloadedError, match="4 of them this caller's, whose part is 6"):
        device.queue.put(request([32], caller="third"))
    assert sum(each.request is large for each in device.queue._waiting) == 12


def test_where_all_that_waits_has_begun_who_comes_is_told_when_there_is_room() -> None:
    device = SharedDevice(limits=BATCH, max_queue=20)
    device.queue.put(request([32] * 20, caller="large"))
    device.run()
    with pytest.raises(
        OverloadedError, match=r"12 of 20 .* 0 of them this caller's, whose part is 10"
    ) as told:
        device.queue.put(request([32] * 9, caller="other"))
    room_s = device.queue.wait_ns(device.now_ns) / 12 / 1e9
    assert told.value.retry_after_s == pytest.approx(room_s)


@pytest.mark.parametrize(("caller", "sequences"), [("flood", 1), ("flood", 12), ("other", 9)])
def test_no_room_is_promised_before_the_batch_that_runs_has_ended(caller: str, sequences: int) -> None:
    device = SharedDevice(limits=BATCH, max_queue=20)
    device.serve(at_once("before", 8))
    device.put(request([32] * 8, caller="flood"), device.now_ns)
    batch, begun_ns = device.begin(), device.now_ns
    if caller == "flood":
        for _ in range(20):
            device.put(request([32], caller="flood"), begun_ns)
    else:  # of what waits nothing makes room, as it is all that its callers have
        device.put(request([32] * 12, caller="flood"), begun_ns)
    made = request([32] * sequences, caller=caller)
    with pytest.raises(OverloadedError, match="the queue is full") as told:
        device.queue.put(made, begun_ns)
    assert told.value.retry_after_s is not None
    back_ns = begun_ns + round(told.value.retry_after_s * 1e9)
    device.end(batch)
    assert device.now_ns <= back_ns
    while device.now_ns < back_ns:
        device.run()
    assert device.put(made, device.now_ns)


@pytest.mark.parametrize(
    ("backlogs", "most_ahead", "tokens"),
    [
        ((100,), 5, 95),
        ((100,), 10, 0),  # no more than that goes before it
        ((100,), 0, 100),
        ((1000, 100), 18, 184),  # until the one has 8 left
        ((1000, 100), 20, 0),
        ((1000, 100), 5, 1095),
        ((4, 4, 4), 9, 3),
        ((40, 40, 40), 9, 111),
    ],
)
def test_when_less_goes_before_a_newcomer_is_told_by_how_others_share_the_device(
    backlogs: tuple[int, ...], most_ahead: int, tokens: float
) -> None:
    queue = fair.FairQueue()
    for number, backlog in enumerate(backlogs):
        queue.put(request([1] * backlog, caller=f"caller {number}"), 0)
    assert queue.tokens_until("comes", 10, most_ahead, 0, 0) == pytest.approx(tokens)


@pytest.mark.parametrize(("most_ahead", "tokens"), [(9, 40), (12, 36), (19, 22), (20, 0)])
@pytest.mark.parametrize("left", [0, 1])
def test_who_is_expected_to_ask_again_goes_before_a_newcomer_until_nothing_waits(
    left: int, most_ahead: int, tokens: float
) -> None:
    queue = fair.FairQueue()
    for number in range(left):  # callers who have nothing waiting now
        for _ in range(20):
            made = request([1], caller=f"had {number}")
            queue.put(made, 0)
            queue.remove(made.sequences)
    most_ahead += 10 * left
    for _ in range(20):
        queue.put(request([1], caller="again"), 0)
    queue.put(request([1] * 20, caller="once"), 0)
    assert queue.tokens_until("comes", 10, most_ahead, 0, 10_000_000_000) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("others", "each", "sequences", "deadline_ns"),
    [(1, 80, 16, 1_000_000_000), (2, 40, 4, 600_000_000), (1, 80, 4, 200_000_000)],
)
def test_who_was_refused_for_his_deadline_is_in_time_when_he_comes_back_as_told(
    others: int, each: int, sequences: int, deadline_ns: int
) -> None:
    device = SharedDevice(435_000, limits=BatchLimits(32, 8192))
    device.serve(at_once("before", 8))
    for number in range(each * others):
        device.put(request([32], at_ns=device.now_ns, caller=f"other {number % others}"), device.now_ns)

    def comes_back_ns() -> int | None:
        """None: it is let in."""
        limit_ns = device.now_ns + deadline_ns
        made = request([32] * sequences, at_ns=device.now_ns, caller="comes", deadline_ns=limit_ns)
        try:
            device.queue.put(made, device.now_ns)
        except OverloadedError as error:
            return device.now_ns + round((error.retry_after_s or 0) * 1e9)
        return None

    batch, refused = device.begin(), 0
    while (back_ns := comes_back_ns()) is not None:
        refused += 1
        device.end(batch)
        while device.now_ns < back_ns:
            device.run()
        batch = device.begin()
    assert 1 <= refused <= others  # batches get shorter meanwhile
    device.end(batch)
    device.serve()
    assert not device.late.total()


@pytest.mark.parametrize("others", [1, 6])
def test_who_has_nothing_waiting_may_have_more_than_his_part_of_a_full_queue(others: int) -> None:
    device = SharedDevice(limits=BATCH, max_queue=60)
    floods = [request([32], caller=f"flood {number % others}") for number in range(60)]
    for each in floods:
        device.queue.put(each)
    evicted = device.queue.put(request([32] * 40, caller="victim"))
    left = {each.request for each in evicted}
    for number in range(others):  # of each as many, his newest
        own = [each for each in floods if each.caller == f"flood {number}"]
        gone = [each in left for each in own]
        assert gone == sorted(gone)
        assert 40 // others <= sum(gone) <= 40 // others + 1
    with pytest.raises(OverloadedError, match="40 of them this caller's"):
        device.queue.put(request([32] * 20, caller="victim"))
    for number in range(others):  # who makes room for himself alone, and not by what waits for longest
        with pytest.raises(OverloadedError, match="the queue is full"):
            device.queue.put(request([32], caller=f"flood {number}"))


def test_requests_larger_than_everybodys_part_keep_no_more_than_half_of_a_queue_from_others() -> None:
    device = SharedDevice(limits=BATCH, max_queue=80)
    large = [request([64 - number] * 20, caller=f"large {number}", at_ns=number) for number in range(4)]
    for each in large:
        device.queue.put(each)
    with pytest.raises(OverloadedError, match="the queue is full"):  # who wants as much sends nobody away
        device.queue.put(request([32] * 20, caller="as large"))
    for number, gone in enumerate((large[3], None)):
        evicted = device.queue.put(request([32], caller=f"small {number}"))
        assert [each.request for each in evicted] == ([] if gone is None else [gone])
    for number in range(18):
        device.queue.put(request([32], caller=f"other {number}"))
    assert len(device.queue) == 80
    assert [each.request for each in device.queue.put(request([32], caller="victim"))] == [large[2]]
    for number in range(19):
        device.queue.put(request([32], caller=f"more {number}"))
    with pytest.raises(OverloadedError, match="the queue is full"):
        device.queue.put(request([32], caller="too many"))
    assert sum(each.request in large for each in device.queue._waiting) == 40


def test_nobody_loses_his_only_request_to_one_who_wants_more_than_his_part() -> None:
    device = SharedDevice(limits=BATCH, max_queue=60)
    for number in range(59):
        device.queue.put(request([32], caller=f"caller {number}"))
    with pytest.raises(OverloadedError, match="0 of them this caller's, whose part is 1"):
        device.queue.put(request([32] * 3, caller="victim"))
    assert len(device.queue) == 59


def floods(device: SharedDevice, count: int) -> None:
    for _ in range(count):
        device.put(request([32], caller="flood", at_ns=device.now_ns), device.now_ns)


def comes(device: SharedDevice, caller: str, deadline_ns: int | None = None) -> None:
    until_ns = None if deadline_ns is None else device.now_ns + deadline_ns
    device.put(request([32], caller=caller, at_ns=device.now_ns, deadline_ns=until_ns), device.now_ns)


def test_a_batch_is_shortened_only_for_the_sake_of_others_who_come() -> None:
    device = SharedDevice(limits=BatchLimits(32, 2048), overhead_tokens=16.0)
    floods(device, 400)
    assert [len(device.run()) for _ in range(3)] == [32] * 3
    comes(device, "victim")
    shorter = device.run()
    assert 4 <= len(shorter) <= 6
    assert "victim" in {each.request.caller for each in shorter}
    device.now_ns += 10_000_000_000
    assert len(device.run()) == 32


def test_a_batch_that_takes_all_that_waits_is_shortened_where_somebody_was_refused() -> None:
    device = SharedDevice(limits=BatchLimits(32, 2048), overhead_tokens=16.0)
    floods(device, 32)
    device.run()
    floods(device, 20)
    comes(device, "flood", deadline_ns=100_000_000)
    assert device.refused == {"flood": 1}
    comes(device, "victim")
    assert 4 <= len(device.run()) <= 6


def test_who_is_refused_since_full_batches_last_too_long_makes_them_shorter() -> None:
    second = 1_000_000_000
    device = SharedDevice(900_000, 25.0, limits=BatchLimits(32, 2048))  # 1.9 s for 32 sequences of 64 tokens
    flood = (Call(at * second, "flood", (64,) * 32) for at in range(60))
    victim = (Call(at * second // 2, "victim", (16,), 3 * second // 2) for at in range(8, 120))
    device.serve(flood, victim)
    assert device.refused["victim"] < 12
    assert not device.expired["victim"]
    assert max(device.latencies_ns["victim"]) < 1.5 * second
    assert sum(map(len, device.batches)) > 900  # of the flood, as many as in full batches but for a tenth


def test_several_callers_who_all_get_what_they_ask_for_have_full_batches() -> None:
    device = SharedDevice(limits=BatchLimits(32, 2048), overhead_tokens=16.0)
    for _ in range(20):
        for number in range(32):
            comes(device, f"caller {number % 4}")
        assert len(device.run()) == 32


@pytest.mark.parametrize("token_ns", [22_400, 2_240])
def test_for_a_batch_that_is_soon_done_nobody_minds_to_wait(token_ns: int) -> None:
    device = SharedDevice(token_ns, overhead_tokens=0.5, limits=BatchLimits(64, 8192))
    floods(device, 200)
    device.run()
    comes(device, "victim")
    begun_ns, batch = device.now_ns, device.run()
    assert len(batch) == 64 or 0.9 * fair.SHORT_NS < device.now_ns - begun_ns < 1.1 * fair.SHORT_NS
    assert (len(batch) == 64) is (token_ns == 2_240)


def test_others_come_who_have_come_since_a_caller_began_to_and_not_who_only_came_before() -> None:
    queue, second = fair.FairQueue(), 1_000_000_000

    def others_come(caller: str, now_ns: int, **held: int) -> bool:
        return caller in queue.with_more({caller: 2, **held}, now_ns)

    queue.demand.came("sweep's first connection", 0)
    for at in range(1, 8):
        queue.demand.came("its second", at * second)
        assert not others_come("its second", at * second)
    queue.demand.came("somebody", 8 * second)
    queue.demand.came("its second", 9 * second)
    assert others_come("its second", 17 * second)
    assert others_come("somebody", 17 * second)
    assert others_come("who has long held a place", 17 * second)
    assert not others_come("its second", 17 * second, somebody=2), "who holds as many"
    assert others_come("its second", 17 * second, somebody=1)
    assert not others_come("its second", 18 * second), "ten seconds after somebody came"


def test_of_those_who_came_lately_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MOST_REMEMBERED", 10)
    lately = pace.Demand()
    for number in range(50):
        lately.came(f"caller {number}", number)
    assert len(lately._comers) == 10
    lately.came("caller 0", pace.COMES_AGAIN_NS + 50)
    assert [*lately._comers] == ["caller 0"]


def test_who_leaves_with_all_he_has_waiting_and_comes_again_is_nobody_else() -> None:
    device = SharedDevice()
    rest = request([32] * 80, caller="only")
    device.put(rest, 0)
    assert len(device.run()) == 32
    device.queue.withdraw(rest)
    device.put(request([32] * 80, caller="only"), device.now_ns)
    assert len(device.run()) == 32
