"""Whole sweeps of made-up servers: their reports are drawn as those of `tests/unit/loadgen`."""

from tests.unit.loadgen.conftest import _quick_charts  # noqa: F401
