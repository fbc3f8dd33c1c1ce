"""What a report says of proxies, unverified precisions, images and several meters."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.loadgen_pages import COLUMNS, Page, undrawn
from tests.fixtures.loadgen_results import make_results, make_server, make_target, standing_server
from wattserve_loadgen.report import text as report_text
from wattserve_loadgen.report.facts import meters_of, source_line
from wattserve_loadgen.report.page import render
from wattserve_loadgen.sweeping.first_results import boundary


def test_a_proxy_is_named_as_one_in_every_table_chart_and_sentence() -> None:
    found = Page(render(make_results(server=standing_server(proxy="products in fp32")), COLUMNS))
    assert "Not every precision here is the real one" in found.text
    assert "int8 (proxy): Products in fp32." in found.text
    assert "At concurrency 4, int8 (proxy) saves 50 %" in found.text
    pictures = [figure for figure in found.figures if "int8" in figure]
    assert len(pictures) == len(found.figures) == 14
    assert all("(proxy" in figure for figure in pictures)
    assert not re.search(r"int8(?! ?\(proxy)(?!p95|\s*\(proxy)", " ".join(pictures))


def test_an_unverified_precision_is_named_as_one() -> None:
    server = standing_server(verified=False, verification="no profiler here")
    found = undrawn(make_results(server=server))
    assert "int8 (unverified): No profiler here." in found.text
    assert "At concurrency 4, int8 (unverified) saves" in found.text
    assert "fp32 (unverified" not in found.text


@pytest.mark.parametrize(
    "about", [{}, {"verified": False, "verification": ""}, {"verified": False, "state": "unloaded"}]
)
def test_nothing_is_said_of_a_precision_of_which_the_server_says_nothing(about: dict[str, Any]) -> None:
    server = make_server() if not about else standing_server(**about)
    text = undrawn(make_results(server=server)).text
    assert "unverified" not in text
    assert "(proxy)" not in text


def test_a_report_on_images_speaks_of_images_and_never_of_tokens() -> None:
    data = replace(
        make_results().dataset, pixel_shape=(3, 224, 224), min_tokens=1, mean_tokens=1, max_tokens=1
    )
    unknown = np.full(2000, np.nan)
    names = ("padding_share", "active_uj_per_token", "active_uj_per_padded_token")
    nothing: dict[str, Any] = dict.fromkeys(names)
    points = [replace(one, figures=replace(one.shown, **nothing)) for one in make_results().points]
    columns = {key: replace(one, tokens=unknown, padded_tokens=unknown) for key, one in COLUMNS.items()}
    found = Page(render(make_results(dataset=data, points=points), columns))
    assert "100 images of 3 × 224 × 224" in found.text
    assert "mean batch size, images" in found.text
    assert "token" not in found.text
    assert len(found.figures) == 12


def test_each_meter_of_the_swept_devices_is_named_and_the_weakest_sets_the_tone() -> None:
    server = make_server()
    server["variants"][1]["device"] = "cuda:0"
    server["meter"]["device"] = "cpu"
    power_law = {
        "name": "law",
        "method": "apportioned simulation",
        "quality": "simulated",
        "note": "declared",
    }
    server["other_meters"] = [
        {"device": "cuda:0", "source": power_law},
        {"device": "cuda:1", "source": {"name": "elsewhere", "method": "none", "quality": "none"}},
    ]
    results = make_results(server=server)
    assert source_line(results) == (
        "SIMULATED by law (apportioned simulation) and MEASURED by rapl:package-0 (apportioned counter)"
    )
    banner = report_text.banners(results)[0]
    assert (banner.kind, banner.title) == ("loud", "Some joules here are SIMULATED")
    assert "elsewhere" not in banner.text


def test_a_host_that_the_swept_device_shares_is_named_beside_it() -> None:
    server = make_server()
    server["variants"][0]["device"] = server["variants"][1]["device"] = server["meter"]["device"] = "cuda:0"
    host = {"name": "rapl", "method": "apportioned counter", "quality": "measured", "note": ""}
    shared = {"device": "host", "source": host, "boundary": "CPU packages", "shared_by": ["cuda:0", "cuda:1"]}
    server["other_meters"] = [shared, {**shared, "device": "elsewhere", "shared_by": ["cuda:1", "cuda:2"]}]
    server["meter"]["boundary"] = "GPU board"
    assert [meter.get("device") for meter in meters_of(make_results(server=server))] == ["cuda:0", "host"]
    said = boundary([make_target(server, name="s", address="127.0.0.1:1")])
    assert said == (
        "s: the server's meter covers GPU board + CPU packages; the client ran on the same processors "
        "and is in it."
    )
