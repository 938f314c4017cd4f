"""Values of secrets: one private file per job, nowhere else. The journal, the logs and command lines know their names
only.

How long they are kept: while the job lives, and seven days after it failed, since it may be retried. When it
succeeded or was cancelled they are deleted at once; retrying it then needs them again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from everstep.model.ids import JobId
from everstep.model.job import JobPhase, JobState
from everstep.server.problems import disk_trouble

KEEP_AFTER_FAILURE_S = 7 * 86_400.0


class SecretFiles:
    """Secrets below one folder (mode 0700), a file per job (mode 0600)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)

    def put(self, job: JobId, values: Mapping[str, str]) -> None:
        """Keeps the values of a job, durably; replaces those it had. Raises DiskFull."""
        if not values:
            self.forget(job)
            return
        final = self._path(job)
        partial = final.with_suffix(".part")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(dict(values), file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(final)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise disk_trouble(error, str(self._folder)) from None

    def get(self, job: JobId) -> dict[str, str]:
        """The values of a job; empty if there are none (any more)."""
        path = self._path(job)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in data.items()}

    def forget(self, job: JobId) -> None:
        """Deletes the values of a job; none is no error."""
        self._path(job).unlink(missing_ok=True)

    def sweep(self, states: Mapping[JobId, JobState], now: float) -> list[JobId]:
        """Deletes what no job may need any more; gives the jobs whose values went.

        Files of jobs unknown are left an hour.
        """
        gone = []
        for file in sorted(self._folder.glob("*.json")):
            job = JobId(file.stem)
            if not _needed(states.get(job), now, age_s=now - file.stat().st_mtime):
                self.forget(job)
                gone.append(job)
        return gone

    def _path(self, job: JobId) -> Path:
        if not job.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"not a job id: {job!r}")
        return self._folder / f"{job}.json"


def _needed(state: JobState | None, now: float, *, age_s: float) -> bool:
    if state is None:
        return age_s < 3600.0  # a submission under way writes its secrets before its first event
    if not state.phase.ended:
        return True
    return state.phase is JobPhase.FAILED and now - (state.ended_at or state.since) < KEEP_AFTER_FAILURE_S
