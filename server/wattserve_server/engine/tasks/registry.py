"""The tasks that exist, by name."""

from __future__ import annotations

from wattserve_server.engine.tasks.classification import SequenceClassification
from wattserve_server.engine.tasks.embedding import FeatureExtraction
from wattserve_server.engine.tasks.images import ImageClassification
from wattserve_server.engine.tasks.port import Task
from wattserve_server.errors import ConfigError

TASKS: dict[str, Task] = {
    task.name: task for task in (SequenceClassification(), FeatureExtraction(), ImageClassification())
}


def task_named(name: str) -> Task:
    try:
        return TASKS[name]
    except KeyError:
        raise ConfigError(f"unknown task {name!r}; known: {', '.join(TASKS)}") from None
