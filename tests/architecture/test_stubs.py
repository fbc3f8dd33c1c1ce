"""The committed stubs are what the .proto file generates."""

import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
NATIVE = "wattserve_proto/v1/inference"
OIP = "wattserve_proto/oip/open_inference"


@pytest.mark.parametrize("stub", [f"{NATIVE}_pb2.py", f"{NATIVE}_pb2_grpc.py", f"{OIP}_pb2.py"])
def test_the_stubs_are_not_stale(tmp_path: Path, stub: str) -> None:
    include = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={tmp_path}"]
    source = f"{stub.partition('_pb2')[0]}.proto"
    assert protoc.main([sys.argv[0], *arguments, f"--grpc_python_out={tmp_path}", source]) == 0
    assert (ROOT / "proto" / stub).read_text() == (tmp_path / stub).read_text(), "run `make proto`"


@pytest.mark.parametrize("proto", [NATIVE, OIP])
def test_the_stubs_run_under_protobuf_6_and_7(proto: str) -> None:
    text = (ROOT / "proto" / f"{proto}_pb2.py").read_text()
    assert "# Protobuf Python Version: 6.30.0" in text  # a runtime takes its own and the last major's


def test_the_descriptor_is_the_published_one() -> None:
    """A changed field number or type breaks clients: change the golden file only on purpose."""
    from wattserve_proto.v1 import inference_pb2 as pb

    lines = []
    for message in sorted(pb.DESCRIPTOR.message_types_by_name.values(), key=lambda item: item.name):
        for field in message.fields:
            kind = field.message_type or field.enum_type
            lines.append(
                f"{message.name}.{field.name} = {field.number} {kind.full_name if kind else field.type}"
            )
    for enum in sorted(pb.DESCRIPTOR.enum_types_by_name.values(), key=lambda item: item.name):
        lines += [f"{enum.name}.{value.name} = {value.number}" for value in enum.values]
    for method in pb.DESCRIPTOR.services_by_name["Inference"].methods:
        lines.append(f"Inference.{method.name}: {method.input_type.name} -> {method.output_type.name}")
    golden = ROOT / "tests" / "golden" / "inference_descriptor.txt"
    assert "\n".join(lines) + "\n" == golden.read_text()
