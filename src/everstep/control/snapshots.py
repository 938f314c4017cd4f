"""Snapshots of all jobs, taken beside the running loop without holding it up.

Live jobs are packed a few at a time, with pauses. Jobs that ended lie in parts that are written once and then only
referred to: ten thousand old jobs must not be written again every few seconds. A snapshot is a cache of the journal:
one that does not fit in any way counts as none.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.brain.pools import PoolBook
from everstep.control.packing import pack, shape_stamp, unpack
from everstep.control.shelf import Leaf, Shelf
from everstep.model.ids import JobId
from everstep.model.job import JobState
from everstep.ports import Clock, Store

_HEAD = "controller"
_PART_JOBS = 500
_SLICE_S = 0.002
_PAUSE_S = 0.02
"""A tenth of the time is the snapshot's, nobody waits longer than a slice."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All jobs as they were after the line ``seq``; the mappings are not shared with anybody who changes them."""

    seq: int
    live: Mapping[JobId, JobState]
    ended: Mapping[JobId, Leaf]
    pools: PoolBook


class Snapshots:
    """Keeps the newest moment in the store."""

    def __init__(self, store: Store, clock: Clock, shelf: Shelf | None = None) -> None:
        """Args: store: where they lie; clock: for the pauses; shelf: for the ended jobs of one that is loaded."""
        self._shelf = shelf or Shelf()
        self._store = store
        self._clock = clock
        self._parts: tuple[str, ...] = ()
        self._in_parts: dict[JobId, Leaf] = {}

    async def save(self, moment: Moment, *, hurry: bool = False) -> None:
        """Replaces the snapshot; ``hurry``: without pauses. Raises what the store raises."""
        new = {job: leaf for job, leaf in moment.ended.items() if self._in_parts.get(job) is not leaf}
        tail = {job: leaf.read() for job, leaf in new.items()}
        if len(tail) >= _PART_JOBS:
            # A name of its own for each: an older head must never find newer jobs under a name it knows.
            name = f"{_HEAD}/ended/{len(self._parts)}/{moment.seq}"
            body = pickle.dumps((shape_stamp(), tail), protocol=5)
            await self._store.save_snapshot(name, seq=moment.seq, body=body)
            # Not before it is written: a head must never name a part that is not there.
            self._parts = (*self._parts, name)
            self._in_parts.update(new)
            tail = {}
        live = await self._pack(moment.live, hurry=hurry)
        body = pickle.dumps((shape_stamp(), self._parts, live, tail, moment.pools), protocol=5)
        await self._store.save_snapshot(_HEAD, seq=moment.seq, body=body)

    async def _pack(self, live: Mapping[JobId, JobState], *, hurry: bool) -> list[bytes]:
        packed: list[bytes] = []
        slice_ends = time.monotonic() + _SLICE_S
        for state in live.values():
            packed.append(pack(state))
            if not hurry and time.monotonic() >= slice_ends:
                await self._clock.sleep(_PAUSE_S)
                slice_ends = time.monotonic() + _SLICE_S
        return packed

    async def load(self) -> Moment | None:
        """The snapshot; None if there is none that this version of the code can read: the journal has it all."""
        found = await self._store.load_snapshot(_HEAD)
        if found is None:
            return None
        head = _opened(found[1], 5)
        if head is None:
            return None
        _, parts, live, tail, pools = head
        ended: dict[JobId, Leaf] = {}
        for name in parts:
            part = await self._store.load_snapshot(name)
            opened = None if part is None else _opened(part[1], 2)
            if opened is None:
                return None
            ended.update(self._shelf.put_all(opened[1]))
        self._parts, self._in_parts = parts, dict(ended)
        states = [unpack(data) for data in live]
        ended.update(self._shelf.put_all(tail))
        for state in states:
            ended.pop(state.id, None)  # retried since its part was written
        return Moment(found[0], {state.id: state for state in states}, ended, pools)


def _opened(body: bytes, size: int) -> tuple[Any, ...] | None:
    try:
        found = pickle.loads(body)
    except Exception:
        # Written by other code: pickle may raise nearly anything.
        return None
    fits = isinstance(found, tuple) and len(found) == size and found[0] == shape_stamp()
    return found if fits else None
