"""What reflection shows: public names in a pool of its own, and nothing of them in the process's pool."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service.listen import reflection_pool

SERVICES = {
    "inference.GRPCInferenceService": oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],
    "grpc.reflection.v1.ServerReflection": reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    "grpc.reflection.v1alpha.ServerReflection": reflection_pb2.DESCRIPTOR.services_by_name[
        "ServerReflection"
    ],
    "grpc.health.v1.Health": health_pb2.DESCRIPTOR.services_by_name["Health"],
    "wattserve.v1.Inference": pb.DESCRIPTOR.services_by_name["Inference"],
}


@pytest.fixture(scope="module")
def pool() -> DescriptorPool:
    return reflection_pool((pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR))


def within(message: Descriptor, package: str, seen: set[str]) -> set[str]:
    """The names of a message and of all that it holds."""
    if message.full_name not in seen:
        seen.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None:
                within(field.message_type, package, seen)
            if field.enum_type is not None:
                seen.add(field.enum_type.full_name)
    return seen


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_there_under_its_public_name_with_all_its_types(pool: DescriptorPool, name: str) -> None:
    found, own = pool.FindServiceByName(name), SERVICES[name]
    assert [method.name for method in found.methods] == [method.name for method in own.methods]
    package = name.rpartition(".")[0]
    for shown, real in zip(found.methods, own.methods, strict=True):
        assert shown.client_streaming == real.client_streaming
        assert shown.server_streaming == real.server_streaming
        for message in (shown.input_type, shown.output_type):
            assert all(each.startswith(f"{package}.") for each in within(message, package, set()))


def test_the_shown_messages_read_what_ours_write(pool: DescriptorPool) -> None:
    sent = oip.ModelInferRequest(model_name="demo", raw_input_contents=[b"ids"])
    sent.parameters["variant"].string_param = "int8"
    sent.inputs.add(name="input_ids", datatype="INT64", shape=[1, 4])
    read = GetMessageClass(pool.FindMessageTypeByName("inference.ModelInferRequest")).FromString(
        sent.SerializeToString()
    )
    assert str(read) == str(sent)


def test_the_public_names_stay_out_of_the_processs_own_pool(pool: DescriptorPool) -> None:
    """Where a client library of the protocol may have put its own."""
    for name in ("inference.ModelInferRequest", "grpc.reflection.v1.ServerReflectionRequest"):
        shown = pool.FindMessageTypeByName(name)
        try:
            assert descriptor_pool.Default().FindMessageTypeByName(name) is not shown
        except KeyError:
            continue  # no such library is imported here
