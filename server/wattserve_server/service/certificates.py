"""The server's certificates: read, checked before they are shown, and read again when they have changed."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from wattserve_server.errors import ConfigError
from wattserve_server.service.changes import Changes

log = logging.getLogger(__name__)

# How a private key of rsaEncryption, P-256 or P-384 names its kind, in DER: gRPC
# (1.81, BoringSSL) serves these.
_KINDS = tuple(
    bytes.fromhex(oid) for oid in ("06092a864886f70d010101", "06082a8648ce3d030107", "06052b81040022")
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (RSA |EC |)PRIVATE KEY-----([^-]+)-----END")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The server's certificates, in PEM, checked before it listens; read again when they have changed, for
    the connections that come then."""

    cert: str  # with its chain
    key: str  # without a passphrase
    client_ca: str = ""  # who signs the certificates that clients must show; empty: they need none

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigError for files that cannot be read, or do not fit together."""
        changes = Changes([self.cert, self.key, self.client_ca])

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """At each handshake, on a thread of grpc's. None: as before."""
            if not changes.are_there():
                return None
            try:
                read = self._read()
            except ConfigError as error:
                log.error("THE CERTIFICATE OF BEFORE IS STILL SHOWN: %s", error)
                return None
            log.info("the certificate has changed: %s", self.cert)
            return read

        fetcher: Any = fetch  # which may return None, though its type does not say so
        return grpc.dynamic_ssl_server_credentials(self._read(), fetcher, bool(self.client_ca))

    def context(self) -> LatestContext:
        """The same for HTTPS, once `credentials` has found the files good. At each handshake it looks whether
        they have changed."""
        context, changes = self._check(), Changes([self.cert, self.key, self.client_ca])

        def latest() -> ssl.SSLContext:
            nonlocal context
            if changes.are_there():
                try:
                    context = self._check()
                except ConfigError as error:
                    log.error("THE CERTIFICATE OF BEFORE IS STILL SHOWN BY HTTPS: %s", error)
            return context

        given = LatestContext(ssl.PROTOCOL_TLS_SERVER)
        given.latest = latest
        return given

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._bytes()
        self._check()
        return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)

    def _bytes(self) -> tuple[bytes, bytes, bytes | None]:
        client_ca = _read("--tls-client-ca", self.client_ca) if self.client_ca else None
        return _read("--tls-cert", self.cert), _read("--tls-key", self.key), client_ca

    def _check(self) -> ssl.SSLContext:
        """What grpc itself would only tell by refusing every connection."""
        self._bytes()  # OpenSSL would wait for what is no file, and call a missing one no certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            reason = _refused(context, self.cert)
        except (OSError, ValueError) as error:  # OpenSSL's is one, as that of a file that has just gone
            raise ConfigError(
                f"--tls-cert {self.cert} and --tls-key {self.key}: not a certificate with its key, both in "
                f"PEM, the key without a passphrase: {error}"
            ) from error
        if not _is_served(_read("--tls-key", self.key)):
            raise ConfigError(
                f"--tls-key {self.key}: gRPC serves RSA keys, and elliptic curves P-256 and P-384; this is "
                "of another kind"
            )
        if reason:
            log.warning("clients will refuse the certificate of --tls-cert %s: %s", self.cert, reason)
        if self.client_ca:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ConfigError(
                    f"--tls-client-ca {self.client_ca}: not a certificate in PEM: {error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class LatestContext(ssl.SSLContext):
    """Each connection is of the context that `latest` tells, as a whole. One that were only given another's
    certificate would still take the sessions of the first, of clients whose authority has been taken out."""

    latest: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        return self.latest().wrap_bio(*given, **named)


def _read(flag: str, path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait for who writes it
            raise ConfigError(f"{flag} {path}: is no regular file")
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _is_served(pem: bytes) -> bool:
    """Whether gRPC serves keys of this one's kind; OpenSSL, which has read it, takes more."""
    found = _PRIVATE_KEY.search(pem)
    if found is None:
        return False
    named, body = found.groups()
    if named == b"RSA ":
        return True
    try:
        key = base64.b64decode(body)
    except binascii.Error:
        return False
    return any(kind in key for kind in _KINDS)


def _refused(server: ssl.SSLContext, cert: str) -> str:
    """Why a client refuses the certificate who trusts just this one, whatever its name; empty: none does."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError as error:
            return str(error)
    return ""
