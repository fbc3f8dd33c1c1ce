"""Where a client's servers are, and the options of its channel."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from wattserve_client import AsyncClient, Client, Tls, Unavailable
from wattserve_client._channel import Link
from wattserve_client._servers import list_of
from wattserve_common.arguments import host_and_port


def link(target: Any, retry: bool = True, tls: bool | Tls = False) -> Link:
    return Link(target, timeout_s=30, retry=retry, tls=tls)


def options(made: Link) -> dict[str, Any]:
    found = dict(made.options)
    assert len(found) == len(made.options)
    return found


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("gpu-1.example:1", ("gpu-1.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "address",
    ["gpu-1", "gpu-1:", ":50051", "gpu-1:0", "gpu-1:65536", "gpu-1:http", "::1:50051", "[]:1", "unix:/tmp/x"],
)
def test_each_of_several_addresses_must_be_one(kind: Any, address: str) -> None:
    with pytest.raises(ValueError, match="is not of the form host:port"):
        kind(["gpu-0:50051", address])


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_several_addresses_are_some_and_differ(kind: Any) -> None:
    with pytest.raises(ValueError, match="target is empty"):
        kind([])
    with pytest.raises(ValueError, match="target names 'gpu-0:1' twice"):
        kind(["gpu-0:1", "gpu-0:1"])


def test_numeric_addresses_become_one_list_of_their_family() -> None:
    assert list_of(["10.0.0.1:1", "10.0.0.2:2"]) == "ipv4:10.0.0.1:1,10.0.0.2:2"
    assert list_of(["[::1]:1", "[fe80::2]:2"]) == "ipv6:[::1]:1,[fe80::2]:2"
    assert list_of(["10.0.0.1:1", "[::1]:2"]) == "ipv6:[::ffff:10.0.0.1]:1,[::1]:2"


def test_a_host_name_becomes_all_its_numeric_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"gpu-1": ["10.0.0.1"], "gpu-2": ["10.0.0.2", "10.0.0.3", "10.0.0.2"]}

    def look_up(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert list_of(["gpu-1:1", "gpu-2:2"]) == "ipv4:10.0.0.1:1,10.0.0.2:2,10.0.0.3:2"


def test_names_are_each_named_when_none_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    both = r"the name 'gpu-1' has no address: .*not known; the name 'gpu-2' has no address: .*not known"
    with pytest.raises(Unavailable, match=both) as caught:
        Client(["gpu-1:1", "gpu-2:2"])
    assert caught.value.target == "gpu-1:1, gpu-2:2"


@pytest.mark.parametrize("missing", ["gpu-1", "gpu..1"], ids=["unknown", "not of the form of a name"])
def test_a_name_without_an_address_is_passed_over_for_those_with_one(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        host.encode("idna")  # as the real one does
        if host == "gpu-2":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", 0))]
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert list_of([f"{missing}:1", "gpu-2:2"]) == "ipv4:10.0.0.2:2"


@pytest.mark.parametrize("target", ["gpu-1:50051", ["gpu-1:50051"], "dns:///gpu-1:50051", "unix:/tmp/x"])
def test_a_single_address_is_left_to_grpc_as_it_is(target: Any) -> None:
    made = link(target)
    assert made.target == made._grpc_target == (target if isinstance(target, str) else target[0])
    assert "loadBalancingConfig" not in json.loads(options(made)["grpc.service_config"])


@pytest.mark.parametrize("retry", [True, False])
def test_several_addresses_take_turns_with_and_without_retries(retry: bool) -> None:
    made = link(("10.0.0.1:1", "10.0.0.2:2"), retry)
    config = json.loads(options(made)["grpc.service_config"])
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    assert config["healthCheckConfig"] == {"serviceName": "wattserve.v1.Inference"}
    assert ("methodConfig" in config) is retry
    assert made.target == "10.0.0.1:1, 10.0.0.2:2"


def test_without_retries_a_single_address_needs_no_service_config() -> None:
    assert "grpc.service_config" not in options(link("h:1", retry=False))


def test_a_vanished_server_is_noticed_while_a_call_waits_and_never_by_a_forbidden_ping() -> None:
    found = options(link("h:1"))
    assert found["grpc.keepalive_timeout_ms"] <= 10_000
    assert found["grpc.keepalive_time_ms"] >= 20_000  # twice what the server allows
    assert found["grpc.http2.max_pings_without_data"] == 0  # no limit: a silent wait may be long
    # Without an open call there is no ping, which other servers than ours would take ill.
    assert "grpc.keepalive_permit_without_calls" not in found


@pytest.mark.parametrize(
    ("target", "tls", "name"),
    [
        ("gpu-1:1", True, None),  # the host's own
        ("gpu-1:1", Tls(server_name="wattserve.test"), "wattserve.test"),
        (["127.0.0.1:1", "127.0.0.1:2"], True, "127.0.0.1"),
        (["10.0.0.1:1", "10.0.0.2:1"], Tls(server_name="wattserve.test"), "wattserve.test"),
        (["10.0.0.1:1", "10.0.0.2:1"], False, None),
    ],
)
def test_the_name_that_a_certificate_must_show(target: Any, tls: bool | Tls, name: str | None) -> None:
    assert options(link(target, tls=tls)).get("grpc.ssl_target_name_override") == name


def test_several_hosts_with_tls_need_the_name_that_all_certificates_show() -> None:
    with pytest.raises(ValueError, match=r"Tls\.server_name must say which"):
        options(link(["10.0.0.1:1", "10.0.0.2:1"], tls=True))
