"""Prices, intensities and their files: read, named, and refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattserve_common.errors import UserError
from wattserve_tools.usage.tariff import UJ_PER_KWH, Intensity, Price, Tariff

HOUR = 1_800_000_000 // 3600  # 2027-01-15T08:00Z


def test_cost_and_carbon_are_of_the_buildings_kwh() -> None:
    given = {"price": "--price", "carbon": "WATTSERVE_CARBON", "pue": "--pue"}
    tariff = Tariff(Price.parse("0.30 EUR"), Intensity.parse("400"), pue=1.5, given=given)
    assert tariff.kwh(UJ_PER_KWH) == pytest.approx(1.5)
    assert tariff.cost(UJ_PER_KWH) == pytest.approx(0.45)
    assert tariff.carbon_g({HOUR: UJ_PER_KWH, HOUR + 1: UJ_PER_KWH}) == pytest.approx(1200)
    assert tariff.named == {
        "price": "0.3 EUR/kWh (--price)",
        "carbon intensity": "400 g/kWh (WATTSERVE_CARBON)",
        "PUE": "1.5 (--pue)",
        "embodied emissions": "none given",
    }


def test_without_figures_nothing_is_told() -> None:
    tariff = Tariff()
    assert (tariff.cost(1e9), tariff.carbon_g({HOUR: 1e9})) == (None, None)
    assert set(tariff.named.values()) == {"none given", "1 (none given)"}


@pytest.mark.parametrize(
    "text", ["0.30", "0.30%", "EUR", "-1EUR", "1.2.3EUR", "nanEUR", "0.3 EUROS", "9" * 400 + "EUR"]
)
def test_prices_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"such as 0\.30EUR"):
        Price.parse(text)


def test_an_intensity_for_each_hour(tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    file.write_text("hour,g_per_kwh,note\n2027-01-15T08:00Z,100,x\n2027-01-15T10:00+01:00,300,\n")
    tariff = Tariff(intensity=Intensity.parse(str(file)))
    assert tariff.carbon_g({HOUR: UJ_PER_KWH, HOUR + 1: UJ_PER_KWH / 2}) == pytest.approx(250)
    assert tariff.carbon_g({HOUR + 2: 0}) == 0
    with pytest.raises(UserError, match="no figure for the hour 2027-01-15T10:00Z, which is used"):
        tariff.carbon_g({HOUR + 2: 1.0})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "first line must name the columns"),
        ("time,g\n1,2\n", "first line must name the columns"),
        ("hour,g_per_kwh,hour\n2027-01-15T08:00Z,1,2027-01-15T09:00Z\n", "each once"),
        ("hour,g_per_kwh\n", "has no hours"),
        ("hour,g_per_kwh\nyesterday,1\n", "line 2: 'yesterday' is no instant"),
        ("hour,g_per_kwh\n2027-01-15T08:00,1\n", "line 2: .* has no offset"),
        ("hour,g_per_kwh\n2027-01-15T08:30Z,1\n", "line 2: .* no whole hour"),
        ("hour,g_per_kwh\n0001-01-01T00:00+01:00,1\n", "line 2: .* before 1970"),
        ("hour,g_per_kwh\n2027-01-15T08:00Z,-1\n", "line 2: g_per_kwh is '-1'"),
        ("hour,g_per_kwh\n2027-01-15T08:00Z,nan\n", "line 2: g_per_kwh is 'nan'"),
        ("hour,g_per_kwh\n2027-01-15T08:00Z\n", "line 2: g_per_kwh is None"),
        ("hour,g_per_kwh\n2027-01-15T08:00Z,1\n2027-01-15T09:00+01:00,1\n", "line 3: .* stands there twice"),
    ],
)
def test_files_of_intensities_that_are_none(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "grid.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=words):
        Intensity.parse(str(file))


def test_intensities_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no number, and cannot be read"):
        Intensity.parse(str(tmp_path / "none.csv"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no CSV in UTF-8"):
        Intensity.parse(str(tmp_path / "bytes"))
    with pytest.raises(UserError, match="0 or more"):
        Intensity.parse("-5")
