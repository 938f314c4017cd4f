"""Logs of jobs, kept as they come: ``JOB/ATTEMPT/INSTANCE/RANK/<start>.log``, in segments.

A log is named by its instance and not by a node rank, because machines are replaced within an attempt number (set-up
runs before there is one) and two machines never share a file. Offsets count the bytes of the whole log; retention
drops old segments, so a log may begin later than at 0, but what is held of it has no hole.

Logs are telemetry: they are not flushed to the platter, and the oldest are dropped when a job has more than its share.

Where there is a bucket for them (``server.logarchive``), segments go there, the oldest of a log first, and leave a note
behind: ``<start>-<bytes>.away``, with the marks that were in it. The note is there before the segment goes, so a server
that dies in between finds both, and removes what had to go.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from everstep.model.errors import BadInput, Problem
from everstep.model.ids import InstanceId, JobId
from everstep.server.bells import Bells
from everstep.server.marks import Mark, find
from everstep.server.problems import disk_trouble

SEGMENT_BYTES = 4 << 20
_SEARCHED_BYTES = 1 << 20
JOB_BYTES = 256 << 20
_JOBS_OPEN = 1_000
"""Of more jobs nothing is remembered between two calls: what there is of a log is seen in its folder."""
_RANK = re.compile(r"[0-9]{1,7}|[a-zA-Z][a-zA-Z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, order=True)
class LogKey:
    """Names one log: a rank (or ``setup``, ``exec-ID``) on one machine in one attempt."""

    attempt: int
    instance: InstanceId
    rank: str

    @property
    def is_exec(self) -> bool:
        """The output of a command run beside the ranks."""
        return self.rank.startswith("exec-")


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a log: the offset of its first byte, and how many there are."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.start + self.size


@dataclass(slots=True)
class _Log:
    """What is held of one log: segments by their start; its marks, as far as it was looked through for them.

    ``away`` are those that are elsewhere; what is here comes behind them. ``size`` is what is here.
    """

    folder: Path
    starts: list[int] = field(default_factory=list)
    end: int = 0
    size: int = 0
    marks: list[Mark] = field(default_factory=list)
    searched: int = 0
    away: list[Segment] = field(default_factory=list)


class LogBook:
    """All logs below one folder. Used from the event loop only; calls are short."""

    def __init__(self, folder: Path, *, job_bytes: int = JOB_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args: folder: where; job_bytes: how much of each job is kept; segment_bytes: what is dropped at a time."""
        self._folder = folder
        self._job_bytes = job_bytes
        self._segment_bytes = segment_bytes
        self._jobs: dict[JobId, dict[LogKey, _Log]] = {}
        self.bells = Bells()
        self.unsent = {JobId(unquote(path.name)) for path in folder.glob("*")}
        """Jobs of which there may be something here that could be elsewhere."""

    def append(self, job: JobId, key: LogKey, offset: int, data: bytes) -> int:
        """Keeps bytes of a log that start at ``offset``.

        Returns:
            The end of what is held: the sender goes on from there. Bytes held already are skipped, behind a gap
            nothing is kept.

        Raises:
            DiskFull: nothing of ``data`` was kept.
            BadInput: the name of the rank cannot be one.
        """
        if not _RANK.fullmatch(key.rank) or key.attempt < 0 or offset < 0:
            raise BadInput(
                Problem("", "rank", f"no log can be called attempt {key.attempt}, rank '{key.rank}', offset {offset}")
            )
        logs = self._logs(job)
        log = logs.get(key)
        if log is None:
            log = logs[key] = _Log(self._path(job, key))
        if offset > log.end:
            return log.end
        data = data[log.end - offset :]
        if not data:
            return log.end
        self._write(log, log.end, data)
        self._retain(logs, log)
        self.unsent.add(job)
        self.bells.ring(job)
        return log.end

    def keys(self, job: JobId) -> list[LogKey]:
        """The logs of a job in the order people read them: by attempt, set-up before ranks, ranks by number."""
        return sorted(self._logs(job), key=lambda k: (k.attempt, _rank_order(k.rank), k.instance))

    def end(self, job: JobId, key: LogKey) -> int:
        """Bytes of the log so far, 0 if there is none."""
        log = self._logs(job).get(key)
        return log.end if log else 0

    def read(self, job: JobId, key: LogKey, offset: int, limit: int) -> tuple[int, bytes]:
        """At most ``limit`` bytes from ``offset``, or from the first byte that is still here if that is later; with
        their offset.

        A character of several bytes is never cut while more of the log may come; behind the end: no bytes.
        """
        offset, data = self.held(job, key, offset, limit)
        return offset, whole_characters(data)

    def held(self, job: JobId, key: LogKey, offset: int, limit: int) -> tuple[int, bytes]:
        """As ``read``; a character may be cut."""
        log = self._logs(job).get(key)
        return (offset, b"") if log is None else _read(log, offset, limit)

    def marks(self, job: JobId, key: LogKey) -> tuple[Sequence[Mark], int]:
        """The marks in a log, and the offset behind which another one may just be coming in."""
        log = self._logs(job).get(key)
        if log is None:
            return (), 0
        _search(log, log.end)
        return log.marks, log.searched

    # --- What is elsewhere --------------------------------------------------------------------------------------------

    def name(self, job: JobId, key: LogKey) -> str:
        """The log's own place below any folder of logs, ``/``-separated."""
        return self._path(job, key).relative_to(self._folder).as_posix()

    def away(self, job: JobId, key: LogKey, offset: int) -> Segment | None:
        """The first segment with bytes at or behind ``offset`` that is elsewhere. None: what comes next is here."""
        log = self._logs(job).get(key)
        return next((segment for segment in log.away if segment.end > offset), None) if log is not None else None

    def sealed(self, job: JobId, key: LogKey, *, over: Callable[[Path], bool]) -> tuple[Segment, Path] | None:
        """The oldest segment that is here, if it will not grow; all of its marks are known.

        Args:
            job, key: of which log.
            over: asked of the file of the last segment, to which any byte that comes is added.
        """
        log = self._logs(job).get(key)
        if log is None or not log.starts:
            return None
        start, *others = log.starts
        segment, path = Segment(start, (others[0] if others else log.end) - start), log.folder / _segment(start)
        if not segment.size or not (others or over(path)):
            return None
        _search(log, segment.end)
        return (segment, path) if log.searched >= segment.end else None

    def sent(self, job: JobId, key: LogKey, segment: Segment) -> None:
        """A segment is elsewhere now, and not here any more; unless it has grown meanwhile. Raises OSError."""
        log = self._logs(job).get(key)
        if log is None:
            return
        ends = dict(zip(log.starts, [*log.starts[1:], log.end], strict=True))
        # It may have been dropped meanwhile, because there was too much: it is not lost then.
        if ends.get(segment.start, segment.end) != segment.end or self.away(job, key, segment.start) is not None:
            return
        marks = [mark for mark in log.marks if segment.start <= mark.start < segment.end]
        _leave_behind(log.folder, segment, marks)
        (log.folder / _segment(segment.start)).unlink(missing_ok=True)
        log.away.append(segment)
        if segment.start in ends:
            log.starts.remove(segment.start)
            log.size -= segment.size

    def adopt(self, name: str, segments: Sequence[Segment]) -> None:
        """What is known to be elsewhere of the log that ``name`` names, in order, where nothing of it is here.

        Which marks were in it is not known.

        Raises:
            BadInput, ValueError: no log is called so.
        """
        job, attempt, instance, rank = name.split("/")
        key = LogKey(int(attempt), InstanceId(unquote(instance)), rank)
        if not _RANK.fullmatch(rank):
            raise ValueError(f"no rank is called {rank[:80]}")
        log = self._logs(JobId(unquote(job))).setdefault(key, _Log(self._path(JobId(unquote(job)), key)))
        for segment in segments:
            if not log.starts and segment.start >= log.end:
                log.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _leave_behind(log.folder, segment, ())
                log.away.append(segment)
                log.end = log.searched = segment.end

    def is_empty(self, job: JobId) -> bool:
        """Whether no byte of the job's logs is here."""
        return not any(log.size for log in self._logs(job).values())

    def forget(self, job: JobId) -> None:
        """Deletes what is here of all logs of a job."""
        self._jobs.pop(job, None)
        shutil.rmtree(self._folder / quote(job, safe=""), ignore_errors=True)

    def _write(self, log: _Log, at: int, data: bytes) -> None:
        try:
            if not log.starts or at - log.starts[-1] >= self._segment_bytes:
                log.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                segment = at
            else:
                segment = log.starts[-1]
            path = log.folder / _segment(segment)
            with path.open("ab", buffering=0) as file:
                before = file.tell()
                written = 0
                try:
                    while written < len(data):
                        written += file.write(data[written:])
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            raise disk_trouble(error, str(self._folder)) from None
        if not log.starts or segment != log.starts[-1]:
            log.starts.append(segment)
        log.end = at + len(data)
        log.size += len(data)

    def _retain(self, logs: dict[LogKey, _Log], newest: _Log) -> None:
        """Drops the oldest segments of a job that has too much; the last segment of each log stays as long as
        possible.
        """
        total = sum(log.size for log in logs.values())
        if total <= self._job_bytes:
            return
        for log in (*(logs[key] for key in sorted(logs) if logs[key] is not newest), newest):
            while total > self._job_bytes and len(log.starts) > 1:
                dropped = log.starts.pop(0)
                size = log.starts[0] - dropped
                (log.folder / _segment(dropped)).unlink(missing_ok=True)
                log.size -= size
                total -= size
        for key in sorted(logs):
            log = logs[key]
            if total <= self._job_bytes or log is newest:
                return
            if not log.size:
                continue
            total -= log.size
            # Emptied, not removed: its end is what an agent is told to go on from.
            for start in log.starts:
                (log.folder / _segment(start)).unlink(missing_ok=True)
            (log.folder / _segment(log.end)).touch()
            log.starts, log.size = [log.end], 0

    def _logs(self, job: JobId) -> dict[LogKey, _Log]:
        logs = self._jobs.pop(job, None)
        self._jobs[job] = logs = dict(self._scan(job)) if logs is None else logs
        while len(self._jobs) > _JOBS_OPEN:
            del self._jobs[next(iter(self._jobs))]  # the one that was not asked for the longest
        return logs

    def _scan(self, job: JobId) -> Iterator[tuple[LogKey, _Log]]:
        for folder in (self._folder / quote(job, safe="")).glob("*/*/*"):
            attempt, instance, rank = folder.parts[-3:]
            key = LogKey(int(attempt), InstanceId(unquote(instance)), rank)
            log = _found(folder)
            if log.starts or log.away:
                yield key, log

    def _path(self, job: JobId, key: LogKey) -> Path:
        # A name of dots alone survives quoting, so every instance gets a first letter of ours in that case.
        instance = quote(key.instance, safe="")
        if not instance.strip("."):
            raise BadInput(Problem("", "instance", f"no instance can be called '{key.instance}'"))
        return self._folder / quote(job, safe="") / str(key.attempt) / instance / key.rank


def _found(folder: Path) -> _Log:
    """The log in a folder."""
    log = _Log(folder)
    here = {int(file.stem): file for file in folder.glob("*.log")}
    for place in sorted(folder.glob("*.away")):
        start, _, size = place.stem.partition("-")
        segment = Segment(int(start), int(size))
        file = here.get(segment.start)
        if file is not None and file.stat().st_size != segment.size:
            place.unlink()  # it could not be removed when it had gone, and was written to since: it goes again
            continue
        if file is not None:
            file.unlink()
            del here[segment.start]
        log.away.append(segment)
        log.marks += _marks_in(place)
        log.searched = log.end = segment.end
    log.starts = sorted(here)
    if log.starts:
        log.end = log.starts[-1] + here[log.starts[-1]].stat().st_size
        log.size = sum(file.stat().st_size for file in here.values())
    return log


def _leave_behind(folder: Path, segment: Segment, marks: Sequence[Mark]) -> None:
    place = folder / f"{segment.start:015d}-{segment.size}.away"
    part = place.with_suffix(".part")
    part.write_text(json.dumps([astuple(mark) for mark in marks]))
    part.replace(place)


def _marks_in(place: Path) -> list[Mark]:
    try:
        return [Mark(*row) for row in json.loads(place.read_text())]
    except (ValueError, TypeError):
        return []  # a machine that lost power may have kept the name alone: then what was repeated is not cut


def _search(log: _Log, until: int) -> None:
    """Looks for marks up to ``until``, or where one begins of which the rest has not come yet."""
    while log.searched < until:
        at, data = _read(log, log.searched, _SEARCHED_BYTES)
        found, log.searched = find(data, at)
        log.marks += found
        if at + len(data) >= log.end:
            break


def _read(log: _Log, offset: int, limit: int) -> tuple[int, bytes]:
    if offset >= log.end or not log.starts or log.starts[0] == log.end:
        return max(offset, log.end), b""
    start = max((s for s in log.starts if s <= offset), default=log.starts[0])
    offset = max(offset, start)
    pieces: list[bytes] = []
    at = offset
    for segment in log.starts[log.starts.index(start) :]:
        if at - offset >= limit:
            break
        with (log.folder / _segment(segment)).open("rb") as file:
            file.seek(at - segment)
            piece = file.read(limit - (at - offset))
        pieces.append(piece)
        at += len(piece)
    return offset, b"".join(pieces)


def whole_characters(data: bytes) -> bytes:
    """``data`` without a UTF-8 character cut at its end; unchanged if that would leave nothing, or if it is not
    UTF-8.
    """
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if needed > back and back < len(data) else data
    return data


def _segment(start: int) -> str:
    return f"{start:015d}.log"


def _rank_order(rank: str) -> tuple[int, int, str]:
    if rank.isdigit():
        return (1, int(rank), rank)
    return (0 if rank == "setup" else 2, 0, rank)
