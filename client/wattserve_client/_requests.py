"""Python inputs into request messages. Pure: knows nothing of grpc, and sends nothing.

Everything that can be known to be wrong without the server is refused here: TypeError for a kind of
thing that cannot be sent, ValueError for a value that cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from wattserve_client.wire import DTYPES
from wattserve_proto.limits import MAX_MESSAGE_BYTES
from wattserve_proto.v1 import inference_pb2 as pb

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Inputs: TypeAlias = (
    str  # one text
    | Sequence[str]  # several texts
    | Sequence[int]  # the token ids of one sequence
    | Sequence[Sequence[int]]  # the token ids of several sequences, each of its true length
    | IntArray  # [length], or [sequences, length] as rows
    | Sequence[IntArray]  # several [length]
    | FloatArray  # pixels: one image [channels, height, width], or several [images, ...]
    | Mapping[str, npt.NDArray[Any]]  # named tensors
)


class PredictOptions(TypedDict, total=False):
    """What `predict` takes beside its inputs."""

    variant: str
    request_id: str
    wait_for_settled_energy: bool
    priority: int
    truncate: bool
    max_energy_uj: int
    timeout_s: float | None


_ACCEPTED = (
    "a str, a list of str, a list of int, a list of lists of int, a numpy integer array, "
    "a list of numpy integer arrays, a numpy float array of pixels, or a mapping of names to numpy arrays"
)
_INT32 = np.iinfo(np.int32)
_DATATYPES = {dtype.name: word for word, dtype in DTYPES.items() if word != "BF16"}


def bare_request(
    variant: str,
    wait_for_settled_energy: bool,
    priority: int,
    request_id: str = "",
    truncate: bool = False,
    max_energy_uj: int | None = None,
) -> pb.PredictRequest:
    """All of the message that asks for a prediction but the inputs."""
    if not _is_int(priority):
        raise TypeError(f"priority is {_kind(priority)}; it must be a whole number: 1 first, 3 last")
    if not 0 <= priority < 2**32:
        raise ValueError(f"priority is {priority}; the first is 1, and 0 is the server's usual one")
    if max_energy_uj is not None and not _is_int(max_energy_uj):
        raise TypeError(f"max_energy_uj is {_kind(max_energy_uj)}; it must be whole microjoules")
    if max_energy_uj is not None and not 0 < max_energy_uj < 2**64:
        raise ValueError(f"max_energy_uj is {max_energy_uj}; it must be at least 1, and less than 2**64")
    return pb.PredictRequest(
        request_id=text(request_id, "request_id"),
        variant=text(variant, "variant"),
        wait_for_settled_energy=flag(wait_for_settled_energy, "wait_for_settled_energy"),
        priority=priority,
        truncate=flag(truncate, "truncate"),
        max_energy_uj=max_energy_uj,
    )


def with_inputs(bare: pb.PredictRequest, inputs: Inputs) -> pb.PredictRequest:
    """The same message with `inputs` in it."""
    request = pb.PredictRequest()
    request.CopyFrom(bare)
    _fill(request, inputs)
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"the request has {size} bytes, and at most {MAX_MESSAGE_BYTES} can be sent: "
            "send less in one request"
        )
    return request


def images(pixels: object) -> FloatArray:
    """`pixels` as they are, once it is known that they are those of images."""
    if not isinstance(pixels, np.ndarray):
        raise TypeError(f"pixels are {_kind(pixels)}; they must be a numpy array of floats")
    if pixels.dtype.kind != "f":
        raise TypeError(_no_pixels(pixels))
    if pixels.ndim not in (3, 4):
        raise ValueError(
            f"pixels have {pixels.ndim} dimensions; one image has 3 (channels, height, width), several have 4"
        )
    return pixels


def _no_pixels(image: npt.NDArray[Any]) -> str:
    """What to say of an image that is still of whole numbers, as it comes out of a file."""
    last = image.ndim == 3 and image.shape[-1] in (1, 3, 4) and image.shape[0] not in (1, 3, 4)
    moved = ", channels first (.transpose(2, 0, 1))" if last else ""
    return (
        f"an image of {image.dtype.name}, shape {image.shape}: pixels must be floats{moved}, resized to "
        "server_info().pixel_shape, scaled and normalised as the model's preprocessor does it, mostly "
        "(image / 255 - mean) / std (docs/how-to/own-model.md has ten lines for it)"
    )


def receipt_request(receipt_id: str, wait_until_settled: bool) -> pb.GetReceiptRequest:
    """The message that asks for a receipt."""
    wait = flag(wait_until_settled, "wait_until_settled")
    return pb.GetReceiptRequest(receipt_id=text(receipt_id, "receipt_id"), wait_until_settled=wait)


def find_request(request_id: str, wait_until_settled: bool) -> pb.FindReceiptsRequest:
    """The message that asks for the receipts of a request id."""
    wait = flag(wait_until_settled, "wait_until_settled")
    return pb.FindReceiptsRequest(request_id=text(request_id, "request_id"), wait_until_settled=wait)


def watch_request(receipt_ids: Iterable[str] | None) -> pb.WatchReceiptsRequest:
    """The message that asks for these receipts, or for all; one bare str would be taken letter by letter."""
    if receipt_ids is None:
        return pb.WatchReceiptsRequest()
    if isinstance(receipt_ids, str | bytes):
        raise TypeError("receipt_ids is one id; it must be a list of ids")
    if not isinstance(receipt_ids, Iterable):
        raise TypeError(f"receipt_ids is {_kind(receipt_ids)}; it must be a list of ids")
    wanted = [text(one_id, f"receipt_ids[{place}]") for place, one_id in enumerate(receipt_ids)]
    if not wanted:  # the server would take that for all
        raise ValueError("receipt_ids is empty: name some, or leave it out to watch all receipts")
    return pb.WatchReceiptsRequest(receipt_ids=wanted)


def text(value: object, argument: str) -> str:
    """`value`, which must be a str; `argument`: what its caller calls it."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} is {_kind(value)}; it must be a str")
    return _unicode(value, argument)


def flag(value: object, argument: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{argument} is {_kind(value)}; it must be True or False")
    return value


def _fill(request: pb.PredictRequest, inputs: Inputs) -> None:
    _check_unmasked(inputs, "inputs")
    match inputs:
        case str():
            request.text.texts.append(_text(inputs, "inputs"))
        case np.ndarray() if inputs.dtype.kind == "f" and inputs.ndim in (3, 4):
            _fill_tensors(request, {"pixel_values": _pixels(inputs)})
        case np.ndarray():
            _fill_array(request, inputs)
        case Mapping():
            _fill_tensors(request, inputs)
        case Sequence() if not isinstance(inputs, bytes | bytearray | memoryview):
            _fill_sequence(request, inputs)
        case _:
            raise TypeError(f"inputs are {_kind(inputs)}; they must be {_ACCEPTED}")


def _fill_sequence(request: pb.PredictRequest, inputs: Sequence[Any]) -> None:
    if len(inputs) == 0:
        raise ValueError("inputs are empty")
    first = inputs[0]
    if isinstance(first, str):
        request.text.texts.extend(_text(text, f"inputs[{place}]") for place, text in enumerate(inputs))
    elif _is_int(first):
        request.tokens.sequences.add(ids=_ids(inputs, "inputs"))
    elif _is_id_sequence(first):
        for place, ids in enumerate(inputs):
            if not _is_id_sequence(ids):
                raise TypeError(f"inputs[{place}] is {_kind(ids)}, and inputs[0] a sequence of token ids")
            request.tokens.sequences.add(ids=_ids(ids, f"inputs[{place}]"))
    else:
        raise TypeError(f"inputs[0] is {_kind(first)}; inputs must be {_ACCEPTED}")


def _fill_array(request: pb.PredictRequest, inputs: npt.NDArray[Any]) -> None:
    if inputs.ndim in (3, 4):
        raise TypeError(_no_pixels(inputs))
    if inputs.ndim not in (1, 2):
        raise ValueError(
            f"inputs have {inputs.ndim} dimensions; token ids have 1, or 2 for several sequences"
        )
    if inputs.size == 0:
        raise ValueError(f"inputs are empty: an array of shape {inputs.shape}")
    if inputs.ndim == 1:
        request.tokens.sequences.add(ids=_ids(inputs, "inputs"))
    else:
        for place, row in enumerate(inputs):
            request.tokens.sequences.add(ids=_ids(row, f"inputs[{place}]"))


def _fill_tensors(request: pb.PredictRequest, inputs: Mapping[Any, Any]) -> None:
    if len(inputs) == 0:
        raise ValueError("inputs are empty: a mapping without tensors")
    for name, array in inputs.items():
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} of a tensor is {_kind(name)}; it must be a str")
        _check_unmasked(array, f"tensor {name!r}")
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tensor {name!r} is {_kind(array)}; it must be a numpy array")
        datatype = _DATATYPES.get(array.dtype.name)
        if datatype is None:
            raise TypeError(
                f"tensor {name!r} is {array.dtype.name}, which cannot be sent: "
                f"convert it to one of {', '.join(_DATATYPES)}"
            )
        if array.size == 0:
            raise ValueError(f"tensor {name!r} is empty: its shape is {array.shape}")
        little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
        request.tensors.tensors.add(
            name=name, datatype=datatype, shape=array.shape, data=little_endian.tobytes()
        )


def _pixels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """[images, channels, height, width] in what the protocol takes, all finite."""
    with np.errstate(over="ignore"):  # what float32 does not hold is refused below
        images = pixels.astype(np.float32, copy=False)
    if images.ndim == 3:
        images = images[np.newaxis]
    finite = np.isfinite(images).all(axis=(1, 2, 3))
    if not finite.all():
        raise ValueError(f"image {int(finite.argmin())} holds values that are not finite in float32")
    return images


def _text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{where} is {_kind(text)}, and inputs[0] a str")
    return _unicode(text, where)


def _unicode(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} is not Unicode text: {error}") from error
    return text


def _ids(ids: Sequence[Any] | npt.NDArray[Any], where: str) -> list[int]:
    """The token ids of one sequence, checked; `where` names it in errors."""
    _check_unmasked(ids, where)
    if len(ids) == 0:
        raise ValueError(f"{where} is empty: a sequence has at least one token id")
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{where} is an array of {ids.dtype.name}; token ids are integers")
        if ids.ndim != 1:
            raise ValueError(f"{where} has {ids.ndim} dimensions; a sequence of token ids has 1")
        values: list[int] = ids.tolist()
    else:
        if set(map(type, ids)) != {int}:  # the slow way only for numpy integers and for errors
            for place, value in enumerate(ids):
                if not _is_int(value):
                    raise TypeError(f"{where}[{place}] is {_kind(value)}; token ids are integers")
        values = list(map(int, ids))
    if min(values) < _INT32.min or max(values) > _INT32.max:
        raise ValueError(f"{where} has a token id outside int32: from {min(values)} to {max(values)}")
    return values


def _check_unmasked(value: object, where: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{where}: a masked array, and no mask can be sent; .filled() or .compressed() has none"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_id_sequence(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def usage_request(since_unix_s: int, until_unix_s: int, *by: bool) -> pb.GetUsageRequest:
    """by: tenant, variant, hour."""
    names = ("by_tenant", "by_variant", "by_hour")
    keys = {name: flag(given, name) for name, given in zip(names, by, strict=True)}
    try:
        return pb.GetUsageRequest(since_unix_s=since_unix_s, until_unix_s=until_unix_s, **keys)
    except (TypeError, ValueError):
        raise TypeError(
            f"since_unix_s and until_unix_s are whole seconds, not {since_unix_s!r} and {until_unix_s!r}"
        ) from None
