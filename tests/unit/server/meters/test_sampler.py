"""The sampler, ticked by hand: no thread, no waiting."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.fixtures.meter_fakes import Clock
from tests.fixtures.windows import MS, reading, window
from wattserve_server.energy.accountant import Accountant
from wattserve_server.energy.filter import EnergyFilter
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.energy.receipt import Charge, Window
from wattserve_server.errors import MeterError
from wattserve_server.meters import sampler as sampler_module
from wattserve_server.meters.sampler import LOOK_AROUND_NS, Sampler


class ScriptedMeter:
    """Reads what it is told to: readings, or the words of an error."""

    source = Source("scripted", "apportioned script", Quality.SIMULATED)
    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = 10.0
    poll_period_s = 0.02

    def __init__(self, *script: Reading | str) -> None:
        self.script = list(script)
        self.is_closed = False
        self.seen: int | None = None
        self.at_work: float | None = None
        self.mhz: int | None = None
        self.asked = 0

    def read(self) -> Reading:
        step = self.script.pop(0)
        if isinstance(step, str) and step.startswith("bug"):
            raise UnicodeError(step)
        if isinstance(step, str):
            raise MeterError(step)
        return step

    def neighbours(self) -> int | None:
        self.asked += 1
        return self.seen

    def others_at_work(self) -> float | None:
        return self.at_work

    def clock_mhz(self) -> int | None:
        return self.mhz

    def close(self) -> None:
        self.is_closed = True


class Host:
    """A sampler's surroundings: the windows that it is handed, the charges that it hands back."""

    def __init__(self, meter: ScriptedMeter, clock_ns: Callable[[], int] | None = None) -> None:
        self.meter = meter
        self.windows: list[Window] = []
        self.charges: list[Charge] = []
        self.known_until_ns = 10**15
        self.sampler = Sampler(meter, self._drain, self.charges.extend, clock_ns=clock_ns or Clock())

    def _drain(self) -> tuple[Sequence[Window], int]:
        given = list(self.windows)
        self.windows.clear()
        return given, self.known_until_ns


def test_the_average_that_a_meter_declares_is_known_before_anything_ran() -> None:
    meter = ScriptedMeter(reading(0, 0))
    meter.source = replace(meter.source, averages_s=1.0)
    assert Host(meter).sampler.status.average_s == 1.0


def test_a_tick_settles_what_the_reading_covers_and_publishes_the_ledger() -> None:
    host = Host(ScriptedMeter(reading(0, 0), reading(100, 6_000_000)))
    host.sampler.tick()
    host.windows.append(window(10, 40))
    before = host.sampler.ledger
    host.sampler.tick()
    assert [charge.energy_uj for charge in host.charges] == pytest.approx([5_000_000], abs=2)
    assert host.sampler.ledger.measured_uj == 6_000_000
    assert before.measured_uj == 0


def test_a_failing_meter_costs_the_figure_and_not_the_sampler() -> None:
    host = Host(ScriptedMeter("no driver", reading(100, 0)))
    host.windows.append(window(10, 60))
    host.sampler.tick()
    assert [(charge.energy_uj, charge.reason) for charge in host.charges] == [(None, "no driver")]
    assert (host.sampler.status.last_error, host.sampler.status.failed_reads) == ("no driver", 1)
    host.sampler.tick()
    assert (host.sampler.status.last_error, host.sampler.status.reads) == ("", 2)


def test_a_meter_with_a_bug_is_a_meter_that_cannot_be_read() -> None:
    host = Host(ScriptedMeter("bug: 1"))
    host.windows.append(window(10, 60))
    host.sampler.tick()
    assert [(charge.energy_uj, charge.reason) for charge in host.charges] == [(None, "UnicodeError: bug: 1")]
    assert host.sampler.status.failed_reads == 1


def test_the_update_period_is_that_of_the_value_not_of_the_polls() -> None:
    script = [reading(20 * tick, 1000 * (tick // 5)) for tick in range(26)]
    host = Host(ScriptedMeter(*script))
    for _ in script:
        host.sampler.tick()
    assert host.sampler.status.update_period_s == 0.1
    assert host.sampler.ledger.until_ns == 500 * MS


def test_the_read_cost_is_what_the_clock_says_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, meter = Clock(), ScriptedMeter()
    host = Host(meter, clock)
    assert host.sampler.status.read_cost_s is None

    def slow_read() -> Reading:
        clock.advance_s(0.01)
        return reading(clock.now_ns / MS, 0)

    monkeypatch.setattr(meter, "read", slow_read)
    for _ in range(3):
        host.sampler.tick()
    assert host.sampler.status.read_cost_s == 0.01


def test_the_meter_is_asked_about_neighbours_once_a_second() -> None:
    clock, meter = Clock(), ScriptedMeter(*(reading(100 * tick, 0) for tick in range(30)))
    host = Host(meter, clock)
    meter.seen = 3
    asked = []
    for _ in range(25):
        host.sampler.tick()
        clock.advance_s(0.1)
        asked.append(meter.asked)
    assert LOOK_AROUND_NS == 10**9
    assert asked == [1] * 10 + [2] * 10 + [3] * 5
    assert host.sampler.status.neighbours == 3


def test_before_the_meter_could_be_read_nothing_is_known_of_neighbours() -> None:
    meter = ScriptedMeter("no driver")
    host = Host(meter)
    meter.seen = 3
    host.sampler.tick()
    assert (meter.asked, host.sampler.status.neighbours) == (0, None)


def test_what_the_meter_says_of_neighbours_reaches_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []
    monkeypatch.setattr(Accountant, "see_neighbours", lambda self, count: told.append(count))
    clock = Clock()
    meter = ScriptedMeter(*(reading(100 * tick, 0) for tick in range(3)))
    host = Host(meter, clock)
    for meter.seen in (2, None, 0):
        host.sampler.tick()
        clock.advance_s(1.0)
    assert told == [2, None, 0]


def test_what_others_used_reaches_the_accountant_and_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float | None] = []
    monkeypatch.setattr(Accountant, "see_others", lambda self, at_work: told.append(at_work))
    clock = Clock()
    meter = ScriptedMeter(*(reading(100 * tick, 0) for tick in range(3)))
    host = Host(meter, clock)
    for meter.at_work in (0.25, None, 0.0):
        host.sampler.tick()
        clock.advance_s(1.0)
    assert told == [0.25, None, 0.0]
    assert host.sampler.status.others_at_work == 0.0


def test_how_fast_the_device_works_reaches_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []
    monkeypatch.setattr(Accountant, "see_clock", lambda self, mhz: told.append(mhz))
    clock = Clock()
    meter = ScriptedMeter(*(reading(100 * tick, 0) for tick in range(2)))
    host = Host(meter, clock)
    for meter.mhz in (1980, None):
        host.sampler.tick()
        clock.advance_s(1.0)
    assert told == [1980, None]


def test_a_meter_that_falls_back_on_another_source_says_so_from_the_next_tick() -> None:
    meter = ScriptedMeter(reading(0, 0), reading(100, 0))
    host = Host(meter)
    host.sampler.tick()
    before = host.sampler.source
    meter.source = Source("scripted", "another way", Quality.ESTIMATED)
    assert host.sampler.source is before
    host.sampler.tick()
    assert host.sampler.source == host.sampler.status.source == meter.source


def test_receipts_beside_others_at_work_say_so() -> None:
    meter = ScriptedMeter(*(reading(100 * tick, 2_000_000 * tick) for tick in range(12)))
    meter.idle_watts, meter.seen, meter.at_work = None, 2, 0.5
    host = Host(meter)
    for tick in range(12):
        host.known_until_ns = 100 * tick * MS
        host.windows += [window(100 * tick - 90, 100 * tick - 60)] * (tick == 9)
        host.sampler.tick()
    (warning,) = {charge.warning for charge in host.charges}
    assert warning.startswith("other processes (2) used the device meanwhile: about ")


def test_the_status_shows_what_is_known_of_the_sensor() -> None:
    host = Host(ScriptedMeter(reading(0, 0)))
    host.sampler.tick()
    status = host.sampler.status
    assert (status.idle_watts, status.idle_origin) == (10.0, "configured")
    assert (status.lag_s, status.ramp_s, status.poll_period_s) == (0.0, 0.0, 0.02)


def test_a_spike_of_the_counter_is_never_measured() -> None:
    script = ((0, 0), (100, 10_000_000), (200, 10**12), (300, 30_000_000))
    meter = ScriptedMeter(*(reading(at_ms, energy_uj) for at_ms, energy_uj in script))
    meter.most_watts = 150.0
    host = Host(meter)
    host.sampler.tick()
    host.sampler.tick()
    host.windows.append(window(110, 190))
    host.sampler.tick()
    host.sampler.tick()
    assert [charge.reason for charge in host.charges] == [
        "the meter's counter jumped by 999990 J in 0.1 s, beyond 300 W"
    ]
    assert (host.sampler.ledger.measured_uj, host.sampler.ledger.gap_count) == (10_000_000, 2)


def test_the_ledger_is_copied_when_something_was_written_to_it() -> None:
    script: list[Reading | str] = [
        reading(0, 0),
        reading(100, 1000),
        reading(110, 1000),
        "no driver",
        reading(200, 2000),
    ]
    host = Host(ScriptedMeter(*script))
    shown = []
    for _ in script:
        host.sampler.tick()
        shown.append(host.sampler.ledger)
    first, edge, *idle, last = shown
    assert [first.since_ns, edge.measured_uj, last.measured_uj] == [0, 1000, 2000]
    assert all(ledger is edge for ledger in idle)


def test_charges_come_with_the_ledger_in_which_they_are_booked() -> None:
    host = Host(ScriptedMeter(*(reading(100 * tick, 6_000_000 * tick) for tick in range(4))))
    seen: list[tuple[int, int]] = []

    def hear(charges: Sequence[Charge]) -> None:
        host.charges += charges
        charged = sum(charge.energy_uj or 0 for charge in host.charges)
        seen.append((host.sampler.ledger.active_uj, charged))

    host.sampler = Sampler(host.meter, host._drain, hear, clock_ns=Clock())
    for tick in range(4):
        host.windows += [window(100 * tick - 90, 100 * tick - 60)] * (tick > 0)
        host.sampler.tick()
    assert len(seen) == 3
    assert all(active == charged > 0 for active, charged in seen)


def test_the_status_shows_an_error_after_which_the_accounts_began_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(EnergyFilter, "update", fail)
    host = Host(ScriptedMeter(reading(0, 0), reading(100, 6_000_000)))
    host.sampler.tick()
    assert (host.sampler.status.restarts, host.sampler.status.last_restart) == (0, "")
    host.windows.append(window(10, 40))
    host.sampler.tick()
    assert (host.sampler.status.restarts, host.sampler.status.last_restart) == (1, "MemoryError: no room")
    assert [charge.energy_uj for charge in host.charges] == [None]
    assert host.sampler.ledger.unattributed_uj == 6_000_000


class HangingMeter(ScriptedMeter):
    """Its first read does not come back until it is let go."""

    def __init__(self) -> None:
        super().__init__(reading(0, 0), reading(1, 0))
        self.is_reading, self.let_go = threading.Event(), threading.Event()

    def read(self) -> Reading:
        self.is_reading.set()
        assert self.let_go.wait(60)
        return super().read()


def test_a_read_that_hangs_does_not_hang_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sampler_module, "STOP_LIMIT_S", 0.05)
    meter = HangingMeter()
    host = Host(meter)
    host.sampler.start()
    try:
        assert meter.is_reading.wait(60)
        assert not host.sampler.wait_until_settled(0.05)
        host.sampler.stop()
        assert not meter.is_closed  # it is in use
        (told,) = caplog.messages
        assert told.startswith("the last read of the meter scripted has not come back in 0.05 s: ")
    finally:
        meter.let_go.set()


def test_stopping_closes_the_meter() -> None:
    meter = ScriptedMeter()
    Host(meter).sampler.stop()
    assert meter.is_closed
