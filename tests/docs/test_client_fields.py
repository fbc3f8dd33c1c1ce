"""The table of fields in docs/clients.md names what the client's values really have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wattserve_client

ROW = re.compile(r"^\| `(Answer|Prediction|Receipt|VariantEnergy)`[^|]*\| (.*) \|$", re.MULTILINE)
FIELDS = dict(ROW.findall((Path(__file__).parents[2] / "docs/clients.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", ["Answer", "Prediction", "Receipt", "VariantEnergy"])
def test_every_field_that_the_table_names_is_there(kind: str) -> None:
    names = re.findall(r"`(\w+)", FIELDS[kind])
    assert names
    assert not [name for name in names if not hasattr(getattr(wattserve_client, kind), name)]
