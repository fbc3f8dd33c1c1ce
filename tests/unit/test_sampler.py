"""The sampler, ticked by hand: no thread, no waiting."""

from collections.abc import Sequence

from tests.fixtures.windows import MS, reading, window
from wattserve_server.energy.reading import Quality, Reading, Source
from wattserve_server.energy.units import Energy
from wattserve_server.energy.window import Charge, Window
from wattserve_server.errors import MeterError
from wattserve_server.meters.sampler import Sampler


class ScriptedMeter:
    """Reads what it is told to: readings, or the words of an error."""

    source = Source("scripted", "apportioned script", Quality.SIMULATED)
    wraps_at: Energy | None = None
    idle_watts: float | None = 10.0
    poll_period_s = 0.02

    def __init__(self, *script: Reading | str) -> None:
        self.script = list(script)
        self.is_closed = False

    def read(self) -> Reading:
        step = self.script.pop(0)
        if isinstance(step, str) and step.startswith("bug"):
            raise UnicodeError(step)
        if isinstance(step, str):
            raise MeterError(step)
        return step

    def close(self) -> None:
        self.is_closed = True


def sampler_for(meter: ScriptedMeter, windows: list[Window], charges: list[Charge]) -> Sampler:
    def drain() -> tuple[Sequence[Window], int]:
        given = list(windows)
        windows.clear()
        return given, 10**15

    return Sampler(meter, drain, charges.extend)


def test_a_tick_settles_what_the_reading_covers_and_publishes_the_ledger() -> None:
    charges: list[Charge] = []
    sampler = sampler_for(
        ScriptedMeter(reading(0, 0), reading(100, 6_000_000)), windows := [window(10, 60)], charges
    )
    windows.clear()
    sampler.tick()
    windows.append(window(10, 60))
    before = sampler.ledger
    sampler.tick()
    assert [charge.energy_uj for charge in charges] == [5_000_000]
    assert sampler.ledger.measured_uj == 6_000_000
    assert before.measured_uj == 0


def test_a_failing_meter_costs_the_figure_and_not_the_sampler() -> None:
    charges: list[Charge] = []
    windows: list[Window] = []
    sampler = sampler_for(ScriptedMeter("no driver", reading(100, 0)), windows, charges)
    windows.append(window(10, 60))
    sampler.tick()
    assert [(charge.energy_uj, charge.reason) for charge in charges] == [(None, "no driver")]
    assert (sampler.status.last_error, sampler.status.failed_reads) == ("no driver", 1)
    sampler.tick()
    assert (sampler.status.last_error, sampler.status.reads) == ("", 2)


def test_a_meter_with_a_bug_is_a_meter_that_cannot_be_read() -> None:
    charges: list[Charge] = []
    windows = [window(10, 60)]
    sampler = sampler_for(ScriptedMeter("bug: 1"), windows, charges)
    sampler.tick()
    assert [(charge.energy_uj, charge.reason) for charge in charges] == [(None, "UnicodeError: bug: 1")]
    assert sampler.status.failed_reads == 1


def test_the_update_period_is_that_of_the_value_not_of_the_polls() -> None:
    script = [reading(20 * tick, 1000 * (tick // 5)) for tick in range(26)]
    sampler = sampler_for(ScriptedMeter(*script), [], [])
    for _ in script:
        sampler.tick()
    assert sampler.status.update_period_s == 0.1
    assert sampler.ledger.until_ns == 500 * MS


def test_stopping_closes_the_meter() -> None:
    meter = ScriptedMeter()
    sampler_for(meter, [], []).stop()
    assert meter.is_closed
