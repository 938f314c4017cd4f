"""When to look at which job again: a mapping that knows its earliest entry without looking at all."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, MutableMapping

from everstep.model.ids import JobId

_SLACK = 64


class Wakes(MutableMapping[JobId, float]):
    """UTC seconds by job. A later entry replaces the earlier one."""

    def __init__(self) -> None:
        """Empty."""
        self._at: dict[JobId, float] = {}
        # Every entry is in the heap; those that were replaced or taken out since are passed over.
        self._heap: list[tuple[float, JobId]] = []

    def __getitem__(self, job: JobId) -> float:
        """Raises KeyError."""
        return self._at[job]

    def __setitem__(self, job: JobId, at: float) -> None:
        """The job is looked at then, not before."""
        if self._at.get(job) == at:
            return
        self._at[job] = at
        heapq.heappush(self._heap, (at, job))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at, job) for job, at in self._at.items()]
            heapq.heapify(self._heap)

    def __delitem__(self, job: JobId) -> None:
        """Raises KeyError."""
        del self._at[job]

    def __iter__(self) -> Iterator[JobId]:
        """Jobs in no order that matters."""
        return iter(self._at)

    def __len__(self) -> int:
        """Number of jobs that have an entry."""
        return len(self._at)

    def __contains__(self, job: object) -> bool:
        """Whether the job has an entry."""
        return job in self._at

    def earliest(self) -> float | None:
        """The earliest of all; None when there is none."""
        while self._heap:
            at, job = self._heap[0]
            if self._at.get(job) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[JobId]:
        """Jobs whose time has come, in order of time and then of id; they stay in."""
        found: list[tuple[float, JobId]] = []
        while (at := self.earliest()) is not None and at <= now:
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        # An entry that left and came back at the same time is in the heap twice.
        return list(dict.fromkeys(job for _, job in found))
