"""Meters added up: what the sum shows when, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.meter_fakes import Clock
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import MeterError
from wattserve_server.meters.composite import CompositeMeter


@dataclass
class Part:
    """Shows what it is told to."""

    name: str
    clock: Clock
    uj: int = 0
    quality: Quality = Quality.MEASURED
    method: str = "apportioned counter"
    wraps_at: Energy | None = None
    most_watts: float | None = None
    idle_watts: float | None = None
    poll_period_s: float = 0.02
    others: int | None = None
    at_work: float | None = None
    error: str = ""
    closed: bool = False
    source: Source = field(init=False)

    def __post_init__(self) -> None:
        self.source = Source(self.name, self.method, self.quality, f"note of {self.name}", f"box {self.name}")

    def read(self) -> Reading:
        if self.error:
            raise MeterError(self.error)
        return Reading(self.clock(), Energy(self.uj))

    def neighbours(self) -> int | None:
        return self.others

    def others_at_work(self) -> float | None:
        return self.at_work

    def clock_mhz(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed = True


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.gpu, self.cpu = Part("gpu", self.clock, 5_000), Part("cpu", self.clock, 70)

    def meter(self) -> CompositeMeter:
        return CompositeMeter([self.gpu, self.cpu])

    def pass_ms(self, ms: float, gpu_uj: int = 0, cpu_uj: int = 0) -> None:
        self.clock.advance_s(ms / 1000)
        self.gpu.uj += gpu_uj
        self.cpu.uj += cpu_uj


def test_each_part_is_counted_from_the_opening() -> None:
    world = World()
    meter = world.meter()
    world.pass_ms(100, gpu_uj=3_000, cpu_uj=200)
    assert meter.read() == Reading(5_100_000_000, Energy(3_200))


def test_the_sum_steps_when_its_slowest_part_does_and_holds_the_faster_one_exactly_then() -> None:
    world = World()
    meter = world.meter()
    shown = []
    for poll in range(1, 11):
        world.pass_ms(20, gpu_uj=10_000 if poll % 5 == 0 else 0, cpu_uj=100)
        shown.append(meter.read().energy.uj)
    assert shown == [0, 0, 0, 0, 10_500, 10_500, 10_500, 10_500, 10_500, 21_000]


def test_a_part_that_stands_still_holds_the_sum_still() -> None:
    world = World()
    meter = world.meter()
    shown = []
    for _ in range(40):
        world.pass_ms(50, cpu_uj=100)
        shown.append(meter.read().energy.uj)
    assert shown == [0] * 40  # the reader sees a frozen counter, and makes a gap of it


def test_a_part_that_declares_to_draw_nothing_at_rest_is_not_waited_for() -> None:
    world = World()
    world.gpu.idle_watts = 0.0
    meter = world.meter()
    world.pass_ms(50, cpu_uj=100)
    assert meter.read().energy.uj == 100


def test_a_part_that_wraps_is_followed() -> None:
    world = World()
    world.cpu.wraps_at = Energy(100)
    meter = world.meter()
    world.clock.advance_s(0.1)
    world.cpu.uj, world.gpu.uj = 20, 5_001
    assert meter.read().energy == Energy(51)


def test_a_part_that_was_reset_makes_the_sum_step_back_so_that_the_reader_sees_it() -> None:
    world = World()
    meter = world.meter()
    world.pass_ms(100, gpu_uj=3_000, cpu_uj=200)
    meter.read()
    world.pass_ms(100, gpu_uj=900_000)
    world.cpu.uj = 0
    assert meter.read().energy == Energy(0)
    world.pass_ms(100, gpu_uj=10, cpu_uj=5)
    assert meter.read().energy == Energy(15)


def test_a_wrap_that_no_device_could_have_drawn_is_a_reset() -> None:
    world = World()
    world.cpu.wraps_at = Energy(10**12)
    meter = world.meter()
    world.pass_ms(100, gpu_uj=3_000, cpu_uj=200)
    meter.read()
    world.clock.advance_s(0.1)
    world.cpu.uj = 0
    assert meter.read().energy == Energy(0)


def test_a_part_that_fails_fails_the_sum_by_name_and_costs_no_joule_of_the_others() -> None:
    world = World()
    meter = world.meter()
    world.pass_ms(100, gpu_uj=3_000, cpu_uj=200)
    world.cpu.error = "gone"
    with pytest.raises(MeterError) as caught:
        meter.read()
    assert str(caught.value) == "cpu, a part of the composite meter: gone"
    world.cpu.error = ""
    world.pass_ms(100, gpu_uj=3_000, cpu_uj=200)
    assert meter.read().energy == Energy(6_400)


def test_a_part_that_cannot_be_read_at_the_opening_is_named() -> None:
    world = World()
    world.gpu.error = "no driver"
    with pytest.raises(MeterError, match=r"^gpu, a part of the composite meter: no driver$"):
        world.meter()


def test_the_sum_is_as_good_as_its_worst_part_and_says_what_each_is() -> None:
    clock = Clock()
    cpu = Part("estimate", clock, quality=Quality.ESTIMATED, method="apportioned estimate")
    source = CompositeMeter([Part("gpu", clock), cpu]).source
    assert source == Source(
        name="gpu+estimate",
        method="sum of: apportioned counter, apportioned estimate",
        quality=Quality.ESTIMATED,
        note="gpu is measured: note of gpu; estimate is estimated: note of estimate",
        boundary="box gpu + box estimate",
    )


@pytest.mark.parametrize(("first", "second", "total"), [(40.0, 5.0, 45.0), (40.0, None, None)])
def test_idle_watts_are_declared_only_if_every_part_declares_them(
    first: float, second: float | None, total: float | None
) -> None:
    world = World()
    world.gpu.idle_watts, world.cpu.idle_watts = first, second
    assert world.meter().idle_watts == total


NEIGHBOURS = [(2, 1, 3), (2, None, 2), (None, None, None), (0, 0, 0)]


@pytest.mark.parametrize(("first", "second", "total"), NEIGHBOURS)
def test_neighbours_are_those_of_the_parts_that_can_tell(
    first: int | None, second: int | None, total: int | None
) -> None:
    world = World()
    world.gpu.others, world.cpu.others = first, second
    assert world.meter().neighbours() == total


@pytest.mark.parametrize(
    ("gpu", "cpu", "together"), [(0.25, 0.5, 0.75), (0.0, 0.0, 0.0), (None, 0.5, None), (0.25, None, None)]
)
def test_what_others_used_is_known_of_the_sum_where_it_is_of_every_part(
    gpu: float | None, cpu: float | None, together: float | None
) -> None:
    world = World()
    world.gpu.at_work, world.cpu.at_work = gpu, cpu
    assert world.meter().others_at_work() == together


def test_closing_closes_every_part_and_reading_then_fails() -> None:
    world = World()
    meter = world.meter()
    meter.close()
    assert world.gpu.closed
    assert world.cpu.closed
    with pytest.raises(MeterError, match="closed"):
        meter.read()


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 9_000), st.integers(0, 9_000), st.booleans()),
        max_size=40,
    )
)
def test_no_joule_is_lost_or_made_however_parts_change_and_fail(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    world = World()
    meter = world.meter()
    last = meter.read()
    for ms, gpu_uj, cpu_uj, fails in steps:
        world.pass_ms(ms, gpu_uj, cpu_uj)
        world.cpu.error = "gone" if fails else ""
        if fails:
            with pytest.raises(MeterError):
                meter.read()
            continue
        reading = meter.read()
        assert reading.energy >= last.energy
        last = reading
    world.cpu.error = ""
    world.pass_ms(20, 1, 1)
    assert meter.read().energy.uj == world.gpu.uj - 5_000 + world.cpu.uj - 70
