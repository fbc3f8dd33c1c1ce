"""Where the servers are: one address as gRPC takes it, or several for its list of numeric ones."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from wattserve_client.errors import Unavailable

DEFAULT_TARGET = "127.0.0.1:50051"


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
    for place, each in enumerate(several):
        if not isinstance(each, str):
            raise TypeError(f"target[{place}] is {each!r}; it must be a str such as {DEFAULT_TARGET!r}")
        host_and_port(each)
        if each in several[:place]:
            raise ValueError(f"target names {each!r} twice")
    return several


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of "host:port" or "[address of IPv6]:port"."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and bare and port.isdecimal() and 0 < int(port) < 65536) or (":" in bare and bare == host):
        raise ValueError(f"the address {address!r} is not of the form host:port, as in {DEFAULT_TARGET!r}")
    return bare, int(port)


def list_of(several: Sequence[str]) -> str:
    """gRPC's own form of several addresses, which holds numeric ones only: names are looked up now, once.

    A name with several addresses gives all of them. One without is passed over, as a server out of reach is;
    `Unavailable` when none is left.
    """
    found, missing = [], []
    for host, port in map(host_and_port, several):
        try:
            found += [(ipaddress.ip_address(numeric), port) for numeric in _numeric(host)]
        except (OSError, UnicodeError) as error:  # UnicodeError: not even of the form of a name
            missing.append(f"the name {host!r} has no address: {error}")
    if not found:
        raise Unavailable("; ".join(missing), "UNAVAILABLE", ", ".join(several))
    if all(address.version == 4 for address, _ in found):
        return "ipv4:" + ",".join(f"{address}:{port}" for address, port in found)
    # One list holds one family: here an address of IPv4 is written as the one of IPv6 that stands for it.
    as_ipv6 = [
        (f"::ffff:{address}" if address.version == 4 else str(address), port) for address, port in found
    ]
    return "ipv6:" + ",".join(f"[{address}]:{port}" for address, port in as_ipv6)


def _numeric(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))
