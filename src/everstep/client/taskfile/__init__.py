"""Task files: a superset of SkyPilot's YAML, read into `everstep.model.task.Task`."""

from __future__ import annotations

from everstep.client.taskfile.build import LocalMount
from everstep.client.taskfile.emit import task_to_dict, task_to_yaml
from everstep.client.taskfile.loading import LoadedTask, load_task, task_from_dict
from everstep.client.taskfile.nodes import Override

__all__ = ["LoadedTask", "LocalMount", "Override", "load_task", "task_from_dict", "task_to_dict", "task_to_yaml"]
