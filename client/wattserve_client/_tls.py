"""TLS: the files a client needs, and in plain words what gRPC says of a connection that failed.

Knows nothing of grpc.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]

_NOT_CONNECTED = ("failed to connect to all addresses", "connections to all backends failing")
_CUT = ("Socket closed", "reset by peer", "Broken pipe")


@dataclass(frozen=True, slots=True)
class Tls:
    """How a connection is encrypted, and who is trusted. All files are PEM.

    `ca`: who signs the server's certificate; None: whom gRPC trusts (the public authorities that it
    brings along, or those in the file that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names). `cert`, `key`: the
    client's own certificate with its chain, and its key without a passphrase, for a server that asks for
    one. `server_name`: the name that the server's certificate must show, in place of the host's.
    """

    ca: PathLike | None = None
    cert: PathLike | None = None
    key: PathLike | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not isinstance(path, str | os.PathLike):
                raise TypeError(f"Tls.{name} is {path!r}; it must be the path of a file")
        if not isinstance(self.server_name, str):
            raise TypeError(f"Tls.server_name is {self.server_name!r}; it must be a str")
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise ValueError(f"Tls.{given} without Tls.{missing}: a client's certificate needs both")

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Contents of ca, key and cert. OSError or ValueError, naming the file, when they are no use."""
        contents = _read(self.ca), _read(self.key), _read(self.cert)
        self._check()
        return contents

    def _check(self) -> None:
        """What grpc itself would only tell by failing every call."""
        import ssl  # not at the top: few clients need it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise ValueError(f"Tls.ca {os.fspath(self.ca)}: not a certificate in PEM: {error}") from error
        if self.cert is not None and self.key is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(
                    f"Tls.cert {os.fspath(self.cert)} and Tls.key {os.fspath(self.key)}: not a certificate "
                    f"with its key, both in PEM, the key without a passphrase: {error}"
                ) from error


def _read(path: PathLike | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def explained(message: str, tls: Tls | None) -> str:
    """gRPC's words for a failed connection, after what a person must know of them."""
    hint = _hint(message, tls)
    return f"{hint} ({message})" if hint else message


def _hint(message: str, tls: Tls | None) -> str:
    if "certificate has expired" in message:
        return "the TLS handshake failed: the server's certificate has expired"
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return "the TLS handshake failed: the server's certificate is not trusted; see Tls.ca"
    if "Hostname Verification Check failed" in message:
        return (
            "the TLS handshake failed: the server's certificate shows another name than was called; "
            "see Tls.server_name"
        )
    if "WRONG_VERSION_NUMBER" in message:
        return "the TLS handshake failed: the server seems to use no TLS"
    if "handshake failed" in message:
        return "the TLS handshake failed"
    if not message.startswith(_NOT_CONNECTED) or not any(end in message for end in _CUT):
        return ""
    if tls is None:
        return "the server cut the connection: if it uses TLS, pass tls="
    if tls.cert is None:
        return (
            "the server cut the connection: if it asks for a client's certificate, set Tls.cert and Tls.key"
        )
    return "the server cut the connection: it may not trust Tls.cert"
