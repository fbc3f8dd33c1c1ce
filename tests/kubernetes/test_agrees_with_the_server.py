"""What deploy/kubernetes says of the server is what the server takes, listens on, tells and needs."""

from __future__ import annotations

import argparse
import re
import tomllib
from typing import Any

import pytest

from tests.kubernetes.manifests import MANIFESTS, ROOT, Made, of_file
from wattserve_server.accounts import writer
from wattserve_server.app import CLOSING_S
from wattserve_server.config import ServerConfig, add_flags, read_config, unknown_variables
from wattserve_server.service.prediction import SETTLEMENT_LIMIT_S
from wattserve_server.telemetry.table import QUEUE

(DEPLOYMENT,) = of_file("base/deployment.yaml")
(KEYS,) = of_file("keys/deployment.yaml")
(GPU,) = of_file("gpu/deployment.yaml")
(RUNTIME,) = of_file("kserve/clusterservingruntime.yaml")
(SERVICE,) = of_file("kserve/inferenceservice.yaml")
(HPA,) = of_file("monitoring/hpa.yaml")
(MONITOR,) = of_file("monitoring/podmonitor.yaml")
(BASIS,) = of_file("base/kustomization.yaml")
SETTINGS: dict[str, str] = dict(line.split("=", 1) for line in BASIS["configMapGenerator"][0]["literals"])


def container_of(made: Made) -> Made:
    (container,) = made["spec"]["template"]["spec"]["containers"]
    return dict(container)


BASE = container_of(DEPLOYMENT)
RUN: Made = RUNTIME["spec"]["containers"][0]


def variables(container: Made) -> dict[str, str]:
    """Those with a value of their own; of one that Kubernetes fills in, a number."""
    return {each["name"]: each.get("value", "1") for each in container["env"] if each["name"] != BOOK}


BOOK = "WATTSERVE_ACCOUNT_BOOK"


@pytest.mark.parametrize(
    ("container", "environment"),
    [
        (BASE, SETTINGS | variables(BASE)),
        (BASE | container_of(GPU), SETTINGS | variables(BASE) | variables(container_of(GPU))),
        (BASE | container_of(KEYS), SETTINGS | variables(BASE) | variables(container_of(KEYS))),
        (RUN, variables(RUN)),
    ],
    ids=["base", "gpu", "keys", "kserve"],
)
def test_the_server_takes_what_they_say(container: Made, environment: dict[str, str]) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    command, *flags = container["args"]
    assert command == "serve"
    config = read_config(vars(parser.parse_args(flags)), environment)
    assert unknown_variables(environment) == []
    assert config.host == config.metrics_address == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports.get("grpc", ports.get("h2c")) == config.port


def test_ports_agree() -> None:
    ports = {port["name"]: port["containerPort"] for port in BASE["ports"]}
    assert ports == {"grpc": ServerConfig().port, "metrics": ServerConfig().metrics_port}
    for service in of_file("base/service.yaml"):
        (port,) = service["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (ports["grpc"], "grpc")
    assert [each["port"] for each in MONITOR["spec"]["podMetricsEndpoints"]] == ["metrics"]
    annotations = RUNTIME["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/port"] == str(ServerConfig().metrics_port)


@pytest.mark.parametrize("container", [BASE, RUN], ids=["base", "kserve"])
def test_probes_ask_the_grpc_port(container: Made) -> None:
    (grpc, *_) = container["ports"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["grpc"] == {"port": grpc["containerPort"]}


@pytest.mark.parametrize(
    ("pod", "container", "drain_s"),
    [
        (DEPLOYMENT["spec"]["template"]["spec"], BASE, SETTINGS["WATTSERVE_DRAIN_SECONDS"]),
        (SERVICE["spec"]["predictor"], RUN, variables(RUN)["WATTSERVE_DRAIN_SECONDS"]),
    ],
    ids=["base", "kserve"],
)
def test_a_pod_is_given_longer_than_its_end_may_take(pod: Made, container: Made, drain_s: str) -> None:
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    longest_s = int(seconds) + int(drain_s) + SETTLEMENT_LIMIT_S + writer.CLOSING_S + CLOSING_S
    assert pod["terminationGracePeriodSeconds"] > longest_s


def test_a_service_of_the_same_name_sets_no_setting() -> None:
    assert "wattserve" in {service["metadata"]["name"] for service in of_file("base/service.yaml")}
    assert DEPLOYMENT["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_autoscaler_asks_for_a_metric_that_the_server_and_the_adapter_offer() -> None:
    (metric,) = HPA["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert name == QUEUE.name
    (values,) = of_file("monitoring/prometheus-adapter.values.yaml")
    (rule,) = values["rules"]["custom"]
    assert rule["name"]["as"] == name
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert metric["pods"]["target"]["averageValue"] == str(ServerConfig().max_batch_sequences)
    assert HPA["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]


def test_a_pod_has_one_gpu_whole_and_its_successor_waits_for_it() -> None:
    limits = container_of(GPU)["resources"]["limits"]
    assert [(name, count) for name, count in limits.items() if "nvidia" in name] == [("nvidia.com/gpu", "1")]
    assert GPU["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_images_are_those_that_make_image_makes() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert BASE["image"] == RUN["image"] == f"localhost/wattserve:{version}-cpu"
    (image,) = of_file("gpu/kustomization.yaml")[0]["images"]
    assert image == {"name": "localhost/wattserve", "newTag": f"{version}-cuda"}


def test_the_image_has_what_the_manifests_run() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    probe = container_of(KEYS)["readinessProbe"]["exec"]["command"]
    assert f"deploy/image/healthcheck.py {probe[1]}" in dockerfile
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    security: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]["securityContext"]
    assert user == (str(security["runAsUser"]), str(security["runAsGroup"]))
    assert '"postgres"' in dockerfile  # the account book that pods share


def test_all_files_stand_in_a_kustomization() -> None:
    apart = {"monitoring/prometheus-adapter.values.yaml"}  # of Helm
    for folder in sorted(path for path in MANIFESTS.iterdir() if path.is_dir()):
        (kustomization,) = of_file(f"{folder.name}/kustomization.yaml")
        named = {*kustomization.get("resources", [])}
        named |= {patch["path"] for patch in kustomization.get("patches", []) if "path" in patch}
        there = {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
        assert {name for name in there if f"{folder.name}/{name}" not in apart} == named
