"""All phases, one after the other, and what is written of them."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.verify_rig import NS, VirtualRig, played
from wattserve_server.verify.mixed import CLOSURE
from wattserve_server.verify.page import page
from wattserve_server.verify.plan import PHASES, go_through
from wattserve_server.verify.results import Results
from wattserve_server.verify.verdicts import Status


def results() -> Results:
    return Results("2026-11-22T12:00:00+00:00", 120.0, {"cpus": "2"}, device="cpu", model="demo")


def test_all_phases_are_gone_through_and_everything_is_on_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig, found = VirtualRig(), results()

    async def run() -> None:
        await rig.calibrate()
        await go_through(rig, found, 40.0, now_s=lambda: rig.now_ns() / NS)

    begun_s = rig.now_ns() / NS
    played(run())
    found.took_s = rig.now_ns() / NS - begun_s
    assert found.took_s < 110.0  # each phase has a least length
    assert found.reached == [phase.name for phase in PHASES]
    statuses = {verdict.name: verdict.status for verdict in found.verdicts()}
    assert statuses[CLOSURE] is Status.HELD
    assert statuses["windows against device time"] is Status.NOT_MEASURED
    assert Status.MISSED not in statuses.values()
    text = page(found)
    for head in ("Idle draw", "The counter", "Step response", "Part-time sampling", "Solo against mixed"):
        assert f"## {head}" in text
    assert "None" not in text
    plain = json.loads(json.dumps(found.as_plain(), allow_nan=False))
    assert plain["mixed"]["by_variant"]["fp32"]["alone_j"] > 0
    assert plain["exit_code"] == found.exit_code
    said = capsys.readouterr().err
    assert "[1/6] idle draw" in said
    assert "36 s left" in said


def test_a_run_that_was_interrupted_says_so_and_keeps_what_it_has() -> None:
    found = results()
    found.is_interrupted = True
    assert found.exit_code == 130
    assert {verdict.status for verdict in found.verdicts()} == {Status.NOT_MEASURED}
    assert page(found).startswith("# What `wattserve meter verify` found\n\n**INTERRUPTED.**")
    assert json.loads(json.dumps(found.as_plain()))["is_interrupted"] is True
