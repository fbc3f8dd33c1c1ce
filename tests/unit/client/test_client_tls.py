"""TLS against a real gRPC server with certificates of its own authority, asked of both clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.fixtures.both_clients import BOTH
from tests.fixtures.fake_server.scripted import ScriptedServer
from wattserve_client import AsyncClient, Client, Tls, Unavailable
from wattserve_client._servers import explained


@dataclass(frozen=True)
class Files:
    """PEM files of one authority, and its certificate for clients."""

    ca: Path
    cert: Path
    key: Path


def files(authority: trustme.CA, folder: Path) -> Files:
    made = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    folder.mkdir()
    client = authority.issue_cert("client")
    authority.cert_pem.write_to_path(str(made.ca))
    made.cert.write_bytes(b"".join(pem.bytes() for pem in client.cert_chain_pems))
    client.private_key_pem.write_to_path(str(made.key))
    return made


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ours(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Files:
    return files(authority, tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return files(trustme.CA(), tmp_path_factory.mktemp("tls") / "others")


def credentials(authority: trustme.CA, *names: str, asks_clients: bool = False) -> grpc.ServerCredentials:
    cert = authority.issue_cert(*names)
    chain = b"".join(pem.bytes() for pem in cert.cert_chain_pems)
    client_ca = authority.cert_pem.bytes() if asks_clients else None
    return grpc.ssl_server_credentials([(cert.private_key_pem.bytes(), chain)], client_ca, asks_clients)


@pytest.fixture(scope="module")
def server(authority: trustme.CA) -> Iterator[ScriptedServer]:
    with ScriptedServer(credentials(authority, "127.0.0.1")) as made:
        yield made


@pytest.fixture(scope="module")
def mutual(authority: trustme.CA) -> Iterator[ScriptedServer]:
    with ScriptedServer(credentials(authority, "127.0.0.1", asks_clients=True)) as made:
        yield made


both = pytest.mark.parametrize("kind", BOTH, ids=["sync", "async"])
pytestmark = pytest.mark.usefixtures("short_pauses")


def refusal(kind: Any, target: Any, tls: bool | Tls) -> str:
    with kind(target, tls=tls) as client, pytest.raises(Unavailable) as caught:
        client.predict("a film")
    return str(caught.value)


@both
def test_a_server_whose_certificate_is_trusted_answers(kind: Any, server: Any, ours: Files) -> None:
    with kind(server.target, tls=Tls(ca=ours.ca)) as client:
        assert client.predict("a film").label == "positive"
        assert [answer.index for answer in client.predict_many(["a film"])] == [0]


@both
def test_a_certificate_of_another_authority_is_not_trusted(kind: Any, server: Any, others: Files) -> None:
    words = "the TLS handshake failed: the server's certificate is not trusted; see Tls.ca"
    assert refusal(kind, server.target, Tls(ca=others.ca)).startswith(words)


@both
def test_without_a_ca_the_public_authorities_are_trusted_and_no_other(kind: Any, server: Any) -> None:
    assert "the server's certificate is not trusted" in refusal(kind, server.target, True)


@both
def test_a_certificate_must_show_the_name_that_was_called_or_the_one_that_was_set(
    kind: Any, authority: trustme.CA, ours: Files
) -> None:
    with ScriptedServer(credentials(authority, "gpu-1.example")) as server:
        words = "the server's certificate shows another name than was called; see Tls.server_name"
        assert words in refusal(kind, server.target, Tls(ca=ours.ca))
        with kind(server.target, tls=Tls(ca=ours.ca, server_name="gpu-1.example")) as client:
            assert client.predict("a film").label == "positive"


@both
def test_a_server_that_asks_for_a_clients_certificate_gets_it(kind: Any, mutual: Any, ours: Files) -> None:
    with kind(mutual.target, tls=Tls(ca=ours.ca, cert=ours.cert, key=ours.key)) as client:
        assert client.predict("a film").label == "positive"


@both
def test_a_client_without_the_certificate_that_it_is_asked_for_is_told_so(
    kind: Any, mutual: Any, ours: Files
) -> None:
    said = refusal(kind, mutual.target, Tls(ca=ours.ca))
    assert said.startswith(
        "the server cut the connection: if it asks for a client's certificate, set Tls.cert"
    )


@both
def test_a_clients_certificate_that_the_server_does_not_trust_is_refused(
    kind: Any, mutual: Any, ours: Files, others: Files
) -> None:
    said = refusal(kind, mutual.target, Tls(ca=ours.ca, cert=others.cert, key=others.key))
    assert said.startswith("the server cut the connection: it may not trust Tls.cert")


@both
def test_a_plain_client_of_a_server_with_tls_is_told_of_tls(kind: Any, server: Any) -> None:
    assert refusal(kind, server.target, False).startswith(
        "the server cut the connection: if it uses TLS, pass tls="
    )


@both
def test_a_client_with_tls_of_a_plain_server_is_told_so(kind: Any, ours: Files) -> None:
    with ScriptedServer() as plain:
        said = refusal(kind, plain.target, Tls(ca=ours.ca))
    assert said.startswith("the TLS handshake failed: the server seems to use no TLS")


@both
def test_a_server_that_is_not_there_is_no_matter_of_tls(kind: Any, ours: Files) -> None:
    with ScriptedServer() as gone:
        target = gone.target
    assert "TLS" not in refusal(kind, target, Tls(ca=ours.ca))
    assert "TLS" not in refusal(kind, target, False)


@both
def test_several_servers_of_one_host_with_tls_show_its_name(
    kind: Any, server: Any, authority: trustme.CA, ours: Files
) -> None:
    tls = Tls(ca=ours.ca)
    with (
        ScriptedServer(credentials(authority, "127.0.0.1")) as second,
        kind([server.target, second.target], tls=tls) as client,
    ):
        while not second.asked("Predict").is_set():
            client.predict("a film")
        for member in client.members:
            member.server_info()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("wrong", ["ca", "cert", "key"])
def test_a_file_that_cannot_be_read_is_named_before_anything_is_sent(
    kind: Any, wrong: str, ours: Files, tmp_path: Path
) -> None:
    paths = {"ca": ours.ca, "cert": ours.cert, "key": ours.key, wrong: tmp_path / "absent.pem"}
    with pytest.raises(OSError, match=r"absent\.pem"):
        kind(tls=Tls(paths["ca"], paths["cert"], paths["key"]))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("wrong", ["ca", "cert", "key"])
def test_a_file_that_holds_something_else_is_named_before_anything_is_sent(
    kind: Any, wrong: str, ours: Files, tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    paths = {"ca": ours.ca, "cert": ours.cert, "key": ours.key, wrong: garbage}
    with pytest.raises(ValueError, match=rf"Tls\.{wrong} .*garbage\.pem"):
        kind(tls=Tls(paths["ca"], paths["cert"], paths["key"]))


def test_a_key_that_does_not_fit_its_certificate_is_refused(ours: Files, others: Files) -> None:
    with pytest.raises(ValueError, match="not a certificate with its key"):
        Client(tls=Tls(cert=ours.cert, key=others.key))


def test_a_certificate_needs_its_key_and_a_key_its_certificate(ours: Files) -> None:
    with pytest.raises(ValueError, match=r"Tls\.cert without Tls\.key"):
        Tls(cert=ours.cert)
    with pytest.raises(ValueError, match=r"Tls\.key without Tls\.cert"):
        Tls(key=ours.key)


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"ca": b"PEM"}, r"Tls\.ca is b'PEM'"), ({"server_name": None}, r"Tls\.server_name is None")],
)
def test_tls_is_not_made_of_things_of_the_wrong_kind(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Tls(**given)


def test_paths_may_be_text(ours: Files) -> None:
    assert Tls(ca=str(ours.ca)).read() == (ours.ca.read_bytes(), None, None)


@pytest.mark.parametrize("tls", [None, Tls()])
@pytest.mark.parametrize(
    "message",
    [
        "draining",
        "failed to connect to all addresses; last error: ... Connection refused",
        "Socket closed",  # of a connection that stood
    ],
)
def test_what_has_to_do_with_no_handshake_stays_as_it_is(message: str, tls: Tls | None) -> None:
    assert explained(message, tls) == message


def test_a_handshake_that_failed_for_a_reason_unheard_of_is_called_one() -> None:
    assert explained("Tls handshake failed: X", Tls()) == "the TLS handshake failed (Tls handshake failed: X)"
