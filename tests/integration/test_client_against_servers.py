"""What the client promises, against real servers: TLS, several servers, receipts, reasons, priority."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fixtures.both_clients import BOTH
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import InvalidRequest, NotFound, Tls, Unavailable
from wattserve_client._channel import Link
from wattserve_server.service.listen import _OPTIONS


@dataclass(frozen=True)
class Files:
    """PEM files of a client."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True)
class Fleet:
    """Two servers of one model, both with TLS."""

    servers: tuple[RunningServer, RunningServer]
    files: Files

    @property
    def targets(self) -> list[str]:
        return [each.address for each in self.servers]

    @property
    def tls(self) -> Tls:
        return Tls(ca=self.files.ca, cert=self.files.cert, key=self.files.key)


def pem(issued: trustme.LeafCert, folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    return cert, key


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    cert, key = pem(authority.issue_cert("127.0.0.1"), folder, "server")
    flags = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(ca)]
    quick = ["--variants", "fp32", "--meter", "simulated", "--calibration-seconds", "0", "--threads", "1"]
    arguments = ["--model", str(save_classifier(folder / "tiny")), *quick, *flags]
    files = Files(ca, *pem(authority.issue_cert("client"), folder, "client"))
    with running_server(*arguments) as first, running_server(*arguments) as second:
        yield Fleet((first, second), files)


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def client(request: Any, fleet: Fleet) -> Iterator[Any]:
    with request.param(fleet.targets, tls=fleet.tls) as made:
        yield made


IDS = [2, 4, 6, 3]


def run_of(receipt_id: str) -> str:
    return receipt_id.rpartition("-")[0]


def test_both_servers_answer_and_each_receipt_is_found_again(client: Any) -> None:
    runs = {member.server_info().instance_id for member in client.members}
    assert len(runs) == 2
    receipts: dict[str, str] = {}
    while set(receipts) != runs:  # the second connection stands a moment after the first
        receipt_id = client.predict(IDS).receipt.receipt_id
        receipts[run_of(receipt_id)] = receipt_id
    for receipt_id in receipts.values():
        assert client.receipt(receipt_id).receipt_id == receipt_id


def test_a_receipt_that_neither_server_has_is_not_found(client: Any) -> None:
    with pytest.raises(NotFound) as caught:
        client.receipt("000000000000-1")
    assert (caught.value.reason, caught.value.target) == ("NOT_FOUND", client.target)


def test_a_stream_goes_to_one_server_with_its_priority(client: Any) -> None:
    answers = [answer.result() for answer in client.predict_many([IDS] * 9, priority=3)]
    assert len({run_of(answer.receipt.receipt_id) for answer in answers}) == 1


def test_an_input_that_is_too_large_for_the_server_does_not_disturb_the_others(client: Any) -> None:
    answers = list(client.predict_many([IDS] * 20 + [[5] * 5_000_000] + [IDS] * 20))
    (refused,) = [answer for answer in answers if answer.error is not None]
    assert (refused.index, type(refused.error), len(answers)) == (20, InvalidRequest, 41)
    assert refused.error.message.endswith("vs. 4194304); send less in one request")


def test_the_server_says_which_field_is_wrong_in_a_call_and_in_a_stream(client: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.predict(IDS, priority=9)
    assert (caught.value.reason, caught.value.field) == ("INVALID_REQUEST", "priority")
    (answer,) = client.predict_many([IDS], priority=9)
    assert (answer.error.reason, answer.error.field) == ("INVALID_REQUEST", "priority")
    assert (answer.error.code, answer.error.message) == (caught.value.code, caught.value.message)


@pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
@pytest.mark.parametrize("tls", ["none", "without a certificate"])
def test_a_client_that_the_server_cannot_know_is_told_what_to_set(kind: Any, tls: str, fleet: Fleet) -> None:
    chosen = False if tls == "none" else Tls(ca=fleet.files.ca)
    with kind(fleet.targets[0], tls=chosen) as client, pytest.raises(Unavailable) as caught:
        client.predict(IDS)
    assert caught.value.message.startswith("the server cut the connection: if it ")


def test_the_server_allows_the_pings_of_the_client() -> None:
    """By name: gRPC passes over an option that it does not know, and ends calls by "too_many_pings"."""
    allowed, sent = dict(_OPTIONS), dict(Link("h:1", timeout_s=1, retry=True).options)
    shortest_ms = allowed["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(sent["grpc.keepalive_time_ms"]) >= 2 * shortest_ms
