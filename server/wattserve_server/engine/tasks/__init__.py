"""Tasks: what a model is asked to do, behind one small port."""

from wattserve_server.engine.tasks.port import InputFacts, Inputs, Item, Task
from wattserve_server.engine.tasks.registry import TASKS, task_named

__all__ = ["TASKS", "InputFacts", "Inputs", "Item", "Task", "task_named"]
