"""Tasks: what a model is asked to do, behind one small port."""

from __future__ import annotations

from wattserve_server.engine.tasks.images import ImageClassification
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Task
from wattserve_server.engine.tasks.tokens import FeatureExtraction, SequenceClassification
from wattserve_server.errors import ConfigError

__all__ = ["TASKS", "InputFacts", "Inputs", "Item", "Task", "task_named"]

TASKS: dict[str, Task] = {
    task.name: task for task in (SequenceClassification(), FeatureExtraction(), ImageClassification())
}


def task_named(name: str) -> Task:
    try:
        return TASKS[name]
    except KeyError:
        raise ConfigError(f"unknown task {name!r}; known: {', '.join(TASKS)}") from None
