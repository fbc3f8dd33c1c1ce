"""Between the protocol's messages and the values of `results` and `reports`.

For the clients, and for programs that send and receive bytes of their own making, such as loadgen:

    receipt = from_message(Receipt, pb.Receipt.FromString(received))

A field is read by its name and by its type in the dataclass; the few that need more are in `_OWN_WAYS`. An
energy that is absent becomes None, never 0. Pure: knows nothing of grpc. To open a channel, the sizes of
messages are in `wattserve_proto.limits`, and `Tls.read()` gives what `grpc.ssl_channel_credentials` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from math import prod
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from wattserve_client.reports import EnergyReport, Gap, VariantEnergy
from wattserve_client.results import Prediction
from wattserve_proto.v1 import inference_pb2 as pb

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
M = TypeVar("M", bound=Message)

DTYPES: dict[str, np.dtype[Any]] = {  # by the protocol's word for it
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # as bits
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "UINT8": np.dtype("u1"),
}


def from_message(kind: type[T], message: Message) -> T:
    """The message as a value of `kind`. ValueError when it makes no sense, such as a tensor whose bytes do
    not fit its shape."""
    to_read: type = kind
    return kind(*[read(message) for read in _readers(to_read, message.DESCRIPTOR)])


def to_message(value: Any, message: M) -> M:
    """`message`, which is empty, with the fields of `value`: what `from_message` reads back."""
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        on_wire = message.DESCRIPTOR.fields_by_name[field.name]
        if isinstance(item, StrEnum):
            setattr(message, field.name, _numbers(type(item), on_wire.enum_type)[item])
        elif dataclasses.is_dataclass(item):
            getattr(message, field.name).SetInParent()
            to_message(item, getattr(message, field.name))
        elif isinstance(item, Mapping):
            getattr(message, field.name).update(item)
        elif isinstance(item, tuple) and on_wire.message_type is not None:
            for part in item:
                to_message(part, getattr(message, field.name).add())
        elif isinstance(item, tuple | np.ndarray):
            getattr(message, field.name).extend(item)
        elif item is not None:
            setattr(message, field.name, item)
    return message


def array(message: pb.Tensor) -> npt.NDArray[Any]:
    """A writable array of the tensor's shape in native byte order; BF16 becomes float32, exactly."""
    dtype = DTYPES.get(message.datatype)
    if dtype is None:
        raise ValueError(f"tensor {message.name!r} has the unknown datatype {message.datatype!r}")
    shape = tuple(message.shape)
    if any(size < 0 for size in shape) or prod(shape) * dtype.itemsize != len(message.data):
        raise ValueError(
            f"tensor {message.name!r} has {len(message.data)} bytes, "
            f"which do not fit {message.datatype} of shape {shape}"
        )
    stored = np.frombuffer(message.data, dtype).reshape(shape)
    if message.datatype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(dtype.newbyteorder("="))


def _active(report: Any) -> tuple[VariantEnergy, ...]:
    """active_uj is not optional on the wire: without a measured total, its 0 means "not known"."""
    active = tuple(from_message(VariantEnergy, variant) for variant in report.active)
    if report.HasField("measured_uj"):
        return active
    return tuple(dataclasses.replace(variant, active_uj=None) for variant in active)


_OWN_WAYS: dict[tuple[type, str], Callable[[Any], Any]] = {
    (Prediction, "output"): lambda message: array(message.output),
    (Prediction, "output_name"): lambda message: message.output.name,
    (EnergyReport, "active"): _active,
    (Gap, "end_unix_ns"): lambda message: message.end_unix_ns or None,
}


@cache
def _readers(kind: type, descriptor: Descriptor) -> list[Callable[[Any], Any]]:
    """What reads each field of the dataclass `kind` from a message, in their order."""
    return [
        _OWN_WAYS.get((kind, name)) or _reader(hint, descriptor.fields_by_name[name])
        for name, hint in get_type_hints(kind).items()
    ]


def _reader(hint: Any, field: FieldDescriptor) -> Callable[[Any], Any]:
    name, take = field.name, attrgetter(field.name)
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    convert = _converter(kinds[0], field)
    if type(None) in kinds and field.has_presence:
        return lambda message: convert(take(message)) if message.HasField(name) else None
    return take if convert is _as_it_is else lambda message: convert(take(message))


def _converter(kind: Any, field: FieldDescriptor) -> Callable[[Any], Any]:
    """What makes a field's value a `kind`."""
    origin = get_origin(kind)
    if origin is tuple:
        part = _converter(get_args(kind)[0], field)
        return tuple if part is _as_it_is else lambda parts: tuple(map(part, parts))
    if origin is Mapping:
        return dict
    if origin is np.ndarray:
        return lambda numbers: np.array(numbers, np.float32)
    if field.message_type is not None:
        return partial(from_message, kind)
    if field.enum_type is not None:
        words = {number: word for word, number in _numbers(kind, field.enum_type).items()}
        return lambda number: words.get(number, kind("unspecified"))
    return _as_it_is


def enum_of(kind: type[E], message: Message, name: str) -> E:
    """The word of an enum's field; "unspecified" for one that is newer than this client."""
    number = getattr(message, name)
    words = _numbers(kind, message.DESCRIPTOR.fields_by_name[name].enum_type)
    return next((word for word, known in words.items() if known == number), kind("unspecified"))


def _as_it_is(value: Any) -> Any:
    return value


@cache
def _numbers(kind: type[E], enum: EnumDescriptor) -> dict[E, int]:
    """The wire's number of each word; there, its name begins with the enum's own."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {word: enum.values_by_name[prefix + word.name].number for word in kind}
