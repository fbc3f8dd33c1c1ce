"""A real server that asks for API keys, over TLS: who reaches what in both protocols, rotation of keys and
certificates, and that neither keys nor texts are told to anybody."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme

from tests.clients.oip_stub import OipStub, infer_request, told
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.models import save_classifier
from tests.fixtures.server import RunningServer, running_server
from wattserve_client import Answer, Client, NotAllowed, NotFound, Overloaded, Tls, WattserveError
from wattserve_loadgen.cli import main as loadgen
from wattserve_loadgen.target.wattserve import NativeTarget
from wattserve_loadgen.target.wire import open_calls
from wattserve_proto.oip import open_inference_pb2 as oip
from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.service.keys import changing, new_key

TEXT = "planted: a very private film"
IDS = pb.PredictRequest(tokens=pb.TokenInput(sequences=[pb.TokenIds(ids=[2, 4, 3])]))


@dataclass
class World:
    """A server, its files, and the keys that were made for it."""

    server: RunningServer
    folder: Path
    ca: trustme.CA
    made: list[str]

    @property
    def target(self) -> str:
        return f"localhost:{self.server.address.rpartition(':')[2]}"

    @property
    def tls(self) -> Tls:
        return Tls(ca=self.folder / "ca.pem")

    def client(self, key: str, **more: Any) -> Client:
        return Client(self.target, tls=self.tls, api_key=key, retry=False, timeout_s=60, **more)

    def add(self, tenant: str, *may: str, rate: float = 0.0, in_flight: int = 0) -> str:
        return add(self.folder, self.made, tenant, may, rate, in_flight=in_flight)

    def channel(self) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self.ca.cert_pem.bytes())
        return grpc.secure_channel(self.target, credentials, [("grpc.use_local_subchannel_pool", 1)])

    def issue(self, ca: trustme.CA) -> None:
        issue(ca, self.folder)

    def page(self, path: str, key: str) -> str:
        url = self.server.metrics_url.removesuffix("/metrics") + path
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())


def add(
    folder: Path,
    made: list[str],
    tenant: str,
    may: Sequence[str],
    rate: float = 0.0,
    names: Sequence[str] = (),
    in_flight: int = 0,
) -> str:
    text, key = new_key(tenant, may, rate, in_flight, names)
    with changing(folder / "keys.toml") as keys:
        keys[key.id] = key
    made.append(text)
    return text


def issue(ca: trustme.CA, folder: Path) -> None:
    issued = ca.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "server.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def until(holds: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


@dataclass
class Held:
    shop: str
    bank: str
    audit: str
    boss: str
    proxy: str


@pytest.fixture(scope="module")
def keys() -> list[str]:
    return []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: list[str]) -> Iterator[World]:
    folder, ca = tmp_path_factory.mktemp("files"), trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    issue(ca, folder)
    for tenant in ("shop", "bank"):
        add(folder, keys, tenant, ["predict", "read-own"])
    add(folder, keys, "audit", ["read-all"])
    add(folder, keys, "boss", ["admin"])
    add(folder, keys, "proxy", ["predict"], names=["mall"])
    model = save_classifier(folder / "tiny")
    flags = ["--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]
    flags += ["--keys-file", str(folder / "keys.toml"), "--metrics-need-key"]
    quick = ["--variants", "fp32", "--meter", "simulated", "--calibration-seconds", "0", "--threads", "1"]
    with running_server("--model", str(model), *quick, *flags) as running:
        yield World(running, folder, ca, keys)


@pytest.fixture(scope="module")
def held(world: World) -> Held:
    return Held(*world.made[:5])


def test_without_a_known_key_only_health_and_readiness_answer(world: World) -> None:
    for key, why in (("", "asks for an API key"), (f"wattserve_{'0' * 12}_{'x' * 43}", "does not know")):
        with world.client(key) as client:
            assert client.is_ready()
            with pytest.raises(NotAllowed, match=why) as caught:
                client.predict([2, 4, 3])
            assert (caught.value.code, caught.value.reason) == ("UNAUTHENTICATED", "NO_VALID_KEY")
            with pytest.raises(NotAllowed, match=why):
                list(client.predict_many([[2, 4, 3]]))
            with pytest.raises(NotAllowed, match=why):
                next(client.watch_receipts())
    with world.channel() as channel:
        stub = OipStub(channel)
        assert stub.ServerLive(stub_request("ServerLive"), timeout=60).live
        assert stub.ServerReady(stub_request("ServerReady"), timeout=60).ready
        for name in ("ModelInfer", "ServerMetadata", "RepositoryModelUnload"):
            with pytest.raises(grpc.RpcError) as refused:
                getattr(stub, name)(stub_request(name), timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def stub_request(method: str) -> Any:
    return getattr(oip, f"{method}Request")()


def test_no_tenant_reads_finds_or_watches_anothers_receipts(world: World, held: Held) -> None:
    with (
        world.client(held.shop) as shop,
        world.client(held.bank) as bank,
        world.client(held.audit) as audit,
        world.channel() as channel,
    ):
        request = infer_request("tiny", input_ids=np.array([[2, 4, 3]], np.int64))
        request.id = "job"
        reply = OipStub(channel).ModelInfer(request, metadata=bearer(held.bank), timeout=60)
        theirs = str(told(reply)["receipt_id"])
        ours = shop.predict([2, 4, 3], request_id="job").receipt.receipt_id
        assert shop.receipt(ours, wait_until_settled=True).settled
        assert [each.receipt_id for each in shop.find_receipts("job").receipts] == [ours]
        assert [each.receipt_id for each in bank.find_receipts("job").receipts] == [theirs]
        assert {each.receipt_id for each in audit.find_receipts("job").receipts} == {ours, theirs}
        with pytest.raises(NotFound, match="it never existed"):
            shop.receipt(theirs)
        with pytest.raises(NotFound):
            next(shop.watch_receipts([theirs]))
        with pytest.raises(NotAllowed, match=r"needs the right read-all, which key \w+ of tenant") as caught:
            shop.energy_report()
        assert (caught.value.code, caught.value.reason) == ("PERMISSION_DENIED", "NOT_ALLOWED")
        with pytest.raises(NotAllowed, match="the right predict"):
            audit.predict([2, 4, 3])


async def test_who_watches_sees_its_own_alone_and_ends_when_its_key_is_revoked(
    world: World, held: Held
) -> None:
    key = world.add("shop", "read-own")
    async with grpc.aio.secure_channel(
        world.target, grpc.ssl_channel_credentials(world.ca.cert_pem.bytes())
    ) as channel:
        watching: Any = channel.unary_stream(
            "/wattserve.v1.Inference/WatchReceipts", response_deserializer=pb.Receipt.FromString
        )

        async def watch() -> Any:  # until the server has read the file, it does not know the key
            async with asyncio.timeout(60):
                while True:
                    call = watching(b"", metadata=bearer(key))
                    if await call.initial_metadata() is not None and not call.done():
                        return call
                    await asyncio.sleep(0.05)

        call = await watch()
        predict: Any = channel.unary_unary(
            "/wattserve.v1.Inference/Predict",
            request_serializer=pb.PredictRequest.SerializeToString,
            response_deserializer=pb.PredictResponse.FromString,
        )
        answers = [await predict(IDS, metadata=bearer(each), timeout=60) for each in (held.bank, held.shop)]
        seen = await call.read()
        assert seen.receipt_id == answers[1].receipt.receipt_id
        with changing(world.folder / "keys.toml") as keys:
            del keys[key.split("_")[1]]
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "was revoked or changed meanwhile" in str(ended.value.details())
        assert (await predict(IDS, metadata=bearer(held.shop), timeout=60)).receipt, "on the same connection"


def test_a_header_that_is_not_trusted_names_nobody_and_the_server_says_so(world: World, held: Held) -> None:
    assert "no header is believed without --trust-tenant-header" in world.server.error_text
    infer = infer_request("tiny", input_ids=np.array([[2, 4, 3]], np.int64))
    with world.channel() as channel:
        shown = (*bearer(held.proxy), ("x-wattserve-tenant", "mall"))
        OipStub(channel).ModelInfer(infer, metadata=shown, timeout=60)
    text = world.page("/metrics", held.audit)
    assert 'wattserve_tenant_requests_total{code="OK",tenant="proxy"} 1.0' in text
    assert 'wattserve_tenant_requests_total{code="OK",tenant="mall"} 0.0' in text


def test_loading_needs_its_right_and_the_log_says_who_asked(world: World, held: Held) -> None:
    with world.client(held.shop) as shop, world.client(held.boss) as boss, world.channel() as channel:
        for load in (shop.load_variant, shop.unload_variant):
            with pytest.raises(NotAllowed, match="needs the right admin"):
                load("fp32")
        stub = OipStub(channel)
        request = stub_request("RepositoryModelLoad")
        request.model_name = "tiny"
        with pytest.raises(grpc.RpcError) as refused:
            stub.RepositoryModelLoad(request, metadata=bearer(held.shop), timeout=60)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        boss.load_variant("fp32")
        stub.RepositoryModelLoad(request, metadata=bearer(held.boss), timeout=60)
    asked = f"key {held.boss.split('_')[1]} of tenant boss asks to load fp32"
    until(lambda: world.server.error_text.count(asked) == 2)
    assert "tenant shop asks to" not in world.server.error_text


def test_a_tenants_rate_is_told_with_when_to_come_back_on_calls_and_on_streams(world: World) -> None:
    key = world.add("cafe", "predict", rate=0.001)
    with world.client(key) as cafe:
        until(lambda: answered(cafe))
        with pytest.raises(
            Overloaded, match=r"tenant cafe has used up its 0\.001 requests a second"
        ) as caught:
            cafe.predict([2, 4, 3])
        assert caught.value.retry_after_s == pytest.approx(1000, rel=0.2)
        (item,) = cafe.predict_many([[2, 4, 3]])
        assert isinstance(item.error, Overloaded)
        assert item.error.retry_after_s == pytest.approx(1000, rel=0.2)


def test_what_is_refused_unread_uses_up_a_tenants_rate(world: World) -> None:
    key = world.add("club", "predict", rate=0.001)
    with world.client(key) as club:
        until(lambda: is_known(club))
    garbage = iter((b"no message",) * 3)
    with world.channel() as channel:
        predict: Any = channel.unary_unary("/wattserve.v1.Inference/Predict")
        codes = []
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refused:
                predict(b"no message", metadata=bearer(key), timeout=60)
            codes.append(refused.value.code())
        assert codes == [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED]
        stream: Any = channel.stream_stream("/wattserve.v1.Inference/PredictStream")
        with pytest.raises(grpc.RpcError) as refused:
            list(stream(garbage, metadata=bearer(key), timeout=60))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def is_known(client: Client) -> bool:
    """Once the server has read the file; nothing is used up for it."""
    try:
        client.energy_report()
    except NotAllowed as error:
        return error.code == "PERMISSION_DENIED"
    return True


def test_a_tenant_with_as_many_predictions_in_flight_as_it_may_is_refused_one_more(world: World) -> None:
    key = world.add("bar", "predict", in_flight=1)
    with world.client(key) as bar:
        until(lambda: answered(bar))
        until(
            lambda: any(
                is_refused_one_more(item)
                for item in list(bar.predict_many([[2, 4, 3]] * 8, in_flight=8))  # all end before the next
            )
        )
        bar.predict([2, 4, 3])  # those that were refused hold no place


def is_refused_one_more(item: Answer) -> bool:
    return "tenant bar has as many predictions in flight as it may: 1" in str(item.error)


def answered(client: Client) -> bool:
    """Once the server has read the file."""
    try:
        client.predict([2, 4, 3])
    except NotAllowed:
        return False
    return True


def test_tenants_have_their_series_and_the_metrics_port_asks_for_a_key(world: World, held: Held) -> None:
    with world.client(held.shop) as shop:
        shop.predict([2, 4, 3], wait_for_settled_energy=True)
    text = world.page("/metrics", held.audit)
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("wattserve_tenant"))
    assert float(values['wattserve_tenant_requests_total{code="OK",tenant="shop"}']) >= 1
    assert float(values['wattserve_tenant_tokens_total{tenant="shop"}']) >= 3
    assert float(values['wattserve_tenant_energy_joules_total{tenant="shop"}']) > 0
    assert float(values['wattserve_tenant_in_flight_requests{tenant="shop"}']) == 0
    assert float(values['wattserve_tenant_requests_total{code="OK",tenant="boss"}']) == 0
    for path, key in (("/metrics", ""), ("/", held.shop), ("/nowhere", "x")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            world.page(path, key)
        assert refused.value.code == 401
        assert refused.value.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("stream", [False, True])
async def test_loadgen_shows_its_key(world: World, held: Held, tmp_path: Path, stream: bool) -> None:
    file = tmp_path / "key"
    file.write_text(held.shop)
    target = NativeTarget(world.target, stream=stream, tls=world.tls, api_key_file=file)
    assert (await target.server_info()).model_name == "tiny"
    assert held.shop not in repr(target.connection)
    (send,), close = open_calls(target.connection, 1)
    answer = target.read(await send(IDS.SerializeToString(), timeout=60))
    assert isinstance(answer, pb.PredictResponse)
    assert answer.receipt.receipt_id
    await close()
    await target.close()


def test_loadgen_is_told_that_its_key_may_not_read_the_ledger(
    world: World, held: Held, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(held.shop)
    files = {"--dataset": make_labelled(tmp_path / "data"), "--out": tmp_path / "out"}
    files |= {"--tls-ca": world.folder / "ca.pem", "--api-key-file": tmp_path / "key"}
    given = [word for flag, file in files.items() for word in (flag, str(file))]
    assert loadgen(["run", "--target", world.target, "--variant", "fp32", "--concurrency", "1", *given]) == 2
    told = capsys.readouterr().err
    assert f"{world.target} refuses: PERMISSION_DENIED this needs the right read-all" in told
    assert "does not answer" not in told
    assert not files["--out"].exists()


def certificate(world: World, trusted: trustme.CA) -> bool:
    """Whether a new connection is shown one of that authority."""
    context = ssl.create_default_context(cadata=trusted.cert_pem.bytes().decode())
    host, _, port = world.target.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host):
                return True
        except ssl.SSLError:
            return False


def test_a_new_certificate_is_shown_to_new_connections_and_drops_none(world: World, held: Held) -> None:
    other = trustme.CA()
    with world.client(held.shop) as client:
        client.predict([2, 4, 3])
        try:
            (world.folder / "server.pem").write_text("half of a certificate")
            assert certificate(world, world.ca), "that of before"
            world.issue(other)
            assert certificate(world, other)
            assert not certificate(world, world.ca)
            assert client.predict([2, 4, 3]).receipt, "by the connection that stands"
        finally:
            world.issue(world.ca)
        assert certificate(world, world.ca)
    assert "THE CERTIFICATE OF BEFORE IS STILL SHOWN: --tls-cert" in world.server.error_text


def test_neither_keys_nor_texts_are_told(world: World, held: Held) -> None:
    said: list[str] = []
    with world.client(held.shop) as shop, world.channel() as channel:
        stub = OipStub(channel)
        calls: list[Callable[[], Any]] = [
            lambda: shop.predict(TEXT),
            lambda: shop.predict(f"{TEXT} " * 300),
            lambda: shop.predict(f"{TEXT}\0"),
            lambda: shop.predict(TEXT, variant="none"),
            lambda: shop.load_variant("fp32"),
            lambda: [item.result() for item in shop.predict_many([f"{TEXT} " * 300])],
            lambda: stub.ModelInfer(infer_request("tiny", text=[f"{TEXT}\0"]), metadata=bearer(held.shop)),
            lambda: stub.ModelInfer(infer_request("no", text=[TEXT]), metadata=bearer(held.shop)),
            lambda: stub.ModelInfer(infer_request("tiny"), metadata=bearer(f"{held.shop}x")),
        ]
        for call in calls:
            try:
                call()
            except (WattserveError, grpc.RpcError) as error:
                said += [str(error), repr(error), str(error.__cause__)]
    assert len(said) == 3 * 8
    said += [world.page("/metrics", held.audit), world.page("/", held.audit), world.server.error_text]
    assert "refused a call of " in world.server.error_text
    for text in said:
        assert "planted" not in text
        for key in world.made:
            assert key.split("_", 2)[2] not in text
