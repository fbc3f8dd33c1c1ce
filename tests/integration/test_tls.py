"""A real server with certificates, and clients that trust it or do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import ConfigError
from wattserve_server.service.certificates import CertificateFiles


@dataclass
class Files:
    """PEM files. stranger: the authority of nobody here."""

    ca: trustme.CA
    folder: Path

    def server(self) -> tuple[str, str]:
        return self._pair("server", self.ca.issue_cert("localhost", "127.0.0.1"))

    def client(self, ca: trustme.CA) -> tuple[bytes, bytes]:
        cert, key = self._pair("client", ca.issue_cert("app@example.org"))
        return Path(cert).read_bytes(), Path(key).read_bytes()

    def authority(self) -> str:
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return str(path)

    def _pair(self, name: str, issued: trustme.LeafCert) -> tuple[str, str]:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(trustme.CA(), tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It asks its clients for certificates."""
    model = save_classifier(tmp_path_factory.mktemp("models") / "tiny")
    cert, key = files.server()
    flags = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", files.authority()]
    quick = ["--variants", "fp32", "--meter", "simulated", "--calibration-seconds", "0", "--threads", "1"]
    with running_server("--model", str(model), *quick, *flags) as running:
        yield running


def model_name(server: RunningServer, credentials: grpc.ChannelCredentials | None) -> str:
    address = f"localhost:{server.address.rpartition(':')[2]}"
    channel = (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    )
    with channel:
        ask = channel.unary_unary(
            "/wattserve.v1.Inference/GetServerInfo",
            request_serializer=pb.GetServerInfoRequest.SerializeToString,
            response_deserializer=pb.ServerInfo.FromString,
        )
        info: pb.ServerInfo = ask(pb.GetServerInfoRequest(), timeout=60)
        return info.model_name


def test_a_client_with_a_certificate_of_the_authority_is_served(server: RunningServer, files: Files) -> None:
    cert, key = files.client(files.ca)
    credentials = grpc.ssl_channel_credentials(files.ca.cert_pem.bytes(), key, cert)
    assert model_name(server, credentials) == "tiny"


@pytest.mark.parametrize("whose", ["nobody's", "a stranger's", "plaintext"])
def test_others_are_not(server: RunningServer, files: Files, whose: str) -> None:
    trusted = files.ca.cert_pem.bytes()
    if whose == "plaintext":
        credentials = None
    elif whose == "nobody's":
        credentials = grpc.ssl_channel_credentials(trusted)
    else:
        cert, key = files.client(trustme.CA())
        credentials = grpc.ssl_channel_credentials(trusted, key, cert)
    with pytest.raises(grpc.RpcError) as caught:
        model_name(server, credentials)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_key_that_is_not_the_certificates_stops_the_start(files: Files, tmp_path: Path) -> None:
    cert, _ = files.server()
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(str(other))
    with pytest.raises(ConfigError, match="not a certificate with its key"):
        CertificateFiles(cert, str(other)).credentials()


def test_an_authority_that_is_none_stops_the_start(files: Files, tmp_path: Path) -> None:
    cert, key = files.server()
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"--tls-client-ca .*: not a certificate in PEM"):
        CertificateFiles(cert, key, str(nonsense)).credentials()
