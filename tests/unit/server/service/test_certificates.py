"""Certificates: which are taken at the start, and those that are rotated while the server runs."""

from __future__ import annotations

import datetime
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from wattserve_server.errors import ConfigError
from wattserve_server.service.certificates import CertificateFiles


class Rotated:
    """The files of a server that asks for certificates of an authority, and whoever connects to it."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.client_ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        issued = self.authority.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(str(self.cert))
        issued.private_key_pem.write_to_path(str(self.key))
        self.take(self.authority)
        self.files = CertificateFiles(str(self.cert), str(self.key), str(self.client_ca))

    def take(self, authority: trustme.CA) -> None:
        """From now on only its clients."""
        self.client_ca.write_bytes(authority.cert_pem.bytes())

    def client(self, authority: trustme.CA, version: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        context.maximum_version = version
        authority.issue_cert("app@example.org").configure_cert(context)
        return context


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """A handshake, and what the client may go on with. Raises ssl.SSLError where the server refuses it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    asked = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, asked) * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    asked.write(b"hello")
    assert asking.read() == b"hello"
    return asking.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_ends_with_its_authority(tmp_path: Path, version: ssl.TLSVersion) -> None:
    rotated, other = Rotated(tmp_path), trustme.CA()
    server, client = rotated.files.context(), rotated.client(rotated.authority, version)
    session = shake(server, client)
    assert session is not None
    shake(server, client, session)
    rotated.take(other)
    with pytest.raises(ssl.SSLError, match=r"(?i)verify"):
        shake(server, client, session)
    shake(server, rotated.client(other, version))


def test_a_file_that_is_gone_for_a_while_ends_no_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rotated = Rotated(tmp_path)
    server = rotated.files.context()
    client = rotated.client(rotated.authority, ssl.TLSVersion.TLSv1_3)
    aside = rotated.key.rename(tmp_path / "aside.key")
    shake(server, client)
    os.mkfifo(rotated.key)
    shake(server, client)
    assert "No such file" in caplog.records[0].message
    assert "no regular file" in caplog.records[1].message
    aside.rename(rotated.key)
    shake(server, client)
    assert len(caplog.records) == 2


def test_a_pipe_is_no_certificate_at_the_start(tmp_path: Path) -> None:
    rotated = Rotated(tmp_path)
    rotated.client_ca.unlink()
    os.mkfifo(rotated.client_ca)
    with pytest.raises(ConfigError, match=r"--tls-client-ca .*: is no regular file"):
        rotated.files.credentials()


PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def signed_by_itself(
    folder: Path, key: PrivateKey, form: PrivateFormat = PrivateFormat.PKCS8, days: int = 30
) -> CertificateFiles:
    """days: from yesterday on that it is valid."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days, seconds=-60))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    files = CertificateFiles(str(folder / "server.pem"), str(folder / "server.key"))
    Path(files.cert).write_bytes(cert.public_bytes(Encoding.PEM))
    Path(files.key).write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return files


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("kind", ["rsa", ec.SECP256R1(), ec.SECP384R1()])
def test_keys_that_are_taken_are_served(
    tmp_path: Path, kind: str | ec.EllipticCurve, form: PrivateFormat, caplog: pytest.LogCaptureFixture
) -> None:
    key = rsa.generate_private_key(65537, 2048) if isinstance(kind, str) else ec.generate_private_key(kind)
    files = signed_by_itself(tmp_path, key, form)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_secure_port("localhost:0", files.credentials())
        server.start()
        trusted = grpc.ssl_channel_credentials(Path(files.cert).read_bytes())
        with grpc.secure_channel(f"localhost:{port}", trusted) as channel:
            ask: Any = channel.unary_unary("/nothing/there")
            with pytest.raises(grpc.RpcError) as told:
                ask(b"", timeout=60)
        server.stop(None)
    assert told.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records


@pytest.mark.parametrize("kind", ["ed25519", ec.SECP521R1(), ec.SECP256K1()])
def test_a_key_of_a_kind_that_grpc_does_not_serve_stops_the_start(
    tmp_path: Path, kind: str | ec.EllipticCurve
) -> None:
    key = ed25519.Ed25519PrivateKey.generate() if isinstance(kind, str) else ec.generate_private_key(kind)
    with pytest.raises(ConfigError, match=r"--tls-key .*server\.key: gRPC serves RSA keys, .* P-384"):
        signed_by_itself(tmp_path, key).credentials()


def test_a_certificate_that_has_expired_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signed_by_itself(tmp_path, ec.generate_private_key(ec.SECP256R1()), days=1).credentials()
    (record,) = caplog.records
    assert "clients will refuse the certificate" in record.message
    assert "certificate has expired" in record.message
