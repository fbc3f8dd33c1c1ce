"""What kinds of variant a model can be served as: every kind, or the one that it comes as."""

from __future__ import annotations

from collections.abc import Mapping

from wattserve_server.engine import exported, prequantised
from wattserve_server.engine.checkpoint import DEMO, RANDOM_PREFIX
from wattserve_server.engine.made import Made
from wattserve_server.engine.tasks import Task
from wattserve_server.engine.variants.catalogue import KINDS
from wattserve_server.engine.variants.port import Kind


def made_of(source: str, task: Task, trust_remote_code: bool = False) -> Made | None:
    """None for a model that variants are made from. Reads two small files, no weights. Raises ConfigError for
    a variant that cannot be served here."""
    if source == DEMO or source.startswith(RANDOM_PREFIX):
        return None
    return exported.made_of(source, task) or prequantised.made_of(source, task, trust_remote_code)


def kinds_of(source: str, task: Task, trust_remote_code: bool = False) -> tuple[Mapping[str, Kind], str]:
    """The kinds to choose from, and, where that is only one, why. Raises ConfigError."""
    made = made_of(source, task, trust_remote_code)
    return (KINDS, "") if made is None else ({made.kind.name: made.kind}, made.words)
