"""Words that the server, the client and the tools share: what the ledger's accounts are, where figures come
from, what a wrong port answers, plural forms."""

from __future__ import annotations

APPORTIONED = "apportioned"  # begins the method of every source whose figures are shares of a sum

ACTIVE = "on the receipts of requests, above idle"
# The ledger's other accounts, by their names in GetEnergyReport: the name for people, and what it means.
ACCOUNTS = {
    "warmup_uj": ("warm-up", "warming up and calibrating, what was run again in parts or computed again"),
    "idle_uj": ("idle", "what the device draws while nothing runs"),
    "unattributed_uj": ("unattributed", "above idle, with no batch to explain it"),
    "gap_uj": ("gap", "counted over times in which the meter told nothing"),
    "pending_uj": ("pending", "counted; its batches are not settled yet"),
}


def origin(quality: str, meter: str) -> str:
    """How far figures may be trusted, and by which meter: `measured by nvml:GPU-5f`.

    The meters that follow a law measure nothing: `estimated from CPU time`, `simulated`."""
    if meter == quality.lower():
        return quality
    if (meter, quality.lower()) == ("estimate", "estimated"):
        return f"{quality} from CPU time"
    return f"{quality} by {meter or 'an unnamed source'}"


def share_of(method: str, whence: str) -> str:
    """How a request's part came out of a sum, where its method says so: `apportioned from joules measured by
    nvml:GPU-5f`; else what the sum is. whence: see `origin`."""
    way = method.partition(" ")[0]
    return f"{way} from joules {whence}" if way == APPORTIONED else whence


def wrong_port(message: str) -> str:
    """What a person must know of gRPC's words for a connection that failed, where something else than gRPC
    answered, such as HTTP; else nothing."""
    if "Expected SETTINGS frame" not in message:
        return ""
    return "what answers there is not gRPC (the metrics port?); give the gRPC port, which is 50051 by default"


def counted(number: int, thing: str, plural: str = "") -> str:
    """`1 line`, `2 lines`."""
    return f"{number:,} {thing if number == 1 else plural or thing + 's'}"
