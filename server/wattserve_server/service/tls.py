"""The certificates of a server, read and checked before it listens."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from wattserve_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. cert: with its chain; key: without a passphrase; client_ca: who signs the certificates that
    clients must show, or empty: they need none."""

    cert: str
    key: str
    client_ca: str = ""

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigError for files that cannot be read, or do not fit together."""
        cert, key = _read("--tls-cert", self.cert), _read("--tls-key", self.key)
        client_ca = _read("--tls-client-ca", self.client_ca) if self.client_ca else None
        self._check()
        return grpc.ssl_server_credentials([(key, cert)], client_ca, client_ca is not None)

    def _check(self) -> None:
        """What grpc itself would only tell by refusing every connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"--tls-cert {self.cert} and --tls-key {self.key}: not a certificate with its key, both in "
                f"PEM, the key without a passphrase: {error}"
            ) from error
        if self.client_ca:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ConfigError(
                    f"--tls-client-ca {self.client_ca}: not a certificate in PEM: {error}"
                ) from error


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")
