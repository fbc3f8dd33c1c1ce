"""promtool's own checks: of the configuration, the rules and their scenarios."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.stack.prometheus import COMMITTED


def run(promtool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", COMMITTED / "prometheus.yml"),
        ("check", "rules", COMMITTED / "rules.yml"),
        ("test", "rules", COMMITTED / "rules_test.yml"),
    ],
    ids=["config", "rules", "scenarios"],
)
def test_promtool_accepts(promtool: str, arguments: tuple[str | Path, ...]) -> None:
    done = run(promtool, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize(
    ("good", "spoiled"),
    [
        ("> 0.001\n", "> 10\n"),
        ("ratio_rate5m > 0.01\n", "ratio_rate5m > 0.001\n"),
        ("== 0 unless on (job, instance, device) wattserve_meter_info", "== 0 unless on (device) up"),
        ('quality!="measured"', 'quality="estimated"'),
        ("last_change_timestamp_seconds > 60", "last_change_timestamp_seconds > 600"),
        (" offset 1h)", ")"),
    ],
)
def test_the_scenarios_notice_a_spoiled_rule(promtool: str, tmp_path: Path, good: str, spoiled: str) -> None:
    rules = (COMMITTED / "rules.yml").read_text()
    assert rules.count(good) == 1
    (tmp_path / "rules.yml").write_text(rules.replace(good, spoiled))
    (tmp_path / "rules_test.yml").write_text((COMMITTED / "rules_test.yml").read_text())
    done = run(promtool, "test", "rules", tmp_path / "rules_test.yml")
    assert done.returncode == 1, "no scenario fails"
    assert "FAILED" in done.stdout + done.stderr
