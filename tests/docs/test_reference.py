"""docs/reference is what the code says today, whatever the terminal."""

from __future__ import annotations

import os
import tomllib
from types import ModuleType

import pytest

from tests.docs.reference import FOLDER, pages, protocol, settings
from wattserve_proto.oip import open_inference_pb2
from wattserve_proto.v1 import inference_pb2
from wattserve_server.config import ServerConfig, read_config

NAMES = ("cli.md", "configuration.md", "protocol.md", "results.md")


@pytest.mark.parametrize("name", NAMES)
def test_a_generated_page_is_not_stale(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "python -m tests.docs.reference"


def test_the_width_of_the_terminal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = pages()
    monkeypatch.setitem(os.environ, "COLUMNS", "200")
    assert pages() == narrow


def test_the_example_file_is_one_that_the_server_takes(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("config") / "wattserve.toml"
    path.write_text(settings.EXAMPLE)
    assert read_config({"config": str(path)}, {}) == ServerConfig(
        model="./my-classifier", variants="fp32,bf16,int8", max_wait_ms=2.0
    )
    assert len(tomllib.loads(settings.EXAMPLE)) == 4


@pytest.mark.parametrize(
    ("file", "descriptor"),
    [("v1/inference.proto", inference_pb2), ("oip/open_inference.proto", open_inference_pb2)],
)
def test_the_page_of_the_protocol_leaves_no_field_out(file: str, descriptor: ModuleType) -> None:
    read = protocol.read((protocol.PROTO / file).read_text())
    shown = {
        f"{name}.{field.name}": field.number
        for entry in read
        for name, message in protocol._nested(entry)
        for field in protocol._flat(message)
    }
    declared: dict[str, str] = {}
    waiting = list(descriptor.DESCRIPTOR.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting += [each for each in message.nested_types if not each.GetOptions().map_entry]
        name = message.full_name.removeprefix(f"{message.file.package}.")
        declared |= {f"{name}.{field.name}": str(field.number) for field in message.fields}
    for enum in descriptor.DESCRIPTOR.enum_types_by_name.values():
        declared |= {f"{enum.name}.{value.name}": str(value.number) for value in enum.values}
    assert shown == declared
