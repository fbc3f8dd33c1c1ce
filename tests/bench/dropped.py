"""What connections that come to nothing leave in a server's memory, which need no key:

    python -m tests.bench.dropped [--rounds N]

Of each kind a server of its own. A round opens connections and closes them all; `later` is when the server
has looked at its size once more.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import trustme

from tests.bench.overload import resident_mb
from tests.fixtures.server import RunningServer, running_server
from wattserve_server.engine.heap import LOOKS_LATER_S

HANDSHAKES = 3000  # a round, each begun and left
CONNECTIONS, CALLS = 30, 1000  # a round, and of each connection: headers, and no message
SETTLING_S = 4.0
HEADERS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/wattserve.v1.Inference/Predict",
    b":authority": b"any",
    b"content-type": b"application/grpc",
    b"te": b"trailers",
}


def hello() -> bytes:
    """What a client of TLS says first."""
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    come, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(come, said).do_handshake()
    except ssl.SSLWantReadError:
        return said.read()
    raise AssertionError("nobody has answered")


def calls() -> bytes:
    """The begin of a connection of HTTP/2, with calls that have only begun."""
    head = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in HEADERS.items()
    )
    begun = b"".join(frame(1, 4, 1 + 2 * number, head) for number in range(CALLS))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + begun


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def measured(
    kind: str, server: RunningServer, address: str, said: bytes, connections: int, rounds: int
) -> None:
    host, port = address.rsplit(":", 1)
    pid = server.process.pid
    sizes = [resident_mb(pid)]
    for _ in range(rounds):
        opened = [socket.create_connection((host, int(port)), timeout=60) for _ in range(connections)]
        for one in opened:
            one.sendall(said)
        time.sleep(SETTLING_S)
        for one in opened:
            one.close()
        time.sleep(SETTLING_S)
        sizes.append(resident_mb(pid))
    time.sleep(LOOKS_LATER_S + SETTLING_S)
    sizes.append(resident_mb(pid))
    print(f"| {kind} | " + " | ".join(f"{size:.0f}" for size in sizes) + " |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dropped", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    rounds: int = parser.parse_args(arguments).rounds
    numbers = " | ".join(str(number) for number in range(1, rounds + 1))
    print(f"| resident memory, MB | before | {numbers} | later |\n|---|" + "---|" * (rounds + 2), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--http-port", "0")
        for kind, flags, said, connections in (
            ("calls without a message", (), calls(), CONNECTIONS),
            ("handshakes, gRPC", tls, hello(), HANDSHAKES),
            ("handshakes, HTTPS", tls, hello(), HANDSHAKES),
        ):
            with running_server("--meter", "none", "--variants", "fp32", *flags, fresh=True) as server:
                address = urlsplit(server.openai_url).netloc if "HTTPS" in kind else server.address
                measured(kind, server, address, said, connections, rounds)


if __name__ == "__main__":
    main()
