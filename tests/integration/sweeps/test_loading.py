"""Small sweeps over every wire: streams, worker processes, TLS; and servers that load variants late."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fixtures.fake_server.child import ChildServer
from tests.fixtures.fake_server.memory import MemoryServer, memory_servers
from tests.fixtures.fake_server.metered import Metered
from tests.fixtures.loadgen_data import make_labelled
from tests.fixtures.loadgen_sweeps import Told, arguments, measured
from tests.fixtures.ports import free_ports
from wattserve_loadgen import cli
from wattserve_loadgen.errors import PlanError, TargetError
from wattserve_loadgen.plan.load import closed
from wattserve_loadgen.results.records import read_records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "rows")


@pytest.fixture(scope="module")
def server() -> Iterator[ChildServer]:
    with ChildServer(Metered()) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({"stream": True}, "native stream"),
        ({"processes": 2}, "native unary"),
        ({"loads": (closed(4, sequences=1),)}, "native unary"),
    ],
    ids=["stream", "two processes", "unary"],
)
def test_every_answer_is_right_and_paid_for_on_every_wire(
    server: ChildServer, data: Path, tmp_path: Path, options: dict[str, Any], protocol: str
) -> None:
    found = measured(server, data, tmp_path / "out", least_requests=20, **options)
    assert (found.ended, found.targets[0].protocol) == ("complete", protocol)
    (cell,) = found.cells
    assert (cell.failed, cell.answered >= 20) == (0, True)
    assert cell.energy.receipts_residual_uj == 0
    records = list(read_records(tmp_path / "out"))
    assert all(record.predicted == record.labels for record in records)
    assert {record.energy_state for record in records} == {"settled"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    found = {"ca": folder / "ca.pem"}
    authority.cert_pem.write_to_path(str(found["ca"]))
    for name, who in (("server", "127.0.0.1"), ("named", "wattserve"), ("client", "app@example.org")):
        issued = authority.issue_cert(who)
        found[f"{name}-cert"], found[f"{name}-key"] = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(found[f"{name}-cert"]))
        issued.private_key_pem.write_to_path(str(found[f"{name}-key"]))
    return found


def test_a_sweep_over_tls_shows_the_clients_certificate_and_without_it_nobody_answers(
    data: Path, tmp_path: Path, certificates: dict[str, Path]
) -> None:
    files = [certificates[name] for name in ("server-key", "server-cert", "ca")]
    authority: dict[str, Any] = {"tls_ca": certificates["ca"]}
    own: dict[str, Any] = {"tls_cert": certificates["client-cert"], "tls_key": certificates["client-key"]}
    with ChildServer(Metered(), tls=files) as server:
        found = measured(server, data, tmp_path / "out", **authority, **own)
        assert (found.ended, found.cells[0].failed) == ("complete", 0)
        nothing: dict[str, Any] = {}
        for too_little in (nothing, authority):
            with pytest.raises(TargetError, match=f"{server.address} does not answer: UNAVAILABLE"):
                measured(server, data, tmp_path / "refused", **too_little)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("stream", [False, True])
def test_a_certificate_may_show_another_name_than_the_address(
    stream: bool, data: Path, tmp_path: Path, certificates: dict[str, Path]
) -> None:
    files = [certificates[name] for name in ("named-key", "named-cert", "ca")]
    own = {f"tls_{name}": certificates[f"client-{name}"] for name in ("cert", "key")}
    tls: dict[str, Any] = {"tls_ca": certificates["ca"], **own}
    with ChildServer(Metered(), tls=files) as server:
        found = measured(server, data, tmp_path / "out", **tls, tls_server_name="wattserve", stream=stream)
        assert (found.ended, found.cells[0].failed) == ("complete", 0)
        with pytest.raises(TargetError, match=f"{server.address} does not answer: UNAVAILABLE"):
            measured(server, data, tmp_path / "refused", **tls)


def test_a_certificate_that_is_none_is_named_by_its_option(data: Path, tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("none")
    with pytest.raises(PlanError, match=r"^--tls-ca .*none\.pem: not a certificate in PEM"):
        measured(MemoryServer(Metered()), data, tmp_path / "out", tls_ca=tmp_path / "none.pem")


def test_a_variant_that_is_loaded_late_is_marked_by_what_it_turned_out_to_be(
    data: Path, tmp_path: Path
) -> None:
    late = MemoryServer(Metered(lazy="int8", proxy="int8"))
    found = measured(late, data, tmp_path / "out", variants=("fp32", "int8"))
    assert found.ended == "complete"
    assert {cell.arm: cell.proxy for cell in found.cells} == {"fp32": "", "int8": "products in fp32"}
    assert "int8 is a proxy: products in fp32." in found.notes
    about = {one["name"]: one for one in found.targets[0].server["variants"]}
    assert (about["int8"]["state"], about["int8"]["proxy"]) == ("ready", "products in fp32")


def test_a_dry_run_sends_no_request_and_leaves_no_folder(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = MemoryServer(Metered(die_after=1))  # a single request would end it
    with memory_servers():
        assert cli.main(arguments(server, data, tmp_path / "out", "--dry-run", "--metrics-port", "1")) == 0
    assert not server.is_dead
    assert "order of block 1:" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_sweep_whose_metrics_port_is_taken_measures_nothing(data: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PlanError, match=r"--metrics-port \d+: cannot be had"):
            measured(MemoryServer(Metered()), data, tmp_path / "out", metrics_port=taken.getsockname()[1])
    assert not (tmp_path / "out").exists()


def test_the_metrics_port_is_free_again_after_the_sweep(data: Path, tmp_path: Path) -> None:
    told = Told()
    (port,) = free_ports(1)
    for name in ("one", "two"):
        measured(MemoryServer(Metered()), data, tmp_path / name, told, metrics_port=port)
    assert told.lines.count(f"metrics of the running cell: http://127.0.0.1:{port}/metrics") == 2
