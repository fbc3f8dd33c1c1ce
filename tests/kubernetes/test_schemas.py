"""The manifests, built by kustomize, against published schemas; and that these catch what they should."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs.fences import ROOT, blocks
from tests.kubernetes.manifests import MANIFESTS, Made, built, mistakes, tools

PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"


@pytest.fixture(scope="module")
def of_the_page(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """What the page's own kustomization makes, with every component."""
    tools()  # or skip
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "wattserve").symlink_to(ROOT)
    (written,) = (block.text for block in blocks(PAGE) if block.language == "yaml")
    (folder / "kustomization.yaml").write_text(written)
    (folder / "keys.toml").write_text("")
    return built(folder)


def by_kind(made: list[Made]) -> dict[str, Made]:
    return {each["kind"]: each for each in made}


def test_the_pages_own_kustomization_builds_all_that_is_here(of_the_page: list[Made]) -> None:
    kinds = sorted(each["kind"] for each in of_the_page)
    assert kinds == [
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "PodMonitor", "Secret", "Service", "Service")
    ]
    (container,) = by_kind(of_the_page)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/wattserve:0.1.0-cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_schemas_have_nothing_against_it(of_the_page: list[Made]) -> None:
    assert mistakes(of_the_page) == [[] for _ in of_the_page]


@pytest.mark.parametrize("folder", ["base", "kserve"])
def test_the_schemas_have_nothing_against_what_stands_by_itself(folder: str) -> None:
    made = built(MANIFESTS / folder)
    assert mistakes(made) == [[] for _ in made]


def test_with_keys_nothing_is_left_of_what_is_in_clear(of_the_page: list[Made]) -> None:
    (container,) = by_kind(of_the_page)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "--insecure" not in container["args"]
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [list(probe.keys() & {"grpc", "exec"}) for probe in probes] == [["exec"]] * 3
    services = [each for each in of_the_page if each["kind"] == "Service"]
    ports = [(port["name"], port.get("appProtocol")) for each in services for port in each["spec"]["ports"]]
    assert sorted(ports) == [("grpc", None), ("grpc", None), ("http", None)]


def test_an_image_of_yours_reaches_kserves_runtime(tmp_path: Path) -> None:
    tools()
    (tmp_path / "kserve").symlink_to(MANIFESTS / "kserve")
    images = [{"name": "localhost/wattserve", "newName": "registry.example.org/wattserve"}]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["kserve"], "images": images}))
    (container,) = by_kind(built(tmp_path))["ClusterServingRuntime"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.org/wattserve:")


def in_container(made: Made) -> Made:
    spec = made["spec"]
    pod = spec["template"]["spec"] if "template" in spec else spec
    container: Made = pod["containers"][0]
    return container


def runtime_port(made: Made) -> Made:
    port: Made = in_container(made)["ports"][0]
    return port


SPOILED: dict[str, tuple[str, Callable[[Made], object]]] = {
    "an_unknown_field": ("Deployment", lambda made: made["spec"].update(strategie={})),
    "a_probe_without_its_port": (
        "Deployment", lambda made: in_container(made)["readinessProbe"].update(grpc={}),
    ),
    "a_word_for_a_number": (
        "HorizontalPodAutoscaler", lambda made: made["spec"].update(maxReplicas="four"),
    ),
    "an_interval_that_is_none": (
        "PodMonitor", lambda made: made["spec"]["podMetricsEndpoints"][0].update(interval="often"),
    ),
    "a_monitor_of_nothing": ("PodMonitor", lambda made: made["spec"].pop("selector")),
    "a_word_for_the_grace": (
        "InferenceService",
        lambda made: made["spec"]["predictor"].update(terminationGracePeriodSeconds="60"),
    ),
    "a_model_without_its_format": (
        "InferenceService", lambda made: made["spec"]["predictor"]["model"].pop("modelFormat"),
    ),
    "a_runtime_without_containers": ("ClusterServingRuntime", lambda made: made["spec"].pop("containers")),
    "an_unknown_field_of_a_port": ("ClusterServingRuntime", lambda made: runtime_port(made).update(port=1)),
    "an_image_that_is_a_number": ("ClusterServingRuntime", lambda made: in_container(made).update(image=1)),
}  # fmt: skip


def test_the_schemas_object_to_what_is_spoiled(of_the_page: list[Made]) -> None:
    whole = by_kind(of_the_page) | by_kind(built(MANIFESTS / "kserve"))
    made = []
    for kind, spoil in SPOILED.values():
        made.append(copy.deepcopy(whole[kind]))
        spoil(made[-1])
    told = dict(zip(SPOILED, mistakes(made), strict=True))
    assert [name for name, found in told.items() if not found] == []
