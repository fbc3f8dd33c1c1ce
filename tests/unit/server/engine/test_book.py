"""How long receipts are kept, and who is told of them."""

import asyncio
from dataclasses import replace

import pytest

from wattserve_server.energy.receipt import ACCELERATOR, Charge, Line, Outcome, Receipt
from wattserve_server.engine import book as book_module
from wattserve_server.engine.book import ReceiptBook, Run
from wattserve_server.errors import NotFound, OverloadedError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def book(clock: Clock, count: int = 10, final: list[Receipt] | None = None) -> ReceiptBook:
    seen = final if final is not None else []
    return ReceiptBook(60.0, count, seen.append, clock)


def ran(receipts: ReceiptBook, settled: bool = True, request_id: str = "mine", tenant: str = "") -> Receipt:
    receipt = receipts.open(request_id, "fp32", "cpu", tenant=tenant)
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    receipts.ended(receipt)
    if settled:
        receipts.settle("cpu", ACCELERATOR, [Charge(receipt.lines[0], 100, 0.0, 10)], 0)
    return receipt


def test_ids_are_unique_and_carry_the_instance() -> None:
    receipts = book(Clock())
    first, second = receipts.open("", "fp32", "cpu"), receipts.open("", "fp32", "cpu")
    assert first.receipt_id != second.receipt_id
    ends = [receipts.open("", "fp32", "cpu").receipt_id.partition("-")[2] for _ in range(200)]
    assert len(set(ends)) == 200
    assert min(map(len, ends)) * 5 >= 128, "bits that nobody guesses"
    assert len(set("".join(ends))) == 32, "of so many characters"
    assert first.receipt_id.startswith(receipts.run.instance_id)
    assert book(Clock()).run.instance_id != receipts.run.instance_id


def test_a_tenants_receipt_is_to_others_as_if_it_were_not_there() -> None:
    receipts = book(Clock())
    theirs = receipts.open("job", "fp32", "cpu", tenant="shop")
    theirs.lines.append(Line(theirs, 5, batch_size=1, windows=1))
    assert receipts.get(theirs.receipt_id, "shop".__eq__) is theirs
    assert receipts.find("job", 9, "shop".__eq__) == [theirs]
    with pytest.raises(NotFound) as hidden:
        receipts.get(theirs.receipt_id, "bank".__eq__)
    with pytest.raises(NotFound) as unknown:
        receipts.get("x", "bank".__eq__)
    assert str(hidden.value).partition(":")[2] == str(unknown.value).partition(":")[2]
    with pytest.raises(NotFound):
        receipts.find("job", 9, "bank".__eq__)


async def test_who_watches_all_is_told_of_the_receipts_that_it_may_read() -> None:
    receipts = book(Clock())
    watch = receipts.watch("shop".__eq__)
    ran(receipts)
    mine = ran(receipts, tenant="shop")
    receipts.close()
    assert [receipt async for receipt in watch] == [mine]


def test_a_receipt_of_another_run_is_said_to_be_of_that_run() -> None:
    before, receipts = book(Clock()), book(Clock())
    receipts.run = replace(receipts.run, started_unix_ns=3_661_000_000_000)
    with pytest.raises(NotFound) as caught:
        receipts.get(ran(before).receipt_id)
    assert f"it is of run {before.run.instance_id}; this server is run {receipts.run.instance_id}, " in str(
        caught.value
    )
    assert "started 1970-01-01 01:01:01 UTC, and receipts do not outlive their run" in str(caught.value)


def test_a_run_has_one_clock() -> None:
    run = Run(started_unix_ns=5_000, started_ns=300)
    assert (run.unix_ns(300), run.unix_ns(310)) == (5_000, 5_010)


def waiting(receipts: ReceiptBook, device: str = "cpu") -> Line:
    receipt = receipts.open("mine", "fp32", device)
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipt.end(Outcome.COMPLETED)
    return receipt.lines[0]


def test_what_is_active_is_on_receipts_by_device_and_also_when_they_are_forgotten() -> None:
    clock = Clock()
    receipts = book(clock)
    assert receipts.residual_uj("cpu") == 0
    charges = [Charge(waiting(receipts), 70, 0.0, 0), Charge(waiting(receipts), None, 0.0, None, "a gap")]
    receipts.settle("cpu", ACCELERATOR, charges, 70)
    receipts.settle("cuda:0", ACCELERATOR, [Charge(waiting(receipts, "cuda:0"), 9, 0.0, 0)], 9)
    clock.now_s = 1000.0
    receipts.settle("cpu", ACCELERATOR, [Charge(waiting(receipts), 30, 0.0, 0)], 100)
    assert (receipts.residual_uj("cpu"), receipts.residual_uj("cuda:0")) == (0, 0)


def test_a_charge_that_never_came_is_a_residual_for_ever() -> None:
    receipts = book(Clock())
    receipts.settle("cpu", ACCELERATOR, [Charge(waiting(receipts), 70, 0.0, 0)], 95)
    receipts.settle("cpu", ACCELERATOR, [Charge(waiting(receipts), 5, 0.0, 0)], 100)
    assert receipts.residual_uj("cpu") == 25


def test_a_charge_that_its_receipt_refuses_is_a_residual() -> None:
    receipts = book(Clock())
    line = waiting(receipts)
    receipts.settle("cpu", ACCELERATOR, [Charge(line, 70, 0.0, 0)], 70)
    with pytest.raises(ValueError, match="charged twice"):
        receipts.settle("cpu", ACCELERATOR, [Charge(line, 30, 0.0, 0)], 100)
    assert receipts.residual_uj("cpu") == 30


def test_a_final_receipt_is_kept_for_its_time_and_no_longer() -> None:
    clock = Clock()
    receipts = book(clock)
    receipt = ran(receipts)
    clock.now_s = 60.0
    assert receipts.get(receipt.receipt_id) is receipt
    clock.now_s = 60.1
    with pytest.raises(NotFound, match="older than 60 s or the last 10 receipts"):
        receipts.get(receipt.receipt_id)


def test_the_oldest_final_receipts_leave_first_and_pending_ones_stay() -> None:
    receipts = book(Clock(), count=2)
    pending = ran(receipts, settled=False)
    kept = [ran(receipts) for _ in range(3)]
    with pytest.raises(NotFound):
        receipts.get(kept[0].receipt_id)
    assert receipts.get(kept[1].receipt_id) is kept[1]
    assert receipts.get(pending.receipt_id) is pending
    assert receipts.pending == 1


def test_a_request_of_which_nothing_ran_leaves_no_receipt() -> None:
    final: list[Receipt] = []
    receipts = book(Clock(), final=final)
    receipt = receipts.open("", "fp32", "cpu")
    receipt.end(Outcome.CANCELLED)
    receipts.ended(receipt)
    with pytest.raises(NotFound):
        receipts.get(receipt.receipt_id)
    assert final == []
    assert receipts.pending == 0


def test_receipts_are_found_by_their_requests_id_newest_first() -> None:
    receipts = book(Clock())
    first, other, second = ran(receipts), ran(receipts, request_id="theirs"), ran(receipts)
    third = ran(receipts, settled=False)
    assert receipts.find("mine", 10) == [third, second, first]
    assert receipts.find("mine", 2) == [third, second]
    assert receipts.find("theirs", 10) == [other]


def test_who_looks_for_his_own_receipts_passes_nobody_elses() -> None:
    receipts, looked = book(Clock()), list[str]()
    for tenant in ("shop", "bank", "shop"):
        ran(receipts, tenant=tenant)

    def sees(tenant: str) -> bool:
        looked.append(tenant)
        return tenant == "bank"

    assert [receipt.tenant for receipt in receipts.find("mine", 10, sees)] == ["bank"]
    assert sorted(looked) == ["bank", "shop"]  # a word for each tenant, not for each receipt
    assert [receipt.tenant for receipt in receipts.find("mine", 10)] == ["shop", "bank", "shop"]


def test_what_runs_is_found_and_what_waits_or_never_ran_is_not() -> None:
    receipts = book(Clock())
    receipt = receipts.open("mine", "fp32", "cpu")
    line = Line(receipt, 5)
    receipt.lines.append(line)
    with pytest.raises(NotFound, match="nothing of one ran") as caught:
        receipts.find("mine", 10)
    assert caught.value.field == "request_id"
    line.enter(1)
    assert receipts.find("mine", 10) == [receipt]
    line.windows = 0
    receipt.end(Outcome.CANCELLED)
    receipts.ended(receipt)
    with pytest.raises(NotFound):
        receipts.find("mine", 10)
    assert not receipts._by_request


def test_a_request_id_is_forgotten_with_its_last_receipt() -> None:
    clock = Clock()
    receipts = book(clock, count=3)
    pending = ran(receipts, settled=False, request_id="pending")
    for _ in range(2):
        ran(receipts, request_id="early")
    kept = [ran(receipts, request_id="same") for _ in range(2)]
    assert receipts.find("same", 10) == kept[::-1]
    assert len(receipts.find("early", 10)) == 1
    ran(receipts, request_id="late")
    with pytest.raises(NotFound, match="older than 60 s or the last 3 receipts"):
        receipts.find("early", 10)
    clock.now_s = 60.1
    with pytest.raises(NotFound):
        receipts.find("same", 10)
    assert receipts.find("pending", 10) == [pending]
    assert len(receipts._by_request) == 1


def test_a_request_without_an_id_takes_no_room_among_the_ids() -> None:
    receipts = book(Clock(), count=1)
    for _ in range(3):
        ran(receipts, request_id="")
    assert not receipts._by_request


def test_a_request_of_another_run_is_not_found_and_this_run_is_named() -> None:
    before, receipts = book(Clock()), book(Clock())
    ran(before)
    with pytest.raises(NotFound) as caught:
        receipts.find("mine", 10)
    assert f"or of another run; this server is run {receipts.run.instance_id}, started " in str(caught.value)


def test_a_receipt_that_is_charged_before_its_request_ends_is_final_then() -> None:
    final: list[Receipt] = []
    receipts = book(Clock(), final=final)
    receipt = receipts.open("", "fp32", "cpu")
    receipt.lines.append(Line(receipt, 5, batch_size=1, windows=1))
    receipts.settle("cpu", ACCELERATOR, [Charge(receipt.lines[0], 100, 0.0, 10)], 0)
    assert final == []
    receipt.end(Outcome.COMPLETED)
    receipts.ended(receipt)
    assert final == [receipt]


def many(receipts: ReceiptBook, sequences: int) -> Receipt:
    receipt = receipts.open("", "fp32", "cpu")
    receipt.lines += [Line(receipt, 5, batch_size=1, windows=1) for _ in range(sequences)]
    receipt.end(Outcome.COMPLETED)
    receipts.ended(receipt)
    return receipt


def test_the_work_of_charging_a_request_grows_with_its_sequences() -> None:
    asked = 0

    class Counted(Line):
        @property
        def is_settled(self) -> bool:
            nonlocal asked
            asked += 1
            return True

    final: list[Receipt] = []
    receipts = book(Clock(), final=final)
    receipt = many(receipts, 500)
    receipt.lines = [Counted(receipt, 5, batch_size=1, windows=1) for _ in receipt.lines]
    receipts.settle("cpu", ACCELERATOR, [Charge(line, 100, 0.0, 10) for line in receipt.lines], 50_000)
    assert final == [receipt]
    assert asked == 500


def test_a_charge_that_is_refused_loses_none_before_it() -> None:
    final: list[Receipt] = []
    receipts = book(Clock(), final=final)
    first, second = many(receipts, 1), many(receipts, 1)
    charge = Charge(first.lines[0], 100, 0.0, 10)
    with pytest.raises(ValueError, match="charged twice"):
        receipts.settle("cpu", ACCELERATOR, [charge, charge, Charge(second.lines[0], 100, 0.0, 10)], 100)
    assert final == [first]


async def test_a_waiter_is_woken_by_the_charge() -> None:
    receipts = book(Clock())
    receipt = ran(receipts, settled=False)
    waiter = asyncio.create_task(receipts.until_final(receipt))
    await asyncio.sleep(0)
    assert not waiter.done()
    receipts.settle("cpu", ACCELERATOR, [Charge(receipt.lines[0], 100, 0.0, 10)], 0)
    await waiter
    assert receipt.energy_uj == 100


async def test_a_watcher_sees_what_settles_from_then_on_until_the_book_closes() -> None:
    receipts = book(Clock())
    ran(receipts)
    watch = receipts.watch()
    later = [ran(receipts), ran(receipts)]
    receipts.close()
    assert [receipt async for receipt in watch] == later


async def test_a_closed_watch_costs_nothing_more() -> None:
    receipts = book(Clock())
    watch = receipts.watch()
    watch.close()
    ran(receipts)
    receipts.close()
    assert not receipts._watches


async def test_a_watcher_that_falls_behind_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(book_module, "WATCH_QUEUE", 2)
    receipts, told = book(Clock()), list[OverloadedError]()
    watch = receipts.watch(on_overrun=told.append)
    for _ in range(4):
        ran(receipts)
    (error,) = told  # once, and at once
    assert "fell 2 receipts or 64 MiB of them behind" in str(error)
    assert not watch._queue.qsize()


async def test_what_waits_for_a_watcher_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    each_bytes = book_module.RECEIPT_BYTES + len("mine") + book_module.LINE_BYTES
    monkeypatch.setattr(book_module, "WATCH_BYTES", 2 * each_bytes)
    receipts, told = book(Clock()), list[OverloadedError]()
    watch = receipts.watch(on_overrun=told.append)
    for _ in range(4):  # who reads makes room
        ran(receipts)
        await anext(watch)
    assert not told
    for _ in range(3):
        ran(receipts)
    assert len(told) == 1


def test_no_caller_takes_all_places_of_those_who_watch() -> None:
    receipts = ReceiptBook(60.0, 100, lambda receipt: None, Clock(), max_watchers=8)
    for _ in range(2):
        receipts.watch(who="shop")
    with pytest.raises(OverloadedError, match="shop watches all receipts that he may 2 times already"):
        receipts.watch(who="shop")
    receipts.watch(who="bank")
    assert receipts.watchers == 3


async def test_a_watch_of_a_closed_book_ends_at_once() -> None:
    receipts = book(Clock())
    receipts.close()
    assert [receipt async for receipt in receipts.watch()] == []


def test_receipts_are_kept_up_to_so_many_bytes() -> None:
    each_bytes = book_module.RECEIPT_BYTES + len("mine") + book_module.LINE_BYTES
    receipts = ReceiptBook(60.0, 100, lambda receipt: None, Clock(), retention_bytes=2 * each_bytes)
    first, second, third = (ran(receipts) for _ in range(3))
    with pytest.raises(NotFound, match=r"or the last 100 receipts or 0.002662 MB"):
        receipts.get(first.receipt_id)
    assert [receipts.get(each.receipt_id) for each in (second, third)] == [second, third]
    assert receipts.kept_bytes == 2 * each_bytes


def test_so_many_may_watch_all_receipts_and_no_more() -> None:
    receipts = ReceiptBook(60.0, 100, lambda receipt: None, Clock(), max_watchers=2)
    watch = receipts.watch()
    receipts.watch()
    with pytest.raises(OverloadedError, match="2 watch all receipts already") as caught:
        receipts.watch()
    assert caught.value.limit == "watchers"
    watch.close()
    receipts.watch()
    assert receipts.watchers == 2
