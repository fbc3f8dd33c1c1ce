"""A meter in trouble under a real server: no request fails or waits for it, and no energy is made up.

The board is simulated, the binding that reads it is the real one. What the board does next, and not the
clock, says when a test goes on.
"""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grpc
import pynvml
import pytest

from tests.fixtures.meter_fakes import H200_UUID, Clock
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards, simulated_boards, value_read_uj
from tests.fixtures.windows import window
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc
from wattserve_server.energy.receipt import Charge, Window
from wattserve_server.meters.nvml import open_nvml
from wattserve_server.meters.sampler import Sampler

SETTLED, UNKNOWN = pb.ENERGY_STATE_SETTLED, pb.ENERGY_STATE_UNKNOWN
REQUEST = pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[2, *([4] * 40), 3])]))
FLAGS = ("--device", "cpu", "--threads", "1", "--variants", "fp32")
LIMIT_S = 60.0


def until(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline, f"this did not happen: {what}"
        time.sleep(0.01)


@dataclass
class Served:
    """A server on simulated boards, and what a caller can see of it."""

    running: RunningServer
    boards: SimulatedBoards
    stub: pb_grpc.InferenceStub

    def answer(self, requests: int = 3) -> list[str]:
        """Ask, be answered, and give the receipts' ids. Fails as a request does."""
        replies = [self.stub.Predict(REQUEST, timeout=LIMIT_S) for _ in range(requests)]
        assert all(reply.classifications[0].label for reply in replies)
        return [reply.receipt.receipt_id for reply in replies]

    def final(self, ids: list[str]) -> list[pb.Receipt]:
        return list(self.stub.WatchReceipts(pb.WatchReceiptsRequest(receipt_ids=ids), timeout=LIMIT_S))

    def report(self) -> pb.EnergyReport:
        """The ledger; it adds up, whatever happens."""
        said = self.stub.GetEnergyReport(pb.GetEnergyReportRequest(), timeout=LIMIT_S)
        active_uj = sum(variant.active_uj for variant in said.active)
        accounts = (said.warmup_uj, said.idle_uj, said.unattributed_uj, said.gap_uj, said.pending_uj)
        assert said.measured_uj == active_uj + sum(accounts)
        return said

    def metrics(self) -> dict[str, float]:
        text = urllib.request.urlopen(self.running.metrics_url, timeout=LIMIT_S).read().decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("wattserve_")]
        return {name.replace('{device="cpu"}', ""): float(value) for name, value in lines}

    def published(self, more: int) -> None:
        """Wait until the board has published so many times more."""
        target = self.boards.first.publications + more
        until("a publication", lambda: self.boards.first.publications >= target)

    def read(self, more: int) -> None:
        """Wait until the board has been read so many times more."""
        target = self.boards.control.entered + more
        until("a read", lambda: self.boards.control.entered >= target)

    def is_well(self) -> None:
        """The fault is over: its gap, if there is one, is closed, and receipts are settled again."""
        until("the end of the gap", lambda: all(gap.end_unix_ns for gap in self.report().recent_gaps))
        assert [receipt.state for receipt in self.final(self.answer())] == [SETTLED] * 3
        assert self.metrics()["wattserve_meter_up"] == 1

    def counted_uj(self, since: pb.EnergyReport, to: pb.EnergyReport) -> int:
        """What the board's own log says was counted between two reports."""
        reads = self.boards.reads()
        return value_read_uj(reads, to.until_unix_ns) - value_read_uj(reads, since.until_unix_ns)


@contextmanager
def served(
    boards: SimulatedBoards, model: Path, meter: str, extra: dict[str, str], fresh: bool = False
) -> Iterator[Served]:
    with (
        running_server(
            *("--model", str(model), "--meter", meter, *FLAGS),
            program=PROGRAM,
            extra=boards.environment() | extra,
            fresh=fresh,
        ) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        yield Served(running, boards, pb_grpc.InferenceStub(channel))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def one_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """On two boards, the first of which does the work and is cut into slices."""
    boards = SimulatedBoards(tmp_path_factory.mktemp("boards"))
    boards.control.board_count = 2
    boards.cut_into_slices()
    extra = {"WATTSERVE_TEST_GPU": H200_UUID.removeprefix("GPU-"), "WATTSERVE_ALLOW_MIG": "yes"}
    with served(boards, model, "nvml", extra) as made:
        boards.first.show_processes(made.running.process.pid)
        yield made


@pytest.fixture
def server(one_server: Served) -> Iterator[Served]:
    """Its faults end with the test."""
    yield one_server
    control, board = one_server.boards.control, one_server.boards.first
    control.stuck = control.read_delay_ns = board.frozen = board.lost = 0
    board.show_processes(one_server.running.process.pid)


def test_of_two_boards_the_one_that_works_is_metered_and_receipts_name_it(server: Served) -> None:
    (receipt,) = server.final(server.answer(1))
    assert receipt.source.name == f"nvml:{H200_UUID}"
    assert receipt.source.quality == pb.ENERGY_QUALITY_ESTIMATED  # of a board in slices
    assert receipt.state == SETTLED
    assert server.boards.reads(0)
    assert not server.boards.reads(1)


def test_a_board_in_slices_says_on_receipts_that_its_joules_are_the_whole_boards(server: Served) -> None:
    (receipt,) = server.final(server.answer(1))
    assert "MIG is on, and no slice has a meter of its own: this is the whole board" in receipt.source.note
    info = server.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=LIMIT_S)
    assert info.meter.boundary == (
        "GPU board (Simulated board) with all of its MIG slices, as metered by its driver; "
        "board only: the host is not metered"
    )


def test_a_gpu_that_is_lost_makes_unknown_receipts_and_a_gap_until_it_is_back(server: Served) -> None:
    board, before = server.boards.first, server.report()
    unknown = server.metrics()['wattserve_unknown_receipts_total{variant="fp32"}']
    board.fall_off_the_bus()
    receipts = server.final(server.answer())
    assert [receipt.state for receipt in receipts] == [UNKNOWN] * 3
    for receipt in receipts:
        assert "the GPU has fallen off the bus" in receipt.unknown_reason
        assert not receipt.HasField("energy_uj")
    metrics = server.metrics()
    assert metrics["wattserve_meter_up"] == 0
    assert metrics['wattserve_unknown_receipts_total{variant="fp32"}'] == unknown + 3
    gap = server.report().recent_gaps[-1]
    assert gap.end_unix_ns == 0
    assert "the GPU has fallen off the bus" in gap.reason

    board.come_back()
    server.is_well()
    after = server.report()
    assert after.gap_count == before.gap_count + 1
    assert after.unknown_sequences == before.unknown_sequences + 3
    assert after.gap_seconds > before.gap_seconds
    assert after.gap_uj > before.gap_uj  # the counter went on counting, and nobody is given that
    assert after.measured_uj - before.measured_uj == server.counted_uj(before, after)


def test_a_gpu_that_is_back_at_once_costs_no_figure(server: Served) -> None:
    board, before = server.boards.first, server.report()
    failed = server.metrics()["wattserve_meter_failed_reads_total"]
    board.fall_off_the_bus()
    ids = server.answer()
    until("three failed reads", lambda: server.metrics()["wattserve_meter_failed_reads_total"] >= failed + 3)
    board.come_back()
    assert [receipt.state for receipt in server.final(ids)] == [SETTLED] * 3
    assert server.report().gap_count == before.gap_count


def test_a_counter_that_starts_again_loses_the_energy_before_and_makes_none_up(server: Served) -> None:
    board = server.boards.first
    board.frozen = 1
    ids = server.answer()
    server.read(5)  # and what was published last is booked
    before = server.report()
    board.offset_mj -= board.counter_mj
    board.frozen = 0
    receipts = server.final(ids)
    assert [receipt.state for receipt in receipts] == [UNKNOWN] * 3
    assert all("the meter's counter stepped back by" in receipt.unknown_reason for receipt in receipts)
    server.is_well()
    after = server.report()
    assert after.gap_count == before.gap_count + 1
    assert after.gap_uj == before.gap_uj  # how much it was nobody knows: it is no figure, not a guess
    published = [each.counter_mj for each in server.boards.published()]
    restart_mj = next(later for earlier, later in pairwise(published) if later < earlier)
    until_uj = value_read_uj(server.boards.reads(), after.until_unix_ns)
    assert after.measured_uj - before.measured_uj == until_uj - restart_mj * 1000


def test_a_counter_that_stands_still_makes_unknown_receipts_and_its_late_energy_is_the_gaps(
    server: Served,
) -> None:
    board, before = server.boards.first, server.report()
    board.frozen = 1
    receipts = server.final(server.answer())
    assert [receipt.state for receipt in receipts] == [UNKNOWN] * 3
    assert {receipt.unknown_reason for receipt in receipts} == {"the meter's counter stands still"}
    board.frozen = 0
    server.is_well()
    after = server.report()
    assert after.gap_count == before.gap_count + 1
    assert after.gap_uj > before.gap_uj
    assert after.measured_uj - before.measured_uj == server.counted_uj(before, after)


def test_a_sampler_that_hangs_in_a_read_keeps_no_request_waiting_and_no_figure_is_lost(
    server: Served,
) -> None:
    control, before = server.boards.control, server.report()
    control.stuck = 1
    server.published(2)  # so that a read hangs by now
    reads = len(server.boards.reads())
    ids = server.answer()
    server.published(5)  # half a second of a counter that nobody reads
    ids += server.answer()
    assert len(server.boards.reads()) == reads
    control.stuck = 0
    receipts = server.final(ids)
    assert [receipt.state for receipt in receipts] == [SETTLED] * 6
    after = server.report()
    assert after.gap_count == before.gap_count
    assert after.measured_uj - before.measured_uj == server.counted_uj(before, after)


def test_reads_of_ten_milliseconds_cost_no_figure(server: Served) -> None:
    control, before = server.boards.control, server.report()
    control.read_delay_ns = 10_000_000
    receipts = server.final(server.answer(10))
    server.published(2)
    after = server.report()
    control.read_delay_ns = 0
    assert [receipt.state for receipt in receipts] == [SETTLED] * 10
    assert after.gap_count == before.gap_count


def test_a_server_that_was_stopped_for_half_a_second_answers_and_settles(server: Served) -> None:
    before = server.report()
    first = server.answer()
    server.running.process.send_signal(signal.SIGSTOP)
    asked = server.stub.Predict.future(REQUEST, timeout=LIMIT_S)
    time.sleep(0.5)
    assert not asked.done()
    server.running.process.send_signal(signal.SIGCONT)
    receipts = server.final([*first, asked.result().receipt.receipt_id])
    assert [receipt.state for receipt in receipts] == [SETTLED] * 4
    after = server.report()
    assert after.gap_count == before.gap_count
    assert after.measured_uj - before.measured_uj == server.counted_uj(before, after)


def test_another_process_on_the_gpu_is_a_warning_on_receipts_and_not_an_unknown(server: Served) -> None:
    board, own = server.boards.first, server.running.process.pid
    (alone,) = server.final(server.answer(1))
    assert not any("process" in warning for warning in alone.warnings)
    board.show_processes(own, own + 1)
    until("the neighbour being noticed", lambda: server.metrics().get("wattserve_meter_neighbours") == 1)

    def is_warned() -> bool:
        board.show_samples((own + 1, time.monotonic_ns() // 1000, 60))
        (receipt,) = server.final(server.answer(1))
        assert receipt.state == SETTLED
        return any("process" in warning for warning in receipt.warnings)

    until("the neighbour's work being told", is_warned)
    board.show_samples()
    board.show_processes(own)
    until("the neighbour having left", lambda: server.metrics().get("wattserve_meter_neighbours") == 0)


def test_a_machine_without_nvml_serves_and_every_receipt_says_why_it_has_no_figure(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # not a library, found before any other
    boards = SimulatedBoards(tmp_path)
    nowhere = {"WATTSERVE_TEST_NVML": "", "LD_LIBRARY_PATH": str(tmp_path)}
    with served(boards, model, "auto", nowhere, fresh=True) as server:
        receipts = server.final(server.answer())
        assert [receipt.state for receipt in receipts] == [UNKNOWN] * 3
        for receipt in receipts:
            assert "libnvidia-ml.so.1 is not on this machine" in receipt.unknown_reason
            assert not receipt.HasField("energy_uj")
        assert "libnvidia-ml.so.1 is not on this machine" in server.report().unknown_reason
        assert server.metrics()["wattserve_meter_up"] == 0
        assert server.running.terminate() == 0  # a real process, to its end


# Boards without a counter: the sampler, ticked by hand over a board that says what the test writes


@dataclass
class Bench:
    """A sampler over the real binding; 50 W idle, on a clock that the test moves."""

    boards: SimulatedBoards
    clock: Clock
    sampler: Sampler
    windows: list[Window]
    charges: list[Charge]

    def tick_for(self, seconds: float, watts: float) -> None:
        self.boards.first.instant_mw = self.boards.first.average_mw = round(watts * 1000)
        for _ in range(round(seconds / self.sampler.poll_period_s)):
            self.clock.advance_s(self.sampler.poll_period_s)
            self.sampler.tick()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with simulated_boards(tmp_path) as boards:
        boards.first.counter_return = pynvml.NVML_ERROR_NOT_SUPPORTED
        boards.first.instant_mw, clock = 50_000, Clock(0)
        windows: list[Window] = []
        charges: list[Charge] = []

        def drain() -> tuple[list[Window], int]:
            given = list(windows)
            windows.clear()
            return given, clock()

        sampler = Sampler(open_nvml(clock_ns=clock), drain, charges.extend, clock_ns=clock)
        yield Bench(boards, clock, sampler, windows, charges)
        sampler.stop()


def test_power_that_nobody_sampled_for_half_a_second_is_a_gap_and_an_unknown(bench: Bench) -> None:
    bench.tick_for(3.0, watts=50)
    settled_uj = bench.sampler.ledger.measured_uj
    assert settled_uj == pytest.approx(150e6, rel=0.01)
    start_ms = bench.clock() / 1e6
    bench.clock.advance_s(0.5)
    bench.windows.append(window(start_ms + 100, start_ms + 200))
    bench.tick_for(0.1, watts=250)
    ledger = bench.sampler.ledger
    assert [(charge.energy_uj, bool(charge.reason)) for charge in bench.charges] == [(None, True)]
    assert ledger.gap_count == 1
    assert ledger.gap_ns >= 500_000_000
    assert ledger.measured_uj - settled_uj == 20_000_000  # 250 W over the 80 ms since it is read again
    assert ledger.residual_uj() == 0


def test_a_short_loss_of_the_gpu_is_bridged_and_a_long_one_is_a_gap(bench: Bench) -> None:
    board = bench.boards.first
    bench.tick_for(3.0, watts=50)
    for seconds, gaps in ((0.2, 0), (0.3, 1), (3.0, 2)):
        board.fall_off_the_bus()
        bench.tick_for(seconds, watts=50)
        board.come_back()
        bench.tick_for(1.0, watts=50)
        assert bench.sampler.ledger.gap_count == gaps
        assert bench.sampler.ledger.residual_uj() == 0
    assert bench.sampler.status.last_error == ""
