from __future__ import annotations

import dataclasses

import pytest

from everstep.brain.pools import PoolBook, PoolRecord
from everstep.control import snapshots
from everstep.control.packing import pack, unpack
from everstep.control.shelf import Leaf, Shelf
from everstep.control.snapshots import Moment, Snapshots
from everstep.model.ids import JobId
from everstep.model.job import JobPhase, JobState
from everstep.model.offers import Market, Pool
from everstep.store.memory import MemoryStore
from tests.server.fakes import attempt, job, machine

POOLS = PoolBook({Pool("p", "z", "m", Market.SPOT): PoolRecord(1.0, "preempted", 2, 3, (4.0,))})


class Clock:
    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        pass


def state(number: int, **more: object) -> JobState:
    return job(f"j-{number:08d}", machine(f"i-{number}"), attempts=(attempt(1, f"i-{number}"),), **more)


def ended(*numbers: int) -> dict[JobId, Leaf]:
    return {s.id: Shelf().put(pack(s)) for s in (state(n, phase=JobPhase.SUCCEEDED) for n in numbers)}


def moment(seq: int, live: list[JobState], away: dict[JobId, Leaf]) -> Moment:
    return Moment(seq, {s.id: s for s in live}, away, POOLS)


def test_a_packed_state_is_the_same_state() -> None:
    whole = state(1, save_seq=3, why="…")
    assert unpack(pack(whole)) == whole


async def test_what_was_saved_is_there_after_a_restart_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_PART_JOBS", 2)
    store, clock = MemoryStore(), Clock()
    first = Snapshots(store, clock)
    away = ended(1)
    for seq, more in enumerate([ended(2), ended(3), ended(4, 5), {}], start=1):
        away = {**away, **more}
        await first.save(moment(seq, [state(9), state(10)], away))
        assert await Snapshots(store, clock).load() == moment(seq, [state(9), state(10)], away)


async def test_ended_jobs_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_PART_JOBS", 2)
    store = MemoryStore()
    sizes = []
    save = store.save_snapshot

    async def watched(name: str, *, seq: int, body: bytes) -> None:
        sizes.append(len(body))
        await save(name, seq=seq, body=body)

    monkeypatch.setattr(store, "save_snapshot", watched)
    kept, away = Snapshots(store, Clock()), ended(*range(100))
    await kept.save(moment(1, [], away))
    assert len(sizes) == 2
    await kept.save(moment(2, [], away))
    assert sizes[2:] == [sizes[1]]
    assert sizes[1] < sizes[0] / 10
    after = Snapshots(store, Clock())
    found = await after.load()
    assert found is not None
    await after.save(moment(3, [], {**found.ended, **ended(200)}))
    assert len(sizes) == 4


async def test_a_job_that_was_retried_is_live_and_when_it_ends_again_its_new_end_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "_PART_JOBS", 2)
    store = MemoryStore()
    kept, away = Snapshots(store, Clock()), ended(1, 2)
    await kept.save(moment(1, [], away))
    rest = {JobId("j-00000002"): away[JobId("j-00000002")]}
    await kept.save(moment(2, [state(1)], rest))
    assert await Snapshots(store, Clock()).load() == moment(2, [state(1)], rest)
    again = state(1, phase=JobPhase.FAILED)
    await kept.save(moment(3, [], {**rest, again.id: Shelf().put(pack(again))}))
    found = await Snapshots(store, Clock()).load()
    assert found is not None
    assert unpack(found.ended[again.id].read()) == again


@pytest.mark.parametrize("which", ["head", "part"])
async def test_a_snapshot_that_does_not_fit_counts_as_none(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_PART_JOBS", 1)
    store = MemoryStore()
    await Snapshots(store, Clock()).save(moment(1, [state(2)], ended(1)))
    name = next(n for n in store._snapshots if ("ended" in n) == (which == "part"))
    await store.save_snapshot(name, seq=1, body=b"of another version")
    assert await Snapshots(store, Clock()).load() is None


async def test_a_snapshot_of_another_shape_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await Snapshots(store, Clock()).save(moment(1, [state(2)], ended(1)))
    monkeypatch.setattr(snapshots, "shape_stamp", lambda: "another")
    assert await Snapshots(store, Clock()).load() is None


async def test_the_moment_stays_what_it_was_while_the_loop_goes_on() -> None:
    live = {s.id: s for s in (state(n) for n in range(50))}
    store = MemoryStore()

    class Meanwhile(Clock):
        async def sleep(self, seconds: float) -> None:
            live.clear()

    taken = dict(live)
    frozen = Moment(7, dict(live), {}, POOLS)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(snapshots, "_SLICE_S", 0.0)
        await Snapshots(store, Meanwhile()).save(frozen)
    found = await Snapshots(store, Clock()).load()
    assert found is not None
    assert not live
    assert found.live == taken
    assert dataclasses.replace(found, live={}) == dataclasses.replace(frozen, live={})
