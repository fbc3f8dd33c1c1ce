"""What is refused before Ray is asked for anything, and the configuration file that is shipped."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import ConfigError
from wattserve_server.ray_serve import application, ingress
from wattserve_server.ray_serve.services import together

CONFIG = yaml.safe_load((Path(__file__).parents[4] / "deploy" / "ray" / "serve.yaml").read_text())


def test_the_shipped_file_names_what_is_there() -> None:
    (made,) = CONFIG["applications"]
    config = application.config_of(made["args"])
    assert (config.model, config.device, config.threads) == ("demo", "cpu", 1)
    assert made["import_path"] == f"{application.__name__}:{application.app.__name__}"
    functions = {
        f"{ingress.__name__}.{name}" for name in ("add_inference", "add_open_inference", "add_health")
    }
    assert set(CONFIG["grpc_options"]["grpc_servicer_functions"]) == functions
    (deployment,) = made["deployments"]
    assert deployment["name"] == application.DEPLOYMENT
    assert deployment["autoscaling_config"]["target_ongoing_requests"] == application.ONGOING


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"modell": "demo"}, "'modell' is no setting"),
        ({"port": 1}, "port is of a server that listens itself"),
        ({"keys_file": "keys.toml"}, "keys_file is of a server"),
        ({"device": "cpu", "account_book": "book.sqlite3"}, "a file has one writer"),
        ({"device": "cuda:1"}, "the one device that Ray gives it"),
        ({"device": "cpu", "max_batch_sequences": 0}, "--max-batch-sequences 0"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        application.config_of(settings)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray Serve needs ray: pip install 'wattserve\[ray\]'"):
        application.app({"device": "cpu"})


def test_another_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = ModuleType("ray")
    other.__version__, other.serve = "2.9.3", ModuleType("ray.serve")
    monkeypatch.setitem(sys.modules, "ray", other)
    monkeypatch.setitem(sys.modules, "ray.serve", other.serve)
    with pytest.raises(ConfigError, match=r"Ray 2\.9\.3 is installed, and this was made for Ray 2\.60"):
        application.app({"device": "cpu"})


def test_the_ledgers_of_replicas_stand_in_one_report() -> None:
    def report(instance: str, amount_uj: int) -> pb.EnergyReport:
        other = pb.EnergyReport(device="cpu", measured_uj=1)
        return pb.EnergyReport(
            device="cuda:0", instance_id=instance, measured_uj=amount_uj, other_devices=[other]
        )

    whole = together({"b": report("second", 20), "a": report("first", 10)})
    told = [(ledger.device, ledger.measured_uj) for ledger in (whole, *whole.other_devices)]
    assert told == [("cuda:0", 10), ("cpu", 1), ("cuda:0@b", 20), ("cpu@b", 1)]
    assert [len(ledger.other_devices) for ledger in whole.other_devices] == [0, 0, 0]
