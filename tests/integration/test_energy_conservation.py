"""A black-box client adds up what a real server says and compares it with the simulated board's own log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import grpc
import pytest

from tests.fixtures.models import save_classifier
from tests.fixtures.present import present
from tests.fixtures.server import RunningServer, running_server
from tests.fixtures.simulated_board import PROGRAM, SimulatedBoards, value_read_uj
from wattserve_client import Client
from wattserve_client.results import EnergyState, Receipt
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_proto.v1 import inference_pb2_grpc as pb_grpc


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> SimulatedBoards:
    made = SimulatedBoards(tmp_path_factory.mktemp("board"))
    made.control.jitter_ns = 5_000_000
    made.first.ramp_s = 0.02
    return made


@pytest.fixture(scope="module")
def server(boards: SimulatedBoards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    with running_server(
        *("--model", str(model), "--device", "cpu", "--threads", "1", "--meter", "nvml"),
        program=PROGRAM,
        extra=boards.environment(),
    ) as running:
        yield running


@dataclass
class Caller:
    """A client that keeps every receipt id it was ever given."""

    client: Client
    ids: list[str] = field(default_factory=list)

    def ask(self, variants: Sequence[str], requests: int) -> None:
        """Requests of many lengths, some of several sequences, as fast as the server takes them."""
        for variant in variants:
            sequences = [[2, *([4] * (7 * index % 50)), 3] for index in range(requests)]
            inputs = [sequences[index : index + 1 + index % 3] for index in range(requests)]
            outcomes = self.client.predict_many(inputs, variant=variant)
            self.ids += [outcome.result().receipt.receipt_id for outcome in outcomes]

    def final_receipts(self) -> list[Receipt]:
        return list(self.client.watch_receipts(self.ids))


@pytest.fixture(scope="module")
def caller(server: RunningServer) -> Iterator[Caller]:
    with Client(server.address) as client:
        yield Caller(client)


def energy_report(server: RunningServer) -> pb.EnergyReport:
    """Once nothing is in flight."""
    with grpc.insecure_channel(server.address) as channel:
        report = pb_grpc.InferenceStub(channel).GetEnergyReport(pb.GetEnergyReportRequest(), timeout=60)
    assert report.pending_receipts == 0
    return report


def check_against_the_log(receipts: list[Receipt], report: pb.EnergyReport, boards: SimulatedBoards) -> None:
    told = [receipt for receipt in receipts if receipt.state is not EnergyState.UNKNOWN]
    charged_uj = sum(present(receipt.energy_uj) for receipt in told)
    accounts = (report.warmup_uj, report.idle_uj, report.unattributed_uj, report.gap_uj, report.pending_uj)
    reads = boards.reads()
    logged_uj = value_read_uj(reads, report.until_unix_ns) - value_read_uj(reads, report.since_unix_ns)
    assert report.measured_uj == logged_uj
    assert charged_uj + sum(accounts) == logged_uj
    # The reads are the log of what was given away; what was published is the counter's own history.
    assert {read.counter_mj for read in reads} <= {0, *(each.counter_mj for each in boards.published())}


def test_receipts_and_accounts_add_up_to_the_boards_own_log_to_the_microjoule(
    server: RunningServer, caller: Caller, boards: SimulatedBoards
) -> None:
    variants = [variant.name for variant in caller.client.server_info().variants]
    assert len(variants) >= 2
    for requests in (20, 1, 40, 3, 60):
        caller.ask(variants, requests)
    receipts = caller.final_receipts()
    assert len(receipts) == 124 * len(variants)
    assert {receipt.variant for receipt in receipts} == set(variants)
    assert {receipt.state for receipt in receipts} == {EnergyState.SETTLED}
    assert sum(present(receipt.energy_uj) for receipt in receipts) > 0
    report = energy_report(server)
    assert (report.gap_count, report.gap_uj, report.unknown_sequences) == (0, 0, 0)
    check_against_the_log(receipts, report, boards)


def test_they_still_add_up_after_a_gap_whose_requests_have_no_figure(
    server: RunningServer, caller: Caller, boards: SimulatedBoards
) -> None:
    variants = [variant.name for variant in caller.client.server_info().variants]
    boards.first.fall_off_the_bus()
    caller.ask(variants, 10)
    lost = caller.final_receipts()  # which waits for the end of the server's patience with the board
    boards.first.come_back()
    while any(gap.end_unix_ns == 0 for gap in energy_report(server).recent_gaps):
        time.sleep(0.05)
    caller.ask(variants, 10)
    receipts = caller.final_receipts()
    assert receipts[: len(lost)] == lost
    assert {receipt.state for receipt in lost[-10 * len(variants) :]} == {EnergyState.UNKNOWN}
    assert {receipt.state for receipt in receipts[len(lost) :]} == {EnergyState.SETTLED}
    report = energy_report(server)
    assert report.gap_count == 1
    assert report.gap_uj > 0
    check_against_the_log(receipts, report, boards)
