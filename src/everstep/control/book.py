"""All jobs this server knows: live ones as states, ended ones packed and out of memory until somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from everstep.control.packing import pack, unpack
from everstep.control.shelf import Leaf, Shelf
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState

_KEPT_OPEN = 32


class Book(Mapping[JobId, JobState]):
    """Live and ended jobs by id.

    Args:
        live: the kernel's own mapping of live jobs; looked up, never copied.
        shelf: where ended jobs lie.
    """

    def __init__(self, live: dict[JobId, JobState], shelf: Shelf | None = None) -> None:
        """See the class."""
        self._live = live
        self._shelf = shelf or Shelf()
        self._ended: dict[JobId, Leaf] = {}
        self._opened: dict[JobId, JobState] = {}
        self._job_of: dict[InstanceId, JobId] = {}

    def __getitem__(self, job: JobId) -> JobState:
        """The state of a job; raises KeyError."""
        state = self._live.get(job) or self._opened.get(job)
        if state is None:
            state = unpack(self._ended[job].read())
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
            # One that has not joined speaks for no job: its credential may be of a time that the journal forgot when it
            # was put back, and then the agent must join again.
            if machine.alive and machine.joined_at is not None:
                self._job_of[machine.instance] = state.id
            else:
                self._job_of.pop(machine.instance, None)

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job of a living machine that has joined."""
        return self._job_of.get(instance)

    def put_away(self, state: JobState) -> None:
        """Packs a job that has ended."""
        self._ended[state.id] = self._shelf.put(pack(state))
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

    def packed(self) -> dict[JobId, Leaf]:
        """The ended jobs as they are at this moment."""
        return dict(self._ended)

    def restore(self, live: Mapping[JobId, JobState], ended: Mapping[JobId, Leaf]) -> None:
        """Takes in what a snapshot held."""
        self._live.update(live)
        self._ended.update(ended)
        for state in live.values():
            self.index(state)
