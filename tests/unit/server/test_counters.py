"""One accountant for each counter: two devices on one host, and the parts of a receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.fixtures.meter_fakes import Clock
from wattserve_server import counters
from wattserve_server.audit.recorder import Recorder
from wattserve_server.counters import Counter
from wattserve_server.devices import Account, accounts_of
from wattserve_server.energy.attribution import BUSY_TIME, BY_TIME, IDLE_POLICIES, NONE
from wattserve_server.energy.inflight import Visit
from wattserve_server.energy.probe import SensorProbe
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.energy.receipt import ACCELERATOR, HOST, Charge, Line, Outcome, Receipt, State, Window
from wattserve_server.engine.book import ReceiptBook
from wattserve_server.errors import MeterError
from wattserve_server.meters.probe import ProbedMeter
from wattserve_server.meters.together import Together

pytestmark = pytest.mark.long

MS = 1_000_000
TICK_MS = 20
WATTS = {("a", ACCELERATOR): 80.0, ("b", ACCELERATOR): 200.0, ("a", HOST): 6.0, ("b", HOST): 24.0}


class PowerMeter:
    """Counts what the test lets be drawn; its idle draw is declared."""

    wraps_at: Energy | None = None
    most_watts: float | None = None
    poll_period_s = TICK_MS / 1e3
    idle_watts: float | None = 10.0

    def __init__(self, name: str, clock: Clock) -> None:
        self.source = Source(name, "apportioned counter", Quality.MEASURED, boundary=name)
        self.uj, self._clock = 0.0, clock
        self.failure = ""

    def read(self) -> Reading:
        if self.failure:
            raise MeterError(self.failure)
        return Reading(self._clock.now_ns, Energy(round(self.uj)))

    def neighbours(self) -> int | None:
        return None

    def others_at_work(self) -> float | None:
        return None

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


class Machine:
    """Devices that each run one variant, named as the key, with an accelerator of their own and one host."""

    def __init__(
        self,
        variants: Sequence[str],
        monkeypatch: pytest.MonkeyPatch,
        recorder: Recorder | None = None,
        idle_policy: str = BUSY_TIME,
    ) -> None:
        self.idle_policy = idle_policy
        monkeypatch.setattr(counters, "probe_with_parts", lambda meter: ProbedMeter(SensorProbe(0.0, 0)))
        self.clock = Clock()
        self.book = ReceiptBook(1e6, 10**6, recorder.put if recorder else lambda receipt: None)
        self.host = Counter(HOST, PowerMeter("rapl", self.clock), self.clock)
        self.boards = {
            name: Counter(ACCELERATOR, PowerMeter(f"nvml:{name}", self.clock), self.clock)
            for name in variants
        }
        self.counters = [*self.boards.values(), self.host]
        self._finished: dict[tuple[str, str], list[Window]] = {}
        self._running: dict[str, Window] = {}
        self._visits: list[tuple[str, list[Visit]]] = []  # of a device, for each who drains them
        self.truth_uj: dict[tuple[Receipt, str], float] = {}
        for name, board in self.boards.items():
            self._draw(board, name)
            self._draw(self.host, name)
        for counter in self.counters:
            counter.probe(self.book.settle, self.book.share_idle, "shapley", idle_policy, recorder)
        self.tick()

    def _draw(self, counter: Counter, name: str) -> None:
        unread = self._finished[name, counter.part] = []

        def drain() -> tuple[list[Window], int]:
            given = list(unread)
            unread.clear()
            running = self._running.get(name)
            return given, self.clock.now_ns if running is None else running.start_ns

        visits: list[Visit] = []
        self._visits.append((name, visits))

        def drain_visits() -> list[Visit]:
            given = list(visits)
            visits.clear()
            return given

        counter.draw(name, drain, drain_visits)

    def visit(self, receipt: Receipt, *, has_left: bool = False) -> None:
        if self.idle_policy == BY_TIME:
            for name, visits in self._visits:
                if name != receipt.device:
                    continue
                visits.append(Visit(receipt, self.clock.now_ns, has_left, has_left and bool(receipt.ran)))

    def tick(self) -> None:
        for counter in self.counters:
            counter.sampler.tick()
            assert counter.sampler.ledger.residual_uj() == 0
        assert self.whole.ledger.residual_uj() == 0

    @property
    def whole(self) -> Together:
        return Account("all", self.counters).together

    def pass_ms(self, ms: int) -> None:
        """Tick by tick; what has run its time ends."""
        for _ in range(ms // TICK_MS):
            self.clock.now_ns += TICK_MS * MS
            for counter in self.counters:
                meter = counter.meter
                assert isinstance(meter, PowerMeter)
                meter.uj += 10.0 * TICK_MS * 1e3
            for name, window in list(self._running.items()):
                for part, meter in ((ACCELERATOR, self.boards[name].meter), (HOST, self.host.meter)):
                    assert isinstance(meter, PowerMeter)
                    meter.uj += WATTS[name, part] * TICK_MS * 1e3
                if window.end_ns <= self.clock.now_ns:
                    del self._running[name]
                    self.visit(window.lines[0].receipt, has_left=True)
                    for part in (ACCELERATOR, HOST):
                        self._finished[name, part].append(window)
            self.tick()

    def run(self, name: str, ms: int) -> Receipt:
        """Begin a batch of one request."""
        receipt = self.book.open("", name, name, (ACCELERATOR, HOST))
        receipt.idle_policy = self.idle_policy
        self.visit(receipt)
        line = Line(receipt, 8)
        line.enter(1)
        line.ran(8, ms * MS, (None, None))
        receipt.lines.append(line)
        receipt.end(Outcome.COMPLETED)
        start_ns = self.clock.now_ns
        self._running[name] = Window(name, start_ns, start_ns + ms * MS, (ms,), ms, (line,))
        for part in receipt.parts:
            self.truth_uj[receipt, part] = WATTS[name, part] * ms * 1e3
        return receipt

    def wait(self, name: str) -> Callable[[], None]:
        """A request is in flight until what is returned is called, and leaves without having run."""
        receipt = self.book.open("", name, name, (ACCELERATOR, HOST))
        receipt.idle_policy = self.idle_policy
        self.visit(receipt)

        def leave() -> None:
            receipt.end(Outcome.CANCELLED)
            self.visit(receipt, has_left=True)
            self.book.ended(receipt)

        return leave

    def is_running(self, name: str) -> bool:
        return name in self._running

    def serve(self, seconds: float) -> list[Receipt]:
        """Both devices by turns and side by side, with pauses."""
        rng = np.random.default_rng(5)
        receipts, until_ns = [], self.clock.now_ns + round(seconds * 1e9)
        while self.clock.now_ns < until_ns:
            for name in self.boards:
                if not self.is_running(name) and rng.random() < 0.4:
                    receipts.append(self.run(name, TICK_MS * int(rng.integers(1, 6))))
            self.pass_ms(TICK_MS)
        self.pass_ms(2000)
        return receipts


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(["a", "b"], monkeypatch)


def charged(machine: Machine, receipts: list[Receipt], name: str, part: str) -> float:
    """What a part charged all requests of a device, over what was true."""
    mine = [receipt for receipt in receipts if receipt.variant == name]
    told = [receipt.of_part(part).energy_uj for receipt in mine]
    assert None not in told
    return sum(uj or 0 for uj in told) / sum(machine.truth_uj[receipt, part] for receipt in mine)


def test_the_host_of_two_devices_is_billed_once_and_to_whom_it_worked_for(machine: Machine) -> None:
    receipts = machine.serve(20.0)
    assert all(receipt.state is State.SETTLED for receipt in receipts)
    later = receipts[len(receipts) // 4 :]
    for name in "ab":
        assert charged(machine, later, name, ACCELERATOR) == pytest.approx(1.0, abs=0.01)
        assert charged(machine, later, name, HOST) == pytest.approx(1.0, abs=0.1)
    host = machine.host.sampler.ledger
    assert host.active_uj == sum(receipt.of_part(HOST).energy_uj or 0 for receipt in receipts)
    assert all(machine.book.residual_uj(counter.name) == 0 for counter in machine.counters)
    total_uj = sum(receipt.energy_uj or 0 for receipt in receipts)
    assert total_uj == sum(counter.sampler.ledger.active_uj for counter in machine.counters)


def test_a_device_alone_is_told_the_same_with_and_without_another(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for names in (["a"], ["a", "b"]):
        machine = Machine(names, monkeypatch)
        receipts = []
        for _ in range(60):
            machine.pass_ms(140)
            receipts.append(machine.run("a", 60))
        machine.pass_ms(2000)
        told.append([receipt.energy_uj for receipt in receipts])
    assert told[0] == told[1]


def test_a_part_that_dies_makes_the_whole_unknown_and_leaves_the_other_its_figure(machine: Machine) -> None:
    machine.serve(3.0)
    assert isinstance(machine.host.meter, PowerMeter)
    machine.host.meter.failure = "powercap is gone"
    receipt = machine.run("a", 60)
    machine.pass_ms(4000)
    assert (receipt.state, receipt.energy_uj) == (State.UNKNOWN, None)
    assert receipt.reason.startswith("host: ")
    assert "powercap is gone" in receipt.reason
    board, host = receipt.of_part(ACCELERATOR), receipt.of_part(HOST)
    assert board.state is State.SETTLED
    assert board.energy_uj == pytest.approx(machine.truth_uj[receipt, ACCELERATOR], rel=0.05)
    assert (host.state, host.energy_uj) == (State.UNKNOWN, None)


def test_a_gap_of_one_part_is_its_own_and_what_comes_after_is_known_again(machine: Machine) -> None:
    machine.serve(3.0)
    board = machine.boards["a"].meter
    assert isinstance(board, PowerMeter)
    board.failure = "the GPU is lost"
    over = machine.run("a", 60)
    machine.pass_ms(4000)
    board.failure = ""
    machine.pass_ms(1000)
    after = machine.run("a", 60)
    machine.pass_ms(2000)
    assert over.reason.startswith("accelerator: ")
    assert over.of_part(HOST).state is State.SETTLED
    assert after.state is State.SETTLED
    assert machine.boards["a"].sampler.ledger.gap_count == 1
    assert machine.host.sampler.ledger.gap_count == 0


@pytest.mark.parametrize("policy", IDLE_POLICIES)
def test_receipts_show_the_idle_draw_that_ledgers_say_they_do(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two boards and their host, under each policy, also where requests leave without having run."""
    machine = Machine(["a", "b"], monkeypatch, idle_policy=policy)
    receipts = machine.serve(3.0)
    leave = machine.wait("a")
    receipts += machine.serve(1.0)
    leave()
    receipts += machine.serve(2.0)
    assert all(receipt.state is State.SETTLED for receipt in receipts)
    shown_uj = 0
    for counter in machine.counters:
        ledger = counter.sampler.ledger
        assert 0 <= ledger.idle_shared_uj <= ledger.idle_uj
        shown_uj += ledger.idle_shared_uj
    assert sum(receipt.idle_share_uj or 0 for receipt in receipts) == shown_uj
    assert (shown_uj > 0) == (policy != NONE)
    assert machine.book.pending == 0


def test_parts_are_wrong_each_for_itself() -> None:
    receipt = Receipt("r-1", "", "a", "cuda:0", 0, (ACCELERATOR, HOST))
    line = Line(receipt, 5)
    receipt.lines.append(line)
    line.enter(1)
    line.ran(5, 7, (900, 700))
    receipt.end(Outcome.COMPLETED)
    receipt.charge(Charge(line, 1000, 30.0, 4), ACCELERATOR)
    assert (receipt.state, receipt.of_part(ACCELERATOR).state) == (State.PROVISIONAL, State.SETTLED)
    assert (receipt.energy_uj, line.energy_uj) == (1700, 1700)  # of the host, what is foreseen
    receipt.charge(Charge(line, 500, 40.0, 3, warning="somebody draws"), HOST)
    assert (receipt.energy_uj, receipt.idle_share_uj) == (1500, 7)
    assert receipt.interval_uj() == (1402, 1598)  # 1.96 x 50: counters err independently
    assert receipt.warnings == ["host: somebody draws"]


def test_a_host_goes_by_its_own_stamps_and_a_board_by_the_devices() -> None:
    seen = Window("a", 20, 30, (4,), 4, host_ns=(10, 50))
    for part, stamps in ((ACCELERATOR, (20, 30)), (HOST, (10, 50))):
        counter = Counter(part, PowerMeter("any", Clock()))
        counter.draw("cuda:0", lambda: ([], 90))
        counter.draw("cuda:1", lambda: ([seen], 70))
        (window,), known_until_ns = counter._drain()
        assert ((window.start_ns, window.end_ns), window.lane, known_until_ns) == (stamps, 1, 70)


class Device:
    """What `accounts_of` looks at."""

    def __init__(self, name: str, *counters: Counter) -> None:
        self.device, self.run_log, self.counters = torch.device(name), None, list(counters)
        for counter in counters:
            counter.draw(name, lambda: ([], 0))


@pytest.mark.parametrize(
    ("names", "accounts"),
    [
        (["cuda:0"], [("cuda:0", [ACCELERATOR, HOST])]),
        (["cuda:0", "cuda:1"], [("cuda:0", [ACCELERATOR]), ("cuda:1", [ACCELERATOR]), ("host", [HOST])]),
        (["cuda:0", "cpu"], [("cuda:0", [ACCELERATOR]), ("cpu", [HOST])]),
    ],
)
def test_every_counter_is_in_one_ledger(names: list[str], accounts: list[tuple[str, list[str]]]) -> None:
    host = Counter(HOST, PowerMeter("rapl", Clock()))
    devices = [
        Device(name, *([] if name == "cpu" else [Counter(ACCELERATOR, PowerMeter(name, Clock()))]), host)
        for name in names
    ]
    found = accounts_of(devices)  # type: ignore[arg-type]
    assert [(each.name, [counter.part for counter in each.counters]) for each in found] == accounts
