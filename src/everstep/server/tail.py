"""Who follows a job is woken when its journal grew. One reader follows the store, and only while somebody listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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

    @asynccontextmanager
    async def listening(self, job: JobId, event: asyncio.Event) -> AsyncIterator[None]:
        """While inside, ``event`` is set whenever the job's stream grew. What is read inside misses nothing."""
        self._users += 1
        try:
            with self._bells.listening(job_stream(job), event):
                if self._task is None and not self._closed:
                    # The mark is read before the listener reads the stream: lines in between ring once too often,
                    # never too rarely.
                    mark = await self._store.append((), None)
                    self._begin(mark)
                yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._stop()

    def close(self) -> None:
        """Wakes all listeners and reads no more."""
        self._closed = True
        self._stop()
        self._bells.ring_all()

    def _begin(self, mark: int) -> None:
        # Two may have asked for the mark at once, and the server may have been stopped meanwhile.
        if self._task is None and not self._closed:
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
            with contextlib.suppress(TimeoutError):
                await asyncio.sleep(_RETRY_S)
