"""Loaded servers, scraped by a real Prometheus: every panel has data, and watts agree with the ledger."""

from __future__ import annotations

import math
import re
import subprocess
import time
import urllib.request
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import pytest

from tests.stack.dashboards import LABEL, NAMES, Expression, expressions, load, replaced
from tests.stack.load import VARIANTS
from tests.stack.prometheus import INTERVAL_S, Series, Stack
from wattserve_client import Client

MEASURED = "wattserve_energy_measured_joules_total"
WINDOW_S = 20
IDLE_WATTS, BUSY_WATTS = 40, 110
"""The simulated meter's: what it draws lies between the idle watts and both together."""
PUBLISHED_EVERY_S = 0.1


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.server.address) as made:
        yield made


def test_promtool_finds_nothing_to_lint_in_the_metrics_of_a_loaded_server(
    promtool: str, stack: Stack
) -> None:
    servers = [stack.server, *([stack.gpu] if stack.gpu else [])]
    for server in servers:
        with urllib.request.urlopen(server.metrics_url, timeout=30) as answer:
            page = answer.read().decode()
        done = subprocess.run(
            [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60
        )
        assert done.stderr == ""
        assert done.returncode in ((0, 3) if done.stderr else (0,))


# -- The dashboards


@pytest.mark.parametrize("expression", expressions(), ids=str)
def test_a_panel_shows_finite_figures(stack: Stack, expression: Expression) -> None:
    if "nv_gpu_" in expression.text and stack.gpu is None:
        pytest.skip("the simulated GPU board needs a C compiler")
    found = stack.prometheus.figures(replaced(expression.text))
    assert found, "no data"
    assert all(math.isfinite(each.value) for each in found), found
    for label in LABEL.findall(expression.legend):
        assert all(label in each.labels for each in found), f"the legend asks for {label}"
    if "{{variant}}" in expression.legend and "$variant" in expression.text:
        assert set(VARIANTS) <= {each.labels["variant"] for each in found}


@pytest.mark.parametrize("name", NAMES)
def test_the_variables_of_a_dashboard_have_values(stack: Stack, name: str) -> None:
    expected = {
        "instance": {stack.target},
        "variant": set(VARIANTS),
        "baseline": set(VARIANTS),
        "device": {"cpu"},
    }
    queries = {
        each["name"]: re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
        for each in load(name)["templating"]["list"]
        if each["type"] == "query"
    }
    for variable, asked in queries.items():
        assert asked is not None
        found = stack.prometheus.get(f"label/{asked[2]}/values", **{"match[]": replaced(asked[1])})
        assert expected[variable] <= set(found), variable


def test_an_exemplar_of_a_latency_leads_to_the_receipt_of_its_request(stack: Stack, client: Client) -> None:
    now = time.time()
    found = stack.prometheus.get(
        "query_exemplars",
        query=f'wattserve_request_duration_seconds_bucket{{instance="{stack.target}"}}',
        start=now - 5 * INTERVAL_S,
        end=now,
    )
    exemplars = [(each["seriesLabels"], one) for each in found for one in each["exemplars"]]
    assert exemplars
    labels, exemplar = exemplars[-1]
    receipt = client.receipt(exemplar["labels"]["receipt_id"])
    assert receipt.variant == labels["variant"]


# -- The rules


def test_prometheus_evaluates_every_rule(stack: Stack) -> None:
    rules = [rule for group in stack.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_a_healthy_server_raises_only_that_its_joules_are_simulated(stack: Stack) -> None:
    alerts = {
        (each["labels"]["alertname"], each["labels"]["instance"]): each
        for each in stack.prometheus.get("alerts")["alerts"]
    }
    # The simulated board draws by all CPU time of its process: what the server does beside its batches is
    # nobody's, now and then more than a fifth (wait a quarter of an hour, and the alert would fire).
    alerts.pop(("WattserveEnergyUnattributed", stack.gpu_target), None)
    ((name, alert),) = alerts.items()
    assert name == ("WattserveEnergyNotMeasured", stack.target)
    assert "not measured (quality simulated, source simulated)" in alert["annotations"]["summary"]


# -- The figures


def test_accounts_and_pending_sum_to_what_was_measured_in_every_scrape(stack: Stack) -> None:
    now = time.time()
    residual = "instance_device:wattserve_energy_residual_joules:difference"
    found = stack.prometheus.over(residual, now - WINDOW_S, now, INTERVAL_S)
    assert {each.labels["instance"] for each in found} >= {stack.target}
    residuals = [value for each in found for _, value in each.samples]
    assert len(residuals) >= WINDOW_S // 2
    assert max(map(abs, residuals)) < 1e-6


def test_active_energy_is_on_receipts_in_every_scrape(stack: Stack) -> None:
    now = time.time()
    residual = "wattserve_energy_receipts_residual_joules"
    found = stack.prometheus.over(residual, now - WINDOW_S, now, INTERVAL_S)
    assert {value for each in found for _, value in each.samples} == {0.0}


def test_every_scraped_figure_lies_between_the_ledgers_before_and_after_it(
    stack: Stack, client: Client
) -> None:
    """Exact, whatever the timing: counters only grow, and a scrape is answered between start and end."""
    asked: list[float] = []
    answered: list[float] = []
    joules: list[float] = []
    begun = time.time()
    compared = 0
    while compared < 3:
        round_begun = time.time()
        while time.time() < round_begun + 6 * INTERVAL_S:
            asked.append(time.time())
            report = client.energy_report()
            answered.append(time.time())
            assert report.measured_joules is not None
            joules.append(report.measured_joules)
            time.sleep(INTERVAL_S / 20)
        end = time.time()
        compared = 0
        for start, seconds, value in scrapes(stack, end, end - begun):
            before = bisect_left(answered, start) - 1
            after = bisect_right(asked, start + seconds)
            if before >= 0 and after < len(asked):
                assert joules[before] - 1e-6 <= value <= joules[after] + 1e-6
                compared += 1


def scrapes(stack: Stack, until: float, seconds: float) -> Iterator[tuple[float, float, float]]:
    """When each scrape began, how long it took, and what it says was measured."""
    where = f'instance="{stack.target}"'
    window = f"[{math.ceil(seconds)}s]"
    (measured,) = stack.prometheus.query(f"{MEASURED}{{{where}}}{window}", until)
    (lasted,) = stack.prometheus.query(f"scrape_duration_seconds{{{where}}}{window}", until)
    duration = dict(lasted.samples)
    yield from ((start, duration[start], value) for start, value in measured.samples if start in duration)


def test_watts_of_rate_agree_with_the_ledgers_of_the_same_time(stack: Stack, client: Client) -> None:
    """rate() spreads the growth from the first scrape in its window to the last one over the whole window.

    So it does not know the seconds before the first scrape and after the last, and each reading of the
    simulated meter is up to 0.1 s old. What was drawn in these seconds, up to full power, may be missing from
    the mean over the window, or be there though it was not drawn.
    """
    first = client.energy_report()
    stack.prometheus.wait_for_scrapes(WINDOW_S)
    last = client.energy_report()
    stack.prometheus.wait_for_scrapes(1)  # one that was under way has come in
    assert first.measured_uj is not None
    assert last.measured_uj is not None
    seconds = (last.until_unix_ns - first.until_unix_ns) / 1e9
    watts = (last.measured_uj - first.measured_uj) / 1e6 / seconds
    at, window = last.until_unix_ns / 1e9, f"[{round(seconds * 1000)}ms]"
    where = f'instance="{stack.target}"'
    found = stack.prometheus.value(f"sum(rate({MEASURED}{{{where}}}{window}))", at)
    (seen,) = stack.prometheus.query(f"{MEASURED}{{{where}}}{window}", at)
    unseen_s = seconds - (seen.samples[-1][0] - seen.samples[0][0]) + 2 * PUBLISHED_EVERY_S
    assert found == pytest.approx(watts, abs=(IDLE_WATTS + BUSY_WATTS) * unseen_s / seconds)
    accounts = by_label(
        stack.prometheus.query(
            f"sum by (account) (rate(wattserve_energy_account_joules_total{{{where}}}{window}))", at
        ),
        "account",
    )
    pending = stack.prometheus.value(f"max_over_time(wattserve_energy_pending_joules{{{where}}}{window})", at)
    assert sum(accounts.values()) == pytest.approx(found, abs=2 * pending / seconds + 0.01)
    assert accounts["active"] > 0
    assert accounts["idle"] == pytest.approx(IDLE_WATTS, abs=IDLE_WATTS * unseen_s / seconds)


def test_joules_per_request_agree_with_the_ledger(stack: Stack, client: Client) -> None:
    """Since its start, when every counter was 0: no rate, no window, no edges."""
    for variant in VARIANTS:
        where = f'instance="{stack.target}", variant="{variant}"'
        before = {each.variant: each for each in client.energy_report().active}[variant]
        stack.prometheus.wait_for_scrapes(2)
        joules = stack.prometheus.value(f"wattserve_energy_active_joules_total{{{where}}}")
        sequences = stack.prometheus.value(f"wattserve_settled_sequences_total{{{where}}}")
        stack.prometheus.wait_for_scrapes(2)
        after = {each.variant: each for each in client.energy_report().active}[variant]
        assert before.active_joules is not None
        assert after.active_joules is not None
        assert before.sequences < sequences <= after.sequences
        assert before.active_joules < joules <= after.active_joules + 1e-6


def by_label(found: list[Series], label: str) -> dict[str, float]:
    return {each.labels[label]: each.value for each in found}
