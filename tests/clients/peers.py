"""Import one package's Open Inference Protocol stubs without the package: its __init__ wants a whole server.

mlserver, kserve and tritonclient each register `package inference`, in files of different names, so that no
two of them import into one process: a process is one peer's. Run as a program (`python -m tests.clients.peers
PEER [FOLDER]`) it prints, as JSON, what the peer's stubs and ours declare, having imported both.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

OURS = ["wattserve_proto.oip.open_inference_pb2", "wattserve_proto.v1.inference_pb2"]
# Where a peer's messages and its service's stub are.
MESSAGES = {
    "tritonclient": ["tritonclient.grpc.service_pb2", "tritonclient.grpc.model_config_pb2"],
    "mlserver": ["mlserver.grpc.dataplane_pb2"],
    "kserve": ["kserve.protocol.grpc.grpc_predict_v2_pb2"],
}
STUBS = {
    "tritonclient": "tritonclient.grpc.service_pb2_grpc",
    "mlserver": "mlserver.grpc.dataplane_pb2_grpc",
    "kserve": "kserve.protocol.grpc.grpc_predict_v2_pb2_grpc",
}
TYPES = {value: name for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
Described = dict[str, dict[str, object]]


def stand_in(module: str, folder: Path) -> None:
    """Empty packages for the parents of `module`, so that importing it runs none of their __init__ files."""
    for depth, parent in enumerate(module.split(".")[:-1], start=1):
        name = ".".join(module.split(".")[:depth])
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")))]
            sys.modules[name] = package
            if depth > 1:
                setattr(sys.modules[name.rpartition(".")[0]], parent, package)


def messages(peer: str, folder: Path | None = None) -> list[ModuleType]:
    """A peer's message modules; `folder` is what get_peers.sh filled, None for an installed package."""
    if folder is not None:
        stand_in(STUBS[peer], folder / peer)
    return [importlib.import_module(name) for name in MESSAGES[peer]]


def stub(peer: str, folder: Path | None = None) -> type:
    """A peer's own GRPCInferenceServiceStub: what a client of it calls the server with."""
    messages(peer, folder)
    found: type = importlib.import_module(STUBS[peer]).GRPCInferenceServiceStub
    return found


def describe_field(field: FieldDescriptor) -> list[object]:
    """Everything about a field that the wire or a generated class shows."""
    kind = field.message_type or field.enum_type
    repeated = getattr(field, "is_repeated", None)
    if repeated is None:  # protobuf before 6.32; later ones deprecate `label`
        repeated = getattr(field, "label", None) == FieldDescriptor.LABEL_REPEATED
    return [
        field.name,
        TYPES[field.type],
        "repeated" if repeated else "single",
        kind.full_name.removeprefix(f"{kind.file.package}.") if kind else "",
        field.containing_oneof.name if field.containing_oneof else "",
        "presence" if field.has_presence else "",
    ]


def describe_message(message: Descriptor, into: Described) -> None:
    """Add a message and those nested in it, map entries included, by its name inside its package."""
    name = message.full_name.removeprefix(f"{message.file.package}.")
    into[name] = {str(field.number): describe_field(field) for field in message.fields}
    if message.GetOptions().map_entry:
        into[name]["map_entry"] = True
    for nested in message.nested_types:
        describe_message(nested, into)
    for enum in message.enum_types:
        describe_enum(enum, into)


def describe_enum(enum: EnumDescriptor, into: Described) -> None:
    """Add an enum: its names by their numbers."""
    name = enum.full_name.removeprefix(f"{enum.file.package}.")
    into[name] = {str(value.number): value.name for value in enum.values}


def describe(file: FileDescriptor) -> Described:
    """Messages, enums and the methods of services, by their names inside the file's package."""
    into: Described = {}
    for message in file.message_types_by_name.values():
        describe_message(message, into)
    for enum in file.enum_types_by_name.values():
        describe_enum(enum, into)
    for service in file.services_by_name.values():
        into[f"service {service.name}"] = {
            method.name: [
                method.input_type.name,
                method.output_type.name,
                "stream" if method.client_streaming else "one",
                "stream" if method.server_streaming else "one",
            ]
            for method in service.methods
        }
    return into


def main(peer: str, folder: str = "", order: str = "ours-first") -> None:
    """Import a peer's stubs and ours into this process, in that order or the other, and print both."""
    where = Path(folder) if folder else None
    if order == "peer-first":
        messages(peer, where)
    ours = [importlib.import_module(name) for name in OURS]
    theirs = messages(peer, where)
    stub(peer, where)
    described = {
        "ours": describe(ours[0].DESCRIPTOR),
        "theirs": [describe(module.DESCRIPTOR) for module in theirs],
    }
    print(json.dumps(described))


if __name__ == "__main__":
    main(*sys.argv[1:])
