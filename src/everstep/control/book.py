"""All jobs this server knows: live ones as states, ended ones packed small until somebody asks for them."""

from __future__ import annotations

import functools
import hashlib
import pickle
import typing
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from everstep.brain.pools import PoolBook
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState

_KEPT_OPEN = 32


class Book(Mapping[JobId, JobState]):
    """Live and ended jobs by id.

    Args:
        live: the core's own mapping of live jobs; looked up, never copied.
    """

    def __init__(self, live: dict[JobId, JobState]) -> None:
        """See the class."""
        self._live = live
        self._ended: dict[JobId, bytes] = {}
        self._opened: dict[JobId, JobState] = {}
        self._job_of: dict[InstanceId, JobId] = {}

    def __getitem__(self, job: JobId) -> JobState:
        """The state of a job; raises KeyError."""
        state = self._live.get(job) or self._opened.get(job)
        if state is None:
            state = pickle.loads(zlib.decompress(self._ended[job]))
            self._opened[job] = state
            while len(self._opened) > _KEPT_OPEN:
                self._opened.pop(next(iter(self._opened)))
        return state

    def __iter__(self) -> Iterator[JobId]:
        """Ids, oldest ended jobs first, then live ones."""
        yield from self._ended
        yield from self._live

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self._ended) + len(self._live)

    def __contains__(self, job: object) -> bool:
        """Whether the job is known."""
        return job in self._live or job in self._ended

    def index(self, state: JobState) -> None:
        """Keeps machine -> job up to date."""
        for machine in state.instances.values():
            if machine.instance is None:
                continue
            if machine.alive:
                self._job_of[machine.instance] = state.id
            else:
                self._job_of.pop(machine.instance, None)

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job a living machine is for."""
        return self._job_of.get(instance)

    def put_away(self, state: JobState) -> None:
        """Packs a job that has ended."""
        self._ended[state.id] = _pack(state)
        self.index(state)

    def take_out(self, job: JobId) -> JobState:
        """Unpacks an ended job because something happens to it again; raises KeyError."""
        state = self[job]
        self._ended.pop(job, None)
        self._opened.pop(job, None)
        return state

    def is_put_away(self, job: JobId) -> bool:
        """Whether the job is packed."""
        return job in self._ended

    # --- Snapshots --------------------------------------------------------------------------------------------------

    def packed(self) -> dict[JobId, bytes]:
        """The ended jobs as they are at this moment."""
        return dict(self._ended)

    @staticmethod
    def dump(live: Mapping[JobId, JobState], pools: PoolBook, ended: Mapping[JobId, bytes]) -> bytes:
        """A snapshot of everything; safe to call from another thread with copies of one moment."""
        return pickle.dumps((shape_stamp(), dict(live), dict(ended), pools), protocol=5)

    def load(self, body: bytes) -> PoolBook | None:
        """Takes a snapshot in; None (and nothing taken) if another version of the code wrote it: the journal has it
        all."""
        try:
            stamp, live, ended, pools = pickle.loads(body)
        except Exception:
            # Written by other code: pickle may raise nearly anything. The snapshot is a cache of the journal.
            return None
        if stamp != shape_stamp() or not isinstance(pools, PoolBook):
            return None
        self._live.update(live)
        self._ended.update(ended)
        for state in live.values():
            self.index(state)
        return pools


def _pack(state: JobState) -> bytes:
    return zlib.compress(pickle.dumps(state, protocol=5), 3)


@functools.cache
def shape_stamp() -> str:
    """Names the shape of ``JobState`` and all it holds: a snapshot of another shape is thrown away."""
    seen: dict[type, str] = {}
    _describe(JobState, seen)
    _describe(PoolBook, seen)
    text = "\n".join(sorted(seen.values()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _describe(hint: object, seen: dict[type, str]) -> None:
    for part in typing.get_args(hint):
        _describe(part, seen)
    if not isinstance(hint, type) or hint in seen or not is_dataclass(hint):
        return
    seen[hint] = f"{hint.__qualname__}: {[(f.name, str(f.type)) for f in fields(hint)]}"
    for kind in typing.get_type_hints(hint).values():
        _describe(kind, seen)
