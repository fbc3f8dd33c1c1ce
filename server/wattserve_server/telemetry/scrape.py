"""The scrape: a registry, and the boards beside it, in the format that the scraper asks for."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest as as_text
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from wattserve_server.telemetry import board

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = b"# EOF\n"


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics, and before plain text: scrapers put first what they prefer.

    prometheus_client's own choice raises for a version that is no number, and repeats whatever it reads.
    """
    for accepted in accept.split(","):
        kind, *parameters = accepted.split(";")
        if "q=0" in [parameter.strip() for parameter in parameters]:
            continue
        if kind.strip().lower() == "text/plain":
            return False
        if kind.strip().lower() == "application/openmetrics-text":
            return True
    return False


def render(
    registry: CollectorRegistry, boards: Sequence[board.BoardGauges], accept: str
) -> tuple[str, bytes]:
    """The content type, and the page. Exemplars are in OpenMetrics alone: plain text has no room for them."""
    own = board.lines(boards).encode()
    if not wants_openmetrics(accept):
        return TEXT, as_text(registry) + own
    page: bytes = as_openmetrics(registry)  # type: ignore[no-untyped-call]
    return OPENMETRICS, page.removesuffix(_END) + own + _END
