"""Charts are drawn without making room for their labels: that is half of the work, and no test here sees it."""

import pytest

from wattserve_loadgen.report import ink


@pytest.fixture(autouse=True, scope="session")
def _quick_charts() -> None:
    ink._STYLE["figure.constrained_layout.use"] = False
