"""What a receipt adds to the sums of an account book, by its message alone: as `rollups.count` does."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.accounts.check import Recounted
from wattserve_server.accounts.schema import FIGURES
from wattserve_server.energy.attribution import NONE

_LENGTHS = ("sequences", "tokens", "output_tokens")
_ENERGIES = ("accelerator_uj", "host_uj", "accelerator_idle_uj", "host_idle_uj")


def recount(body: bytes) -> Recounted:
    """Raises ValueError for what is no receipt."""
    try:
        told = pb.Receipt.FromString(body)
    except DecodeError:
        raise ValueError("it is no receipt") from None
    lines = [line for line in told.lines if line.batch_size and line.role != pb.LINE_ROLE_RECOMPUTED]
    given = [line for line in lines if line.role != pb.LINE_ROLE_OUTPUT]
    chosen = told.generation.output_tokens
    figures: dict[str, int | None] = dict.fromkeys(FIGURES, 0)
    figures |= {
        "requests": 1,
        "failed": int(told.outcome == pb.OUTCOME_FAILED),
        "cancelled": int(told.outcome == pb.OUTCOME_CANCELLED),
        "unknown": int(not told.HasField("energy_uj")),
        "sequences": len(given),
        "tokens": sum([line.tokens for line in given]) + chosen,
        "output_tokens": chosen,
    }
    if not all(line.compute_ns for line in lines):  # it may have left again what it entered
        figures |= dict.fromkeys(_LENGTHS)
    if not told.parts:
        figures |= dict.fromkeys(_ENERGIES)
    no_idle = 0 if told.idle_policy == NONE else None
    for part in told.parts:
        figures[f"{part.name}_uj"] = part.energy_uj if part.HasField("energy_uj") else None
        figures[f"{part.name}_idle_uj"] = part.idle_share_uj if part.HasField("idle_share_uj") else no_idle
    return Recounted(told.receipt_id, told.request_id, told.variant, [figures[name] for name in FIGURES])
