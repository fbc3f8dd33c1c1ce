"""Which servers a client calls, how a connection to them is encrypted, and which of them keeps a receipt.

Knows nothing of grpc.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from wattserve_client.errors import DeadlineExceeded, NotFound, Unavailable, WattserveError
from wattserve_client.results import FoundReceipts
from wattserve_common.arguments import host_and_port
from wattserve_common.words import wrong_port

C = TypeVar("C")
PathLike: TypeAlias = str | os.PathLike[str]

DEFAULT_TARGET = "127.0.0.1:50051"
_NOT_CONNECTED = ("failed to connect to all addresses", "connections to all backends failing")
_CUT = ("Socket closed", "reset by peer", "Broken pipe")
_LOST = (*_CUT, "Stream removed", "GOAWAY", "keepalive", "ping timeout")
# What gRPC says of a handshake that failed, and what a person must know of it.
_HANDSHAKES = (
    ("certificate has expired", ": the server's certificate has expired"),
    ("CERTIFICATE_VERIFY_FAILED", ": the server's certificate is not trusted; see Tls.ca"),
    (
        "Hostname Verification Check failed",
        ": the server's certificate shows another name than was called; see Tls.server_name",
    ),
    ("WRONG_VERSION_NUMBER", ": the server seems to use no TLS"),
    ("handshake failed", ""),
)


def addresses(target: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses in a client's `target`, each checked as far as that goes without asking anyone."""
    if isinstance(target, str):
        if not target:
            raise ValueError(f"target is {target!r}; it must be an address such as {DEFAULT_TARGET!r}")
        return (target,)
    if not isinstance(target, Sequence) or isinstance(target, bytes | bytearray):
        raise TypeError(
            f"target is {target!r}; it must be an address such as {DEFAULT_TARGET!r}, or a list of them"
        )
    several = tuple(target)
    if not several:
        raise ValueError(f"target is empty; it must name an address such as {DEFAULT_TARGET!r}")
    for place, address in enumerate(several):
        if not isinstance(address, str):
            raise TypeError(f"target[{place}] is {address!r}; it must be a str such as {DEFAULT_TARGET!r}")
        host_and_port(address)
        if address in several[:place]:
            raise ValueError(f"target names {address!r} twice")
    return several


def list_of(several: Sequence[str]) -> str:
    """gRPC's own form of several addresses, which holds numeric ones only: names are looked up now, once.

    A name with several addresses gives all of them. One without is passed over, as a server out of reach is;
    `Unavailable` when none is left.
    """
    numeric, nameless = [], []
    for host, port in map(host_and_port, several):
        try:
            numeric += [(ipaddress.ip_address(address), port) for address in _looked_up(host)]
        except (OSError, UnicodeError) as error:  # UnicodeError: not even of the form of a name
            nameless.append(f"the name {host!r} has no address: {error}")
    if not numeric:
        raise Unavailable("; ".join(nameless), "UNAVAILABLE", ", ".join(several))
    if all(address.version == 4 for address, _ in numeric):
        return "ipv4:" + ",".join(f"{address}:{port}" for address, port in numeric)
    # One list holds one family: here an address of IPv4 is written as the one of IPv6 that stands for it.
    prefixes = {4: "::ffff:", 6: ""}
    return "ipv6:" + ",".join(f"[{prefixes[address.version]}{address}]:{port}" for address, port in numeric)


def _looked_up(host: str) -> list[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


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


def lost(message: str, may_have_run: bool) -> str:
    """gRPC's words for a connection that was lost under a call, after what a person must know of them."""
    if not any(words in message for words in _LOST):
        return message
    fate = "; the request may have run" if may_have_run else ""
    return f"connection lost before the answer{fate} ({message})"


def _hint(message: str, tls: Tls | None) -> str:
    for words, meaning in _HANDSHAKES:
        if words in message:
            return f"the TLS handshake failed{meaning}"
    if wrong := wrong_port(message):
        return wrong
    if not message.startswith(_NOT_CONNECTED) or not any(end in message for end in _CUT):
        return ""
    if tls is None:
        advice = "if it uses TLS, pass tls="
    elif tls.cert is None:
        advice = "if it asks for a client's certificate, set Tls.cert and Tls.key"
    else:
        advice = "it may not trust Tls.cert"
    return f"the server cut the connection: {advice}"


class Owners(Generic[C]):
    """Which of a client's members keeps a receipt, as far as the client has learned it.

    A receipt lives on the server that answered, and its id begins with the id of that server's run.
    """

    def __init__(self, target: str, members: Sequence[C]) -> None:
        self._target = target
        self._members = tuple(members)
        self._by_run: dict[str, C] = {}

    def to_ask(self, receipt_id: str) -> tuple[C, ...]:
        """The member that is known to keep it, or all."""
        member = self._by_run.get(_run(receipt_id))
        return self._members if member is None else (member,)

    def note(self, receipt_id: str, member: C) -> None:
        """`member` has it, and all others of the same run of its server."""
        if run := _run(receipt_id):
            self._by_run[run] = member

    def joined(
        self, request_id: str, found: Sequence[FoundReceipts], errors: Sequence[WattserveError]
    ) -> FoundReceipts:
        """What the members keep of a request. errors: of those that failed; one is raised if all have."""
        if not found:
            raise self.missing(f"a receipt of the request {request_id!r}", errors)
        receipts = [receipt for each in found for receipt in each.receipts]
        receipts.sort(key=lambda receipt: receipt.created_unix_ns, reverse=True)
        return FoundReceipts(tuple(receipts), any(each.older_left_out for each in found))

    def missing(self, what: str, errors: Sequence[WattserveError]) -> WattserveError:
        """The error to raise when each that was asked for `what` has failed so. It is nowhere if all say
        NotFound."""
        first, *others = errors
        if not others:
            return first
        for error in errors:
            if not isinstance(error, NotFound | Unavailable | DeadlineExceeded):
                return error
        silent = [error for error in errors if not isinstance(error, NotFound)]
        failure: WattserveError = NotFound(
            first.message, first.code, self._target, reason=first.reason, field=first.field
        )
        if silent:
            names = ", ".join(error.target for error in silent)
            message = f"no server in reach has {what}; out of reach: {names}"
            failure = Unavailable(message, "UNAVAILABLE", self._target)
        failure.__cause__ = (silent or errors)[0].__cause__
        return failure


def _run(receipt_id: str) -> str:
    return receipt_id.rpartition("-")[0]
