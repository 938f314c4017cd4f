"""Logs of jobs, kept as they come: ``JOB/ATTEMPT/INSTANCE/RANK/<start>.log``, in segments.

A log is named by its instance and not by a node rank, because machines are replaced within an attempt number (set-up
runs before there is one) and two machines never share a file. Offsets count the bytes of the whole log; retention
drops old segments, so a log may begin later than at 0, but what is held of it has no hole.

Logs are telemetry: they are not flushed to the platter, and the oldest are dropped when a job has more than its share.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Log:
    """What is held of one log: segments by their start; its marks, as far as it was looked through for them."""

    folder: Path
    starts: list[int] = field(default_factory=list)
    end: int = 0
    size: int = 0
    marks: list[Mark] = field(default_factory=list)
    searched: int = 0


class LogBook:
    """All logs below one folder. Used from the event loop only; calls are short."""

    def __init__(self, folder: Path, *, job_bytes: int = JOB_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Args: folder: where; job_bytes: how much of each job is kept; segment_bytes: what is dropped at a time."""
        self._folder = folder
        self._job_bytes = job_bytes
        self._segment_bytes = segment_bytes
        self._jobs: dict[JobId, dict[LogKey, _Log]] = {}
        self.bells = Bells()

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
        """At most ``limit`` bytes from ``offset``, or from the first byte that is still held if that is later; with
        their offset.

        A character of several bytes is never cut while more of the log may come; behind the end: no bytes.
        """
        log = self._logs(job).get(key)
        if log is None:
            return offset, b""
        offset, data = _read(log, offset, limit)
        return offset, whole_characters(data)

    def marks(self, job: JobId, key: LogKey) -> tuple[Sequence[Mark], int]:
        """The marks in a log, and the offset behind which another one may just be coming in."""
        log = self._logs(job).get(key)
        if log is None:
            return (), 0
        while log.searched < log.end:
            at, data = _read(log, log.searched, _SEARCHED_BYTES)
            found, log.searched = find(data, at)
            log.marks += found
            if at + len(data) >= log.end:
                break
        return log.marks, log.searched

    def forget(self, job: JobId) -> None:
        """Deletes all logs of a job."""
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
            starts = sorted(int(file.stem) for file in folder.glob("*.log"))
            if starts:
                end = starts[-1] + (folder / _segment(starts[-1])).stat().st_size
                yield (
                    LogKey(int(attempt), InstanceId(unquote(instance)), rank),
                    _Log(folder, starts, end, end - starts[0]),
                )

    def _path(self, job: JobId, key: LogKey) -> Path:
        # A name of dots alone survives quoting, so every instance gets a first letter of ours in that case.
        instance = quote(key.instance, safe="")
        if not instance.strip("."):
            raise BadInput(Problem("", "instance", f"no instance can be called '{key.instance}'"))
        return self._folder / quote(job, safe="") / str(key.attempt) / instance / key.rank


def _read(log: _Log, offset: int, limit: int) -> tuple[int, bytes]:
    if offset >= log.end or log.starts[0] == log.end:
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
