"""Who is let in by the gate to what, with keys and without."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import ConfigError, ForbiddenError, OverloadedError, UnauthenticatedError
from wattserve_server.service.caller import Caller, of_peer
from wattserve_server.service.gate import (
    ANY,
    HTTP_NEEDS,
    NEEDS,
    OPEN,
    SHORT_BYTES,
    TENANT_HEADER,
    Gate,
    KeyFile,
)
from wattserve_server.service.keys import (
    ADMIN,
    PREDICT,
    READ_ALL,
    READ_OWN,
    RIGHTS,
    ApiKey,
    changing,
    new_key,
)
from wattserve_server.service.quota import Quotas

REMOTE = "ipv4:192.0.2.7:40000"


def context(key: str = "", peer: str = REMOTE, **headers: str) -> Any:
    shown = {"authorization": f"Bearer {key}"} if key else {}
    given = [(name.replace("_", "-"), value) for name, value in (shown | headers).items()]
    return SimpleNamespace(peer=lambda: peer, invocation_metadata=lambda: tuple(given))


class File:
    """A file of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with changing(path):
            pass

    def add(self, tenant: str, *may: str, rate: float = 0.0, names: tuple[str, ...] = ()) -> str:
        text, key = new_key(tenant, may, rate, 0, names)
        with changing(self.path) as keys:
            keys[key.id] = key
        return text

    def gate(self, **how: bool) -> Gate:
        return Gate(KeyFile(str(self.path)), Quotas(lambda: 0.0), **how)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "keys.toml")


def test_every_method_of_every_service_has_its_row() -> None:
    services = [
        pb.DESCRIPTOR.services_by_name["Inference"],
        oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    ]
    names = [method.name for service in services for method in service.methods]
    assert len({*names, *HTTP_NEEDS}) == len(names) + len(HTTP_NEEDS), (
        "one table for all services needs names of their own"
    )
    assert {*names, *HTTP_NEEDS} == set(NEEDS)
    assert set(NEEDS.values()) == {OPEN, ANY, *RIGHTS}
    opened = {name for name, needed in NEEDS.items() if needed == OPEN}
    assert opened == {"Check", "Watch", "ServerLive", "ServerReady", "ModelReady", "Health"}


@pytest.mark.parametrize("method", NEEDS)
def test_with_keys_nothing_but_health_and_readiness_is_open(file: File, method: str) -> None:
    gate = file.gate()
    if NEEDS[method] == OPEN:
        assert method in gate.unguarded
        return
    assert method not in gate.unguarded
    for peer in (REMOTE, "ipv4:127.0.0.1:1", "unix:"):
        with pytest.raises(UnauthenticatedError, match="asks for an API key"):
            gate.admit(method, context(peer=peer))


@pytest.mark.parametrize("right", RIGHTS)
def test_a_key_may_what_it_may_and_no_more(file: File, right: str) -> None:
    key = file.add("shop", right)
    gate = file.gate()
    for method, needed in NEEDS.items():
        if needed == OPEN:
            continue
        implied = needed == READ_OWN and right == READ_ALL
        if needed in (ANY, right) or implied:
            gate.admit(method, context(key))
        else:
            with pytest.raises(ForbiddenError, match=f"needs the right {needed}, which key .* has not"):
                gate.admit(method, context(key))


def test_a_tenant_sees_its_own_receipts_and_who_reads_all_sees_all(file: File) -> None:
    own, everything = file.add("shop", READ_OWN), file.add("audit", READ_ALL)
    gate = file.gate()
    shop, audit = gate.admit("GetReceipt", context(own)), gate.admit("GetReceipt", context(everything))
    assert (shop.sees("shop"), shop.sees("bank"), shop.sees("")) == (True, False, False)
    assert audit.sees("shop")
    shop.check_watches()  # its own
    assert str(shop) == f"key {own.split('_')[1]} of tenant shop"


@pytest.mark.parametrize(
    ("peer", "name", "is_local"),
    [
        ("ipv4:127.0.0.1:5000", "ipv4:127.0.0.1:5000", True),
        ("ipv6:%5B::1%5D:5000", "ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::ffff:127.0.0.1]:5000", "ipv6:[::ffff:127.0.0.1]:5000", True),
        ("unix:/run/w.sock", "unix:", False),
        (REMOTE, "ipv4:192.0.2.7", False),
        ("ipv6:%5B2001:db8::1%5D:5000", "ipv6:2001:db8::1", False),
        ("ipv6:[::ffff:192.0.2.7]:5000", "ipv6:::ffff:192.0.2.7", False),
        ("vsock:3:5000", "vsock:3", False),
        ("", ":", False),
    ],
)
def test_without_keys_only_this_machine_administers_unless_told_otherwise(
    peer: str, name: str, is_local: bool
) -> None:
    found = of_peer(peer)
    assert (found.name, ADMIN in found.may) == (name, is_local)
    shut, opened = Gate(None, Quotas()), Gate(None, Quotas(), opens_admin=True)
    guarded = {method for method, needed in NEEDS.items() if needed == ADMIN}
    for gate in (shut, opened):
        assert gate.unguarded == NEEDS.keys() - guarded
    for method in guarded:
        opened.admit(method, context(peer=peer)).check_watches()
        if is_local:
            shut.admit(method, context(peer=peer)).check_watches()
        else:
            with pytest.raises(ForbiddenError, match="needs the right admin, which without API keys only"):
                shut.admit(method, context(peer=peer))
    opened.of_peer(peer).check_watches()
    if not is_local:
        with pytest.raises(ForbiddenError):
            shut.of_peer(peer).check_watches()


def admitted(gate: Gate, given: Any) -> Caller:
    return gate.admit("Predict", given)


def test_a_header_names_a_tenant_only_by_a_key_that_may_and_where_headers_are_trusted(file: File) -> None:
    proxy = file.add("proxy", PREDICT, READ_ALL, ADMIN, names=("shop", "bank"))
    plain = file.add("cafe", PREDICT)
    headers = {TENANT_HEADER: "bank"}
    assert admitted(file.gate(), context(proxy, **headers)).tenant == "proxy"
    trusting = file.gate(trusts_header=True)
    named = admitted(trusting, context(proxy, **headers))
    assert (named.name, named.tenant, named.may) == ("bank", "bank", (PREDICT,))
    assert admitted(trusting, context(proxy)).tenant == "proxy"
    for refused in (context(plain, **headers), context(proxy, **{TENANT_HEADER: "cafe"})):
        with pytest.raises(ForbiddenError, match=f"may not call for the tenant that {TENANT_HEADER} names"):
            trusting.admit("Predict", refused)
    assert "bank" in KeyFile(str(file.path)).keys.tenants


USED_UP = "tenant shop has used up its 1 requests a second"


def test_calls_that_are_no_predictions_count_for_the_rate(file: File) -> None:
    key = file.add("shop", PREDICT, READ_OWN, rate=1.0)
    gate = file.gate()
    shop = admitted(gate, context(key))
    gate.check_rate("Predict", shop)  # counted where it is accepted, as each of a stream is
    gate.check_rate("GetReceipt", shop)
    for method in ("GetReceipt", "Predict"):
        with pytest.raises(OverloadedError, match=USED_UP):
            gate.check_rate(method, shop)


def test_a_prediction_counts_once_and_one_that_is_refused_unread_too(file: File) -> None:
    key = file.add("shop", PREDICT, rate=1.0)
    gate = file.gate()
    shop = admitted(gate, context(key))
    gate.count_message("Predict", shop, is_refused=False, is_first=True)  # its acceptance counts it
    gate.check_rate("Predict", shop)
    gate.count_message("Predict", shop, is_refused=True, is_first=True)
    with pytest.raises(OverloadedError, match=USED_UP):
        gate.check_rate("Predict", shop)
    gate.count_message("Predict", shop, is_refused=True, is_first=True)  # he is told what was wrong with it


def test_of_a_stream_that_is_no_prediction_every_message_counts(file: File) -> None:
    key = file.add("shop", PREDICT, rate=1.0)
    gate = file.gate()
    shop = admitted(gate, context(key))
    gate.check_rate("ServerReflectionInfo", shop)
    gate.count_message("ServerReflectionInfo", shop, is_refused=False, is_first=True)
    with pytest.raises(OverloadedError, match=USED_UP):
        gate.count_message("ServerReflectionInfo", shop, is_refused=False, is_first=False)


async def test_long_messages_of_streams_of_predictions_wait_for_their_turn_and_short_ones_do_not(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = file.add("shop", PREDICT, rate=1.0)
    gate, waited_s = file.gate(), list[float]()

    async def sleep(seconds: float) -> None:
        waited_s.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    shop = admitted(gate, context(key))
    for _ in range(9):
        await gate.turn("PredictStream", shop, SHORT_BYTES)
        await gate.turn("ServerReflectionInfo", shop, SHORT_BYTES + 1)  # ends where it is one too many
    assert not waited_s
    for _ in range(4):
        await gate.turn("PredictStream", shop, SHORT_BYTES + 1)
    assert waited_s == [0.5, 1.0]


def test_a_limit_that_is_lowered_holds_for_streams_that_had_begun(file: File) -> None:
    key = file.add("shop", PREDICT)
    quotas, keys = Quotas(), KeyFile(str(file.path))
    gate = Gate(keys, quotas)
    shop = admitted(gate, context(key))
    for _ in range(3):
        quotas.take(shop)
    text = file.path.read_text()
    file.path.write_text(text.replace("requests_per_second = 0.0", "requests_per_second = 1.0"))
    assert keys.look() == frozenset()
    quotas.take(shop)
    with pytest.raises(OverloadedError, match=USED_UP):
        quotas.take(shop)


def test_a_refusal_is_logged_with_the_method_and_the_address_and_without_what_was_shown(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnauthenticatedError):
        file.gate().admit("LoadVariant", context("wattserve_planted"))
    assert "refused a call of LoadVariant from ipv4:192.0.2.7: " in caplog.text
    assert "planted" not in caplog.text


def test_a_caller_who_has_hung_up_is_refused_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    gone = SimpleNamespace(peer=str, invocation_metadata=tuple)
    with pytest.raises(ForbiddenError):
        Gate(None, Quotas()).admit("LoadVariant", gone)
    assert not caplog.text


def test_a_changed_file_is_read_again_and_says_whose_calls_must_end(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stays, goes = file.add("shop", PREDICT), file.add("bank", PREDICT)
    watched = KeyFile(str(file.path))
    assert watched.look() == frozenset()
    gone_id = goes.split("_")[1]
    with changing(file.path) as keys:
        del keys[gone_id]
    new = file.add("cafe", PREDICT)
    assert watched.look() == {gone_id}
    assert watched.look() == frozenset()
    assert list(watched.keys.by_id) == [stays.split("_")[1], new.split("_")[1]]
    assert f"2 keys; new: {new.split('_')[1]}; revoked or changed: {gone_id}" in caplog.text
    assert f", of user {os.getuid()}, has changed" in caplog.text


def test_a_change_of_thousands_of_keys_is_a_line_that_can_be_read(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file.add("shop", PREDICT)
    watched = KeyFile(str(file.path))
    with changing(file.path) as keys:
        for number in range(53):
            keys[f"{number:012x}"] = ApiKey(f"{number:012x}", "0" * 64, "shop", (PREDICT,))
    assert watched.look() == frozenset()
    assert "54 keys; new: 000000000000, " in caplog.text
    assert "000000000031 and 3 more; revoked or changed: none" in caplog.text


@pytest.mark.parametrize("change", ["broken", "gone", "writable", "empty", "blank"])
def test_a_file_that_is_no_good_changes_nothing_and_is_complained_of(
    file: File, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    key = file.add("shop", PREDICT)
    watched = KeyFile(str(file.path))
    if change == "broken":
        file.path.write_text("[[keys]")
    elif change == "gone":
        file.path.unlink()
    elif change == "empty":  # as an editor leaves it for an instant
        file.path.write_text("")
    elif change == "blank":
        file.path.write_text("\n# ours\n")
    else:
        file.path.chmod(0o666)
    assert watched.look() == frozenset()
    watched.keys.shown_by([f"Bearer {key}"])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "NO KEY WAS ADDED OR REVOKED" in record.getMessage()
    assert str(file.path) in record.getMessage()


def test_a_file_that_was_refused_for_its_mode_is_read_after_a_chmod(file: File) -> None:
    key_id = file.add("shop", PREDICT).split("_")[1]
    watched = KeyFile(str(file.path))
    with changing(file.path) as keys:
        del keys[key_id]
    file.path.chmod(0o666)
    assert watched.look() == frozenset()
    file.path.chmod(0o600)
    assert watched.look() == {key_id}


def test_the_last_key_can_be_revoked(file: File) -> None:
    key_id = file.add("shop", PREDICT).split("_")[1]
    watched = KeyFile(str(file.path))
    with changing(file.path) as keys:
        del keys[key_id]
    assert watched.look() == {key_id}


def test_a_key_with_other_limits_goes_on_and_one_with_fewer_rights_does_not(file: File) -> None:
    key_id = file.add("shop", PREDICT, ADMIN).split("_")[1]
    watched = KeyFile(str(file.path))
    text = file.path.read_text()
    file.path.write_text(text.replace("in_flight = 0", "in_flight = 9"))
    assert watched.look() == frozenset()
    assert watched.keys.by_id[key_id].in_flight == 9
    file.path.write_text(text.replace(', "admin"', ""))
    assert watched.look() == {key_id}


def test_a_server_does_not_start_with_a_file_that_is_no_good(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--keys-file {tmp_path}/no: No such file"):
        KeyFile(str(tmp_path / "no"))


def test_metrics_are_for_keys_that_read_all(file: File) -> None:
    own, everything = file.add("shop", READ_OWN), file.add("audit", READ_ALL)
    gate = file.gate()
    shown = ["", "Bearer x", f"Bearer {own}", f"Bearer {everything}", f"Bearer {everything},Bearer {own}"]
    assert [gate.reads_all(each) for each in shown] == [False, False, False, True, False]
