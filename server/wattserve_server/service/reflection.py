"""What reflection shows: every service of this server, under the name at which it is found.

The Open Inference Protocol's descriptors cannot stand in the process's own pool under their public name,
`inference`: a client library of it in the same process would clash. They do in a pool made for reflection.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2

from wattserve_proto.oip import open_inference_pb2 as oip

OIP_PACKAGE = "inference"
"""The public name of the Open Inference Protocol's package."""

REFLECTION_PACKAGE = "grpc.reflection.v1"
"""Its messages are those of v1alpha, which is all that grpcio-reflection brings; tools ask for it first."""


def reflection_pool(files: Sequence[FileDescriptor]) -> DescriptorPool:
    """A pool with these files and, under their public names, what the process has under others."""
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.serialized_pb)
    pool.Add(_renamed(oip.DESCRIPTOR, OIP_PACKAGE))
    pool.Add(_renamed(reflection_pb2.DESCRIPTOR, REFLECTION_PACKAGE))
    return pool


def _renamed(file: FileDescriptor, package: str) -> FileDescriptorProto:
    """The file with another package's name. It imports nothing."""
    own, public = f".{file.package}.", f".{package}."
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    proto.package = package
    proto.name = f"{package.replace('.', '/')}.proto"

    def rename(message: DescriptorProto) -> None:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(own, public, 1)
        for nested in message.nested_type:
            rename(nested)

    for message in proto.message_type:
        rename(message)
    for method in proto.service[0].method:
        method.input_type = method.input_type.replace(own, public, 1)
        method.output_type = method.output_type.replace(own, public, 1)
    return proto
