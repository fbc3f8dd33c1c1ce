"""Certificates that are rotated while the server runs, as HTTPS shows them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import trustme

from wattserve_server.errors import ConfigError
from wattserve_server.service.listen import CertificateFiles


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
