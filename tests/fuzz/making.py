"""The inputs of a run: as many as asked for, shared out among the methods, the same ones every time."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.calls import (
    INFER,
    INFER_STREAM,
    LOADING,
    METHODS,
    NOT_OFFERED,
    PREDICT,
    PREDICT_STREAM,
    WATCH_RECEIPTS,
    Call,
    Method,
)
from tests.fuzz.messages import FIRST_RECEIPTS, bytes_of, messages
from tests.fuzz.nearly_infer import IMAGE_TEMPLATES as IMAGE_INFERS
from tests.fuzz.nearly_infer import TEXT_TEMPLATES as TEXT_INFERS
from tests.fuzz.nearly_infer import infer_request
from tests.fuzz.nearly_predict import IMAGE_TEMPLATES as IMAGE_PREDICTS
from tests.fuzz.nearly_predict import TEXT_TEMPLATES as TEXT_PREDICTS
from tests.fuzz.nearly_predict import predict_request
from tests.fuzz.raw import raw
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb

_MANY = {PREDICT: 12.0, INFER: 12.0, PREDICT_STREAM: 5.0, INFER_STREAM: 5.0}
"""Shares of methods with more to break than most, which have 1."""

SHARES = {
    method.path: 0.4 if method.name in NOT_OFFERED else _MANY.get(method.path, 1.0)
    for method in METHODS.values()
    if method.name not in LOADING
}
LOADING_SHARES = {
    method.path: 1.0
    for method in METHODS.values()
    if method.name in LOADING or method.path in (PREDICT, INFER)
}
"""They change what predictions find, so theirs is a phase of their own."""


def _nearly(method: Method, images: bool) -> st.SearchStrategy[bytes] | None:
    """None for a method whose messages hold nothing that could be nearly right."""
    if method.kind is pb.PredictRequest:
        return predict_request(IMAGE_PREDICTS if images else TEXT_PREDICTS).map(bytes_of)
    if method.kind is oip.ModelInferRequest:
        return infer_request(IMAGE_INFERS if images else TEXT_INFERS).map(bytes_of)
    if method.name == "GetReceipt":
        ids = st.sampled_from(FIRST_RECEIPTS)
        return st.builds(lambda name, wait: pb.GetReceiptRequest(receipt_id=name, wait_until_settled=wait),
                         ids, st.booleans()).map(bytes_of)  # fmt: skip
    if method.path == WATCH_RECEIPTS:
        lists = st.lists(st.sampled_from((*FIRST_RECEIPTS, "fuzzfuzzfuzz-0")), max_size=4)
        return lists.map(lambda names: bytes_of(pb.WatchReceiptsRequest(receipt_ids=names)))
    if method.name in ("LoadVariant", "UnloadVariant"):
        names = st.sampled_from(("fp32", "bf16", "bf16", "", "int3"))
        return names.map(lambda name: bytes_of(method.kind(variant=name)))
    if method.name in LOADING:
        names = st.sampled_from(("tiny@bf16", "tiny@fp32", "tiny", "tiny@int3", ""))
        return names.map(lambda name: bytes_of(method.kind(model_name=name)))
    if method.name.startswith("Model"):
        names, versions = (
            st.sampled_from(("tiny", "tiny@fp32", "tiny@bf16", "")),
            st.sampled_from(("", "1", "2")),
        )
        return st.builds(lambda name, version: bytes_of(method.kind(name=name, version=version)),
                         names, versions)  # fmt: skip
    return None


@st.composite
def _call(draw: st.DrawFn, method: Method, images: bool) -> Call:
    whole = messages(method.kind)
    nearly = _nearly(method, images)
    sound = whole if nearly is None else nearly
    by_family = {"generic": whole, "nearly valid": sound, "raw": raw(sound)}
    family = draw(st.sampled_from(("generic", "raw", *(("nearly valid",) * 2 if nearly is not None else ()))))
    ending, after, timeout_s = "read", 0, None
    dice = draw(st.integers(0, 19))
    if dice == 7:
        ending, after = "cancel", draw(st.sampled_from((0, 0, 1, 3)))
    elif dice == 9:
        timeout_s = draw(st.sampled_from((0.0, 0.0005, 0.002, 0.01, 0.05)))
    elif dice == 11:
        timeout_s = draw(st.sampled_from((60.0, 1e6, 1e9)))
    if not method.takes_stream:
        return Call(method.path, (draw(by_family[family]),), family, ending, after, timeout_s)
    if dice in (3, 4, 5, 13):
        ending = "answer"
    size = draw(st.sampled_from((0, 1, 1, 2, 3, 5, 8)))
    kinds = [family, "nearly valid", "nearly valid"] if nearly is not None else [family, "generic"]
    made = tuple(draw(by_family[draw(st.sampled_from(kinds))]) for _ in range(size))
    return Call(method.path, made, family, ending, after, timeout_s)


def _drawn(strategy: st.SearchStrategy[Call], count: int, start: int) -> list[Call]:
    """count examples: fewer where hypothesis finds that there are no more. start: of its random numbers."""
    calls: list[Call] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(call: Call) -> None:
        if len(calls) < count:
            calls.append(call)

    collect()
    return calls


def make_calls(count: int, shares: Mapping[str, float], images: bool = False, start: int = 0) -> list[Call]:
    """shares: of each method, by its path. They take turns, so that hostile and honest calls meet. images:
    whether they are for a model of images. start: another number makes other calls."""
    total = sum(shares.values())
    ordered: list[tuple[float, int, Call]] = []
    for path, share in shares.items():
        wanted = math.ceil(count * share / total)
        made = _drawn(_call(METHODS[path], images), wanted, zlib.crc32(path.encode()) + start)
        repeated = [made[index % len(made)] for index in range(wanted)]
        ordered += [(index / wanted, zlib.crc32(path.encode()), call) for index, call in enumerate(repeated)]
    ordered.sort(key=lambda item: item[:2])
    return [call for _, _, call in ordered]
