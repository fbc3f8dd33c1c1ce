"""RAPL over powercap trees: which domains count, how they wrap, what is said when they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.meter_fakes import Clock, PowercapTree, as_ordinary_user
from wattserve_server.energy.reading import Energy, Quality
from wattserve_server.errors import MeterError
from wattserve_server.meters.rapl import RaplMeter, _Domain


@pytest.fixture
def tree(tmp_path: Path) -> PowercapTree:
    return PowercapTree(tmp_path / "powercap")


def laptop(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    tree.add("intel-rapl:0/intel-rapl:0:0", "core")
    tree.add("intel-rapl:0/intel-rapl:0:1", "uncore")
    tree.add("intel-rapl:0/intel-rapl:0:2", "dram")
    (tree.root / "intel-rapl:0:2").symlink_to("intel-rapl:0/intel-rapl:0:2")
    tree.add("intel-rapl:1", "psys")
    tree.add("intel-rapl-mmio:0", "package-0")


def test_what_is_inside_or_around_a_package_is_not_counted_twice(tree: PowercapTree) -> None:
    laptop(tree)
    meter = RaplMeter(tree.root, clock_ns=Clock())
    tree.set("intel-rapl:0", 1_000)
    tree.set("intel-rapl:0/intel-rapl:0:0", 20_000)
    tree.set("intel-rapl:0/intel-rapl:0:1", 300_000)
    tree.set("intel-rapl:0/intel-rapl:0:2", 4_000_000)
    tree.set("intel-rapl:1", 50_000_000)
    tree.set("intel-rapl-mmio:0", 600_000_000)
    assert meter.read().energy == Energy(4_001_000)


def test_packages_and_their_dram_are_summed(tree: PowercapTree) -> None:
    for package in (0, 1):
        tree.add(f"intel-rapl:{package}", f"package-{package}")
        tree.add(f"intel-rapl:{package}/intel-rapl:{package}:0", "dram")
    meter = RaplMeter(tree.root, clock_ns=Clock())
    tree.set("intel-rapl:0", 1)
    tree.set("intel-rapl:0/intel-rapl:0:0", 20)
    tree.set("intel-rapl:1", 300)
    tree.set("intel-rapl:1/intel-rapl:1:0", 4_000)
    assert meter.read().energy == Energy(4_321)


def test_the_source_names_the_domains(tree: PowercapTree) -> None:
    laptop(tree)
    source = RaplMeter(tree.root).source
    assert source.name == "rapl"
    assert source.method == "apportioned counter"
    assert source.quality is Quality.MEASURED
    assert source.boundary == "CPU packages of this host (package-0, package-0 dram)"


def test_a_package_without_a_dram_counter_says_that_dram_is_missing(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0-die-0")
    assert RaplMeter(tree.root).source.boundary == (
        "CPU packages of this host (package-0-die-0), without DRAM"
    )


def test_the_zones_are_found_below_a_mounted_device_tree(tree: PowercapTree) -> None:
    tree.add("intel-rapl/intel-rapl:0", "package-0", energy_uj=5)
    meter = RaplMeter(tree.root, clock_ns=Clock())
    tree.set("intel-rapl/intel-rapl:0", 12)
    assert meter.read().energy == Energy(7)


def test_what_the_counter_held_before_the_meter_opened_does_not_count(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0", energy_uj=99_000_000)
    assert RaplMeter(tree.root, clock_ns=Clock()).read().energy == Energy(0)


def test_one_domain_that_wraps_around_does_not_disturb_the_sum(tree: PowercapTree) -> None:
    clock = Clock()
    tree.add("intel-rapl:0", "package-0", energy_uj=262_143_000_000, range_uj=262_143_328_850)
    tree.add("intel-rapl:0/intel-rapl:0:0", "dram", energy_uj=1_000_000, range_uj=65_712_999_613)
    meter = RaplMeter(tree.root, clock_ns=clock)
    clock.advance_s(0.1)
    tree.set("intel-rapl:0", 500_000)
    tree.set("intel-rapl:0/intel-rapl:0:0", 1_250_000)
    assert meter.read().energy == Energy(328_850 + 500_000 + 250_000)
    assert meter.wraps_at is None


def test_a_counter_that_was_reset_starts_the_sum_again_instead_of_counting_as_a_wrap(
    tree: PowercapTree,
) -> None:
    clock = Clock()
    tree.add("intel-rapl:0", "package-0", energy_uj=1_000_000)
    meter = RaplMeter(tree.root, clock_ns=clock)
    clock.advance_s(0.1)
    tree.set("intel-rapl:0", 3_000_000)
    assert meter.read().energy == Energy(2_000_000)
    clock.advance_s(0.1)
    tree.set("intel-rapl:0", 400)
    assert meter.read().energy == Energy(0)
    clock.advance_s(0.1)
    tree.set("intel-rapl:0", 900)
    assert meter.read().energy == Energy(500)


def test_a_reading_that_fails_half_way_counts_nothing_twice(tree: PowercapTree) -> None:
    clock = Clock()
    tree.add("intel-rapl:0", "package-0")
    tree.add("intel-rapl:1", "package-1")
    meter = RaplMeter(tree.root, clock_ns=clock)
    tree.set("intel-rapl:0", 10)
    (tree.root / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(MeterError):
        meter.read()
    tree.set("intel-rapl:0", 12)
    tree.set("intel-rapl:1", 30)
    assert meter.read().energy == Energy(42)


def test_a_reading_is_dated_to_the_middle_of_the_reads(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "package-0")
    instants = iter([0, 1_000, 3_400])
    meter = RaplMeter(tree.root, clock_ns=lambda: next(instants))
    assert meter.read().at_ns == 2_200


def test_a_counter_that_only_root_may_read_says_how_to_open_it() -> None:
    with as_ordinary_user() as folder:
        tree = PowercapTree(folder / "tree")
        counter = tree.add("intel-rapl:0", "package-0") / "energy_uj"
        counter.chmod(0)
        with pytest.raises(MeterError) as caught:
            RaplMeter(tree.root)
    assert str(caught.value) == (
        f"RAPL: {counter} may be read by root only (so Linux has it since 5.10): run as root "
        "or with CAP_DAC_READ_SEARCH, or on the host "
        "`sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj` "
        "(lasts until the next boot; a udev rule makes it last)"
    )
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_machine_without_rapl_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MeterError) as caught:
        RaplMeter(tmp_path / "none")
    assert str(caught.value) == (
        f"RAPL: {tmp_path / 'none'} has no intel-rapl zones: virtual machines usually have none; "
        "on real hardware load the kernel module (sudo modprobe intel_rapl_msr)"
    )


def test_a_zone_that_a_container_hides_is_told_apart_from_no_zone(tree: PowercapTree) -> None:
    tree.root.mkdir()
    (tree.root / "intel-rapl:0").symlink_to(tree.root / "masked")
    with pytest.raises(MeterError, match="containers hide it"):
        RaplMeter(tree.root)


def test_zones_without_a_package_are_refused(tree: PowercapTree) -> None:
    tree.add("intel-rapl:0", "psys")
    with pytest.raises(MeterError, match=r"none of the 1 intel-rapl zones in .* is a CPU package"):
        RaplMeter(tree.root)


@pytest.mark.parametrize("text", ["", "-5", "12.5", "<not counted>"])
def test_a_file_that_holds_no_microjoules_is_an_error_and_not_a_number(tree: PowercapTree, text: str) -> None:
    counter = tree.add("intel-rapl:0", "package-0") / "energy_uj"
    counter.write_text(text)
    with pytest.raises(MeterError, match="instead of microjoules"):
        RaplMeter(tree.root)


def test_a_counter_that_the_kernel_fails_to_read_is_an_error(tree: PowercapTree) -> None:
    counter = tree.add("intel-rapl:0", "package-0") / "energy_uj"
    counter.unlink()
    counter.mkdir()
    with pytest.raises(MeterError, match="energy_uj cannot be read: Is a directory"):
        RaplMeter(tree.root)


@settings(max_examples=100, deadline=None)
@given(
    start_uj=st.integers(0, 999_999),
    gains_uj=st.lists(st.integers(0, 999_999), max_size=30),
)
def test_what_a_domain_gained_is_followed_through_any_number_of_wraps(
    start_uj: int, gains_uj: list[int]
) -> None:
    range_uj = 1_000_000
    domain = _Domain("package-0", Path("unread"), range_uj, start_uj)
    counted_uj = 0
    true_uj = start_uj
    for gain_uj in gains_uj:
        true_uj += gain_uj
        counted_uj += domain.advance(true_uj % range_uj, elapsed_ns=1_000_000_000) or 0
    assert counted_uj == sum(gains_uj)
