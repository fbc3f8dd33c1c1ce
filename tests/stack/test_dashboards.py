"""What the dashboards' files say by themselves; needs neither Grafana nor Prometheus."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import combinations
from typing import Any

import pytest
import yaml

from deploy.grafana.making.__main__ import documents
from deploy.grafana.making.panels import VARIANTS
from tests.stack.dashboards import (
    FOLDER,
    LABEL,
    NAMES,
    REPLACED,
    ROOT,
    VARIABLE,
    Expression,
    expressions,
    load,
    panels,
)
from wattserve_server.config import ServerConfig
from wattserve_server.telemetry.table import MetricSpec, SeriesType, all_metrics

UNITS = {"none", "short", "reqps", "percentunit", "s", "joule", "watt", "bytes"}
"""Of the ids that Grafana knows; an unknown one would be shown as text behind the number."""

NAME = re.compile(r"\b(?:wattserve|grpc_server|nv_gpu|process)_[a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:wattserve|grpc_server|nv_gpu)_[a-z0-9_]+)\{([^}]*)\}")
RECORDED = re.compile(r"\b\w+:\w+:\w+\b")


def series() -> dict[str, MetricSpec]:
    """By the names that a query uses."""
    named: dict[str, MetricSpec] = {}
    for metric in all_metrics():
        if metric.type is SeriesType.HISTOGRAM:
            named |= {f"{metric}_{part}": metric for part in ("bucket", "sum", "count")}
        else:
            named[metric.name] = metric
    return named


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_dashboards_are_what_the_generator_makes() -> None:
    made = documents()
    assert sorted(made) == sorted(path.name for path in FOLDER.iterdir())
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, "python -m deploy.grafana.making"


@pytest.mark.parametrize("expression", expressions(), ids=str)
def test_a_panel_asks_for_metrics_and_labels_that_are_declared(expression: Expression) -> None:
    known = series()
    assert set(RECORDED.findall(expression.text)) <= {rule.get("record") for rule in rules()}
    plain = RECORDED.sub("", expression.text)
    names = [name for name in NAME.findall(plain) if not name.startswith("process_")]
    unknown = [name for name in names if name not in known]
    assert not unknown
    for name, selector in SELECTOR.findall(expression.text):
        labels = set(re.findall(r"(\w+)\s*[!=]", selector)) - {"instance", "le"}
        assert labels <= set(known[name].labels), name


def test_rules_ask_for_metrics_that_are_declared_or_recorded() -> None:
    known, recorded = series(), {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        used = RECORDED.sub("", rule["expr"])
        assert [name for name in NAME.findall(used) if name not in known] == []
        assert set(RECORDED.findall(rule["expr"])) <= recorded


def test_every_alert_says_what_to_do_and_is_documented() -> None:
    guide = (ROOT / "docs" / "how-to" / "grafana.md").read_text()
    alerts = [rule for rule in rules() if "alert" in rule]
    for alert in alerts:
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert set(alert["annotations"]) == {"summary", "action"}
        assert f"`{alert['alert']}`" in guide, alert["alert"]
    assert set(re.findall(r"`(Wattserve\w+)`", guide)) == {alert["alert"] for alert in alerts}


def test_every_alert_has_a_scenario_in_which_it_fires() -> None:
    scenarios = (ROOT / "deploy" / "prometheus" / "rules_test.yml").read_text()
    fired = set(re.findall(r'alertname="(\w+)"', scenarios))
    assert fired == {rule["alert"] for rule in rules() if "alert" in rule}


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_can_be_read(name: str) -> None:
    made = load(name)
    variables = {each["name"] for each in made["templating"]["list"]}
    titles = [panel["title"] for panel in panels(made)]
    assert len(titles) == len(set(titles))
    rows = [panel for panel in made["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in (*rows, *panels(made))]
    assert len(ids) == len(set(ids))
    for panel in panels(made):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["description"].endswith("."), panel["title"]
        assert defaults.get("unit", "none") in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            used = {first or second for first, second in VARIABLE.findall(target["expr"])}
            assert used <= variables | {"__rate_interval", "__range"}
            assert used <= set(REPLACED)
            assert target["legendFormat"]


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_lies_on_another_one(name: str) -> None:
    made = load(name)
    lines = [made["panels"], *(panel["panels"] for panel in made["panels"] if panel["type"] == "row")]
    for line in lines:
        for one, other in combinations([panel["gridPos"] for panel in line], 2):
            apart = (
                one["x"] + one["w"] <= other["x"]
                or other["x"] + other["w"] <= one["x"]
                or one["y"] + one["h"] <= other["y"]
                or other["y"] + other["h"] <= one["y"]
            )
            assert apart, (one, other)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in line)


def test_a_variant_has_one_colour_and_no_other_variant_has_it() -> None:
    colours: dict[str, set[str]] = defaultdict(set)
    for panel in (panel for name in NAMES for panel in panels(load(name))):
        overrides = panel["fieldConfig"]["overrides"]
        if any(override["matcher"]["options"] == "/^fp32(@|$)/" for override in overrides):
            for override in overrides:
                (change,) = override["properties"]
                colours[override["matcher"]["options"]].add(change["value"]["fixedColor"])
    assert len(colours) == 13
    assert all(len(each) == 1 for each in colours.values())
    assert len(set.union(*colours.values())) == 13


def test_every_variant_of_the_catalogue_has_a_colour() -> None:
    table = (ROOT / "docs" / "variants.md").read_text().split("## The catalogue")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `([\w-]+)` ", table, re.MULTILINE)) | {"none"} == set(VARIANTS)


def test_the_cells_of_a_sweep_can_be_marked_by_the_labels_that_loadgen_gives() -> None:
    (cells,) = load("sweep")["annotations"]["list"]
    assert cells["enable"] is False
    guide = (ROOT / "docs" / "how-to" / "grafana.md").read_text()
    documented = re.search(rf"^\| `{cells['expr']}` \|(.*?)\|", guide, re.MULTILINE)
    assert documented is not None
    shown = LABEL.findall(cells["titleFormat"] + cells["textFormat"])
    assert set(shown) == set(re.findall(r"`(\w+)`", documented[1]))


def test_grafana_finds_the_dashboards_and_the_source_that_they_start_with() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "wattserve.yaml").read_text())["providers"]
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    mounted = dict(volume.removesuffix(":ro").split(":") for volume in services["grafana"]["volumes"])
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert "./prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]
    assert source["url"] == "http://prometheus:9090"
    scraping = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]
    (job,) = scraping["scrape_configs"]
    assert job["file_sd_configs"] == [{"files": ["targets.yml"]}]
    by_hand, in_compose = (
        yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())
        for name in ("targets.yml", "targets.compose.yml")
    )
    assert by_hand == [{"targets": [f"127.0.0.1:{ServerConfig().metrics_port}"]}]
    assert in_compose == [{"targets": ["server:9464"]}]
    assert (
        "./prometheus/targets.compose.yml:/etc/prometheus/targets.yml:ro" in services["prometheus"]["volumes"]
    )
    assert "server" in services
    for name in NAMES:
        variable = load(name)["templating"]["list"][0]
        assert variable["current"]["value"] == source["uid"]
