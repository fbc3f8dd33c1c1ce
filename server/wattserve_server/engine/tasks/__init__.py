"""Tasks: what a model is asked to do, behind one small port."""

from wattserve_server.engine.tasks.port import Task
from wattserve_server.engine.tasks.registry import TASKS, task_named

__all__ = ["TASKS", "Task", "task_named"]
