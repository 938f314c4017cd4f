"""Commands run beside the ranks: who was asked, and what each machine answered.

Files, so that a restart forgets nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everstep.model.errors import NotFound
from everstep.model.ids import InstanceId, JobId
from everstep.server.problems import disk_trouble

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class ExecBook:
    """One small file per command: ``{"targets": [...], "rc": {instance: code}}``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, job: JobId, exec_id: str, targets: Iterable[InstanceId]) -> None:
        """A command was asked of these machines. Raises DiskFull."""
        self._write(job, exec_id, {"targets": list(targets), "rc": {}})

    def ended(self, job: JobId, exec_id: str, instance: InstanceId, rc: int) -> None:
        """It ended on a machine. Repeats are harmless; a command that nobody asked for is ignored."""
        with contextlib.suppress(NotFound):
            data = self._read(job, exec_id)
            if instance in data["targets"] and instance not in data["rc"]:
                data["rc"][instance] = rc
                self._write(job, exec_id, data)

    def answers(self, job: JobId, exec_id: str) -> dict[InstanceId, int | None]:
        """Exit codes by machine, None for those that have not answered. Raises NotFound."""
        data = self._read(job, exec_id)
        return {InstanceId(i): data["rc"].get(i) for i in data["targets"]}

    def _path(self, job: JobId, exec_id: str) -> Path:
        if not _ID.fullmatch(exec_id):
            raise NotFound(f"job {job} ran no command '{exec_id[:80]}'")
        return self._folder / job / f"{exec_id}.json"

    def _read(self, job: JobId, exec_id: str) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(self._path(job, exec_id).read_text())
        except (OSError, ValueError):
            raise NotFound(f"job {job} ran no command '{exec_id}'") from None
        return data

    def _write(self, job: JobId, exec_id: str, data: dict[str, Any]) -> None:
        path = self._path(job, exec_id)
        partial = path.with_suffix(".part")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_text(json.dumps(data))
            partial.replace(path)
        except OSError as error:
            raise disk_trouble(error, str(self._folder)) from None
