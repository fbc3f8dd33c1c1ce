"""Charts are drawn without making room for their labels: half of the work, and no test here looks at it."""

import pytest

from wattserve_loadgen.report import ink


@pytest.fixture(autouse=True, scope="session")
def _quick_charts() -> None:
    ink._STYLE["figure.constrained_layout.use"] = False
