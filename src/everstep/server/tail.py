"""Who follows a job is woken when its journal grew. One reader follows the store, and only while somebody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from everstep.model.ids import JobId, job_stream
from everstep.ports import Store
from everstep.server.bells import Bells

log = logging.getLogger(__name__)
_RETRY_S = 1.0


class Tail:
    """The end of the journal, as bells by stream."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bells = Bells()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._users = 0

    @contextmanager
    def listening(self, job: JobId, event: asyncio.Event) -> Iterator[None]:
        """While inside, ``event`` is set whenever the job's stream grew.

        What is read after ``begin`` misses nothing.
        """
        self._users += 1
        try:
            with self._bells.listening(job_stream(job), event):
                yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._stop()

    async def begin(self) -> None:
        """Makes sure that the store is followed; called by each listener before it reads."""
        if self._task is None and not self._closed:
            # The mark is older than what the listener reads next: lines in between ring once too often, never too
            # rarely.
            mark = await self._store.append((), None)
            self._follow(mark)

    def close(self) -> None:
        """Wakes all listeners and reads no more."""
        self._closed = True
        self._stop()
        self._bells.ring_all()

    def _follow(self, mark: int) -> None:
        # Several may have asked for the mark at once, all may have left since, and the server may have been stopped.
        if self._task is None and self._users and not self._closed:
            self._task = asyncio.create_task(self._run(mark), name="journal tail")

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self, after: int) -> None:
        while True:
            try:
                async for record in self._store.follow(after=after):
                    after = record.seq
                    self._bells.ring(record.stream)
                return  # the store was closed
            except Exception:
                log.exception("following the journal failed; trying again")
                self._bells.ring_all()
            await asyncio.sleep(_RETRY_S)
