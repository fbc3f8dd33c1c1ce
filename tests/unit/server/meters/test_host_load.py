"""What others do on the host, from a /proc/stat that the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.meter_fakes import Clock, PowercapTree
from wattserve_server.meters.host_load import OthersOnHost
from wattserve_server.meters.rapl import RaplMeter

TICKS = 100  # in a second, on every Linux that there is


class Host:
    def __init__(self, folder: Path) -> None:
        self.stat, self.clock, self.own_s = folder / "stat", Clock(), 3.0
        self.fields = dict.fromkeys(
            ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"), 700
        )
        self.write()
        self.others = OthersOnHost(self.stat, own_s=lambda: self.own_s, clock_ns=self.clock)

    def write(self, **more_s: float) -> None:
        for name, seconds in more_s.items():
            self.fields[name] += round(seconds * TICKS)
        line = " ".join(str(ticks) for ticks in self.fields.values())
        self.stat.write_text(f"cpu  {line} 500 0\ncpu0 {line} 500 0\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_the_server_did_not_use_others_did(host: Host) -> None:
    host.clock.advance_s(2.0)
    host.own_s += 1.5
    host.write(user=2.0, nice=0.5, system=0.5, irq=0.25, softirq=0.25, idle=4.0, iowait=1.0, steal=2.0)
    assert host.others.at_work() == pytest.approx(1.0)


def test_the_mean_is_of_the_time_since_the_last_question(host: Host) -> None:
    for seconds, expected in ((1.0, 1.0), (0.0, 0.0), (0.5, 0.5)):
        host.clock.advance_s(1.0)
        host.write(user=seconds)
        assert host.others.at_work() == pytest.approx(expected)


def test_rounding_makes_nobody_work_less_than_not_at_all(host: Host) -> None:
    host.clock.advance_s(1.0)
    host.own_s += 0.999
    host.write(user=0.99)
    assert host.others.at_work() == 0.0


def test_no_time_says_nothing(host: Host) -> None:
    assert host.others.at_work() is None


@pytest.mark.parametrize("text", [None, "", "cpu", "cpu  1 2 3", "cpu  one two three four five six seven"])
def test_a_file_that_cannot_be_read_says_nothing_until_two_readings_later(
    host: Host, text: str | None
) -> None:
    host.stat.unlink()
    if text is not None:
        host.stat.write_text(text)
    host.clock.advance_s(1.0)
    assert host.others.at_work() is None
    host.write()
    host.clock.advance_s(1.0)
    assert host.others.at_work() is None
    host.clock.advance_s(1.0)
    assert host.others.at_work() == 0.0


def test_this_hosts_own_file_is_read() -> None:
    clock = Clock()
    others = OthersOnHost(own_s=lambda: 0.0, clock_ns=clock)
    clock.advance_s(1.0)
    at_work = others.at_work()
    assert at_work is not None
    assert at_work >= 0


def test_rapl_says_what_others_do_on_its_host(host: Host, tmp_path: Path) -> None:
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    meter = RaplMeter(tmp_path, others=host.others)
    host.clock.advance_s(1.0)
    host.write(user=0.5)
    assert meter.others_at_work() == 0.5
