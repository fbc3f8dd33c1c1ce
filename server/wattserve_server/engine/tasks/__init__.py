"""Tasks: what a model is asked to do, behind one small port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattserve_server.engine.tasks.causal import TextGeneration
from wattserve_server.engine.tasks.images import ImageClassification
from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Scoring, Task
from wattserve_server.engine.tasks.tokens import FeatureExtraction, SequenceClassification
from wattserve_server.errors import ConfigError

__all__ = ["TASKS", "InputFacts", "Inputs", "Item", "Scoring", "Task", "task_by_config", "task_named"]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (SequenceClassification(), FeatureExtraction(), ImageClassification(), TextGeneration())
}


def task_named(name: str) -> Task:
    try:
        return TASKS[name]
    except KeyError:
        raise ConfigError(f"unknown task {name!r}; known: {', '.join(TASKS)}") from None


def task_by_config(config: Mapping[str, Any]) -> Task:
    """What a model with that config.json is made for; sequence classification where it does not say."""
    classes, own_code = (_texts(config.get(name)) for name in ("architectures", "auto_map"))
    for task in TASKS.values():
        if task.auto_class in own_code or not task.architectures.isdisjoint(classes):
            return task
    return TASKS[SequenceClassification.name]


def _texts(value: Any) -> set[str]:
    """What stands in a list, or the keys of a table; nothing where it is neither: transformers says so."""
    return {each for each in value if isinstance(each, str)} if isinstance(value, list | dict) else set()
