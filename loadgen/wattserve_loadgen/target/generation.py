"""The answer to a `Generate` call, as a record needs it: how it ended, and when its tokens came."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from wattserve_common.dataset import Dataset
from wattserve_loadgen.target.wire import stamped_messages
from wattserve_proto.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Generated:
    """Stamps are `time.perf_counter_ns`, each of a message that brought tokens."""

    variant: str
    end: pb.GenerationEnd
    arrivals_ns: tuple[int, ...]  # at least one


def make_generation(dataset: Dataset, row: int, variant: str) -> bytes:
    """A row's prompt: answered greedily, to the length that the dataset says, behind end tokens too."""
    return pb.GenerateRequest(
        variant=variant,
        tokens=pb.TokenIds(ids=dataset.rows[row].tolist()),
        max_new_tokens=dataset.max_new_tokens[row],
        ignore_eos=True,
    ).SerializeToString()


def read_generation(answer: bytes) -> Generated:
    """Raises ValueError, with words for the failure of that request, when it is no whole generation."""
    arrivals_ns = []
    variant, end = "", None
    try:
        for stamp_ns, data in stamped_messages(answer):
            message = pb.GenerateResponse.FromString(data)
            variant = message.variant or variant
            if message.piece.token_ids:
                arrivals_ns.append(stamp_ns)
            if message.HasField("end"):
                end = message.end
    except DecodeError:
        raise ValueError("a message of the answer is not a GenerateResponse") from None
    if end is None:
        raise ValueError("the stream ended without saying how the generation did")
    if not arrivals_ns:
        raise ValueError("no token came")
    return Generated(variant, end, tuple(arrivals_ns))
