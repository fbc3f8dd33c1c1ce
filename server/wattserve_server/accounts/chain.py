"""The chain of receipts: each one's hash holds the one before it, so that none can be changed or taken out
without changing all that follow."""

from __future__ import annotations

import hashlib

BEGINNING = b""  # what stands before the first receipt of an instance


def link(before: bytes, instance_id: str, seq: int, tenant: str, final_unix_ns: int, body: bytes) -> bytes:
    """The hash of a receipt: SHA-256, 32 bytes. before: that of the one before it. What is not named here,
    its own id and that of its request, is in its body."""
    head = f"{instance_id} {seq} {final_unix_ns} {tenant}\n".encode()
    return hashlib.sha256(before + head + body).digest()
