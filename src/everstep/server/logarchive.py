"""Logs in a bucket: segments that do not grow any more go there, by way of the server, and readers do not see where.

A segment is an object of its own, ``logs/JOB/ATTEMPT/MACHINE/RANK/<start>.log``. The server puts it there, since it
has the bytes: machines stream them to it as they are printed, and may be gone the next second. What is here counts
until the book has noted that the object is there, so to be killed in between means to put the same bytes there again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from everstep.model.errors import EverstepError
from everstep.model.ids import JobId
from everstep.model.job import JobState
from everstep.ports import BlobMissing
from everstep.server.buckets import BucketRefuses, BucketTrouble, Place
from everstep.server.logs import LogBook, LogKey, Segment, whole_characters
from everstep.server.reading import over

log = logging.getLogger(__name__)

EVERY_S = 5.0
IDLE_S = 60.0
"""The last segment of a log that is over goes when no byte came for so long: machines send what they have left."""
_PATIENCE_S = 120.0
_REMEMBERED = 4
_PREFIX = "logs/"


class LogArchive:
    """The logs of a book, some of which are in a bucket.

    Args:
        book: what is here.
        place: what is there.
        states: all jobs, to know which logs are over; one that is not among them is.
        lost: a file that is there while nobody knows what is in the bucket: the book is a new one (a backup has none).
    """

    def __init__(
        self, book: LogBook, place: Place, states: Mapping[JobId, JobState], *, lost: Path | None = None
    ) -> None:
        self._book = book
        self._place = place
        self._states = states
        self._lost = lost
        self._remembered: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    async def run(self) -> None:
        """Sends what may go, again and again, until cancelled. Failures are told, not raised."""
        while True:
            try:
                await self.adopt()
                await self.send()
            except (BucketTrouble, BucketRefuses, TimeoutError) as error:
                log.warning("logs stay here for now: %s", str(error) or f"{self._place.bucket.url} gives no answer")
            await asyncio.sleep(EVERY_S)

    async def adopt(self) -> None:
        """Looks what is in the bucket, if that is not known. Raises BucketTrouble, BucketRefuses."""
        if self._lost is None or not self._lost.exists():
            return
        found: dict[str, list[Segment]] = {}
        for info in await self._place.listed(_PREFIX):
            name, _, start = info.key.removeprefix(_PREFIX).removesuffix(".log").rpartition("/")
            if start.isdigit():
                found.setdefault(name, []).append(Segment(int(start), info.size))
        for name, segments in found.items():
            try:
                self._book.adopt(name, segments)
            except (EverstepError, ValueError, OSError) as error:
                log.warning("%s%s is left out: %s", _PREFIX, name, error)
            await asyncio.sleep(0)
        self._lost.unlink(missing_ok=True)

    async def send(self, *, idle_s: float = IDLE_S) -> None:
        """Sends what may go. Raises BucketTrouble, BucketRefuses, TimeoutError; what is not sent stays as it is."""
        for job in sorted(self._book.unsent):
            for key in self._book.keys(job):
                try:
                    await self._send_log(job, key, idle_s)
                except TimeoutError:
                    raise
                except OSError as error:  # of our own disk
                    log.warning("the log of rank %s of %s stays here for now: %s", key.rank, job, error)
            if self._book.is_empty(job):
                self._book.unsent.discard(job)
            await asyncio.sleep(0)  # there may be thousands

    async def read(self, job: JobId, key: LogKey, offset: int, limit: int) -> tuple[int, bytes]:
        """As ``LogBook.read``. What somebody deleted from the bucket is passed over, as what was dropped here.

        Raises:
            BucketTrouble, BucketRefuses: it cannot be had now.
        """
        at, pieces, size = offset, list[bytes](), 0
        while size < limit:
            segment = self._book.away(job, key, at)
            if segment is None:
                found, data = self._book.held(job, key, at, limit - size)
            else:
                found = max(at, segment.start)
                whole = await self._get(job, key, segment)
                data = whole[found - segment.start :][: limit - size]
            if pieces and (found != at or not data):
                break
            if segment is not None and not data:
                at = segment.end
                continue
            if not pieces:
                offset = found
            if not data:
                break
            pieces.append(data)
            size += len(data)
            at = found + len(data)
        return offset, whole_characters(b"".join(pieces))

    async def _send_log(self, job: JobId, key: LogKey, idle_s: float) -> None:
        state = self._states.get(job)
        is_over = state is None or over(state, key)

        def quiet(path: Path) -> bool:
            return is_over and time.time() - path.stat().st_mtime > idle_s

        while (found := self._book.sealed(job, key, over=quiet)) is not None:
            segment, path = found
            data = await asyncio.to_thread(path.read_bytes)
            async with asyncio.timeout(_PATIENCE_S):
                await self._place.put(self._name(job, key, segment), data[: segment.size])
            before = self._book.away(job, key, segment.start)
            self._book.sent(job, key, segment)
            if self._book.away(job, key, segment.start) is before:
                return  # it grew: later

    async def _get(self, job: JobId, key: LogKey, segment: Segment) -> bytes:
        """The bytes of a segment; none if they are not there any more."""
        name = self._name(job, key, segment)
        known = self._remembered.get((name, segment.size))
        if known is None:
            try:
                known = await self._place.get(name)
            except BlobMissing:
                return b""
            if len(known) != segment.size:
                return b""
            self._remembered[name, segment.size] = known
            while len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        self._remembered.move_to_end((name, segment.size))
        return known

    def _name(self, job: JobId, key: LogKey, segment: Segment) -> str:
        return f"{_PREFIX}{self._book.name(job, key)}/{segment.start:015d}.log"
