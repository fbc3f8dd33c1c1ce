"""The energies of the fake server for users' own tests: receipts, watches and the ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wattserve_client import (
    Client,
    DeadlineExceeded,
    EnergyQuality,
    EnergyState,
    InvalidRequest,
    NotFound,
)
from wattserve_client.testing import DEFAULT_ENERGY_JOULES, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(variants=("fp32", "bf16")) as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, retry=False) as made:
        yield made


def test_the_first_answer_is_provisional_and_the_receipt_settles_after_it(
    server: FakeServer, client: Client
) -> None:
    server.answer(
        "a film",
        label="positive",
        provisional_joules=0.03,
        energy_joules=0.04,
        interval_joules=(0.035, 0.05),
    )
    first = client.predict("a film").receipt
    assert (first.state, first.energy_uj, first.energy_low_uj) == (EnergyState.PROVISIONAL, 30_000, None)
    later = client.receipt(first.receipt_id)
    assert (later.state, later.energy_uj, later.provisional_energy_uj) == (
        EnergyState.SETTLED,
        40_000,
        30_000,
    )
    assert (later.energy_low_uj, later.energy_high_uj) == (35_000, 50_000)


def test_receipts_are_found_by_request_ids_as_on_the_real_server(server: FakeServer, client: Client) -> None:
    server.otherwise(label="positive")
    told = [client.predict("a film", request_id="mine").receipt.receipt_id for _ in range(2)]
    client.predict("a film")
    found = client.find_receipts("mine", wait_until_settled=True)
    assert [receipt.receipt_id for receipt in found.receipts] == told[::-1]
    assert {receipt.state for receipt in found.receipts} == {EnergyState.SETTLED}
    assert not found.older_left_out
    for _ in range(99):
        client.predict("a film", request_id="mine")
    found = client.find_receipts("mine")
    assert (len(found.receipts), found.older_left_out) == (100, True)
    assert found.receipts[-1].receipt_id == told[1]
    with pytest.raises(NotFound, match="no receipt of a request 'theirs'"):
        client.find_receipts("theirs")
    for wrong in ("", "x" * 257):
        with pytest.raises(InvalidRequest) as caught:
            client.find_receipts(wrong)
        assert caught.value.field == "request_id"


def test_an_unknown_energy_has_a_reason_and_no_figure(server: FakeServer, client: Client) -> None:
    server.answer("a film", label="positive", energy_joules=None, unknown_reason="the meter died")
    told = client.predict("a film", wait_for_settled_energy=True).receipt
    assert (told.state, told.energy_uj, told.unknown_reason) == (EnergyState.UNKNOWN, None, "the meter died")
    assert told.lines[0].energy_uj is None


def test_every_figure_says_that_a_fake_made_it(server: FakeServer, client: Client) -> None:
    server.otherwise(label="positive")
    for source in (
        client.predict("a film").receipt.source,
        client.energy_report().source,
        client.server_info().meter.source,
    ):
        assert source.quality is EnergyQuality.SIMULATED
        assert "a fake server for tests" in source.note


def test_a_receipt_that_waits_is_final_when_the_test_says_so() -> None:
    with FakeServer(settles=False) as server, Client(server.target) as client:
        server.otherwise(label="positive")
        told = client.predict("a film").receipt
        assert client.receipt(told.receipt_id).state is EnergyState.PROVISIONAL
        with pytest.raises(DeadlineExceeded):
            client.receipt(told.receipt_id, wait_until_settled=True, timeout_s=0.1)
        server.settle()
        assert client.receipt(told.receipt_id, wait_until_settled=True).settled


def test_a_watch_of_receipts_ends_with_the_last_of_them(server: FakeServer, client: Client) -> None:
    server.otherwise(label="positive")
    ids = [client.predict("a film").receipt.receipt_id for _ in range(3)]
    assert [each.receipt_id for each in client.watch_receipts(ids[1:])] == ids[1:]


def test_a_watch_of_all_receipts_tells_those_that_settle_from_now_on(
    server: FakeServer, client: Client
) -> None:
    server.otherwise(label="positive")
    client.predict("before")
    watch = client.watch_receipts()
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.append(next(watch).request_id))
    reader.start()
    while not told:  # each is a new receipt; which of them is the first to be seen is the watch's affair
        client.predict("a film", request_id="after")
        reader.join(timeout=0.05)
    watch.close()
    assert told == ["after"]


def test_the_ledger_adds_up_to_the_scripted_energies(client: Client, server: FakeServer) -> None:
    server.answer("a film", label="positive", energy_joules=0.04)
    server.answer("a film", variant="bf16", label="positive", energy_joules=0.02)
    server.answer("dark", label="negative", energy_joules=None, unknown_reason="no meter")
    client.predict(["a film", "a film"])
    client.predict(["a film", "dark"], variant="bf16")
    report = client.energy_report()
    assert [(each.variant, each.active_uj, each.sequences) for each in report.active] == [
        ("fp32", 80_000, 2),
        ("bf16", 20_000, 1),
    ]
    assert (report.measured_uj, report.pending_uj, report.idle_uj) == (100_000, 0, 0)
    assert report.unknown_sequences == 1


def test_what_is_not_settled_is_pending_in_the_ledger() -> None:
    with FakeServer(settles=False) as server, Client(server.target) as client:
        server.otherwise(label="positive")
        client.predict("a film")
        report = client.energy_report()
        assert (report.measured_uj, report.pending_uj, report.active_uj) == (50_000, 50_000, 0)
        server.settle()
        report = client.energy_report()
        assert (report.measured_uj, report.pending_uj, report.active_uj) == (50_000, 0, 50_000)
        assert DEFAULT_ENERGY_JOULES == 0.05
