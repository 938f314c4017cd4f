"""All jobs by id: ended ones packed, and as good as new when they are looked at."""

from __future__ import annotations

import errno
import gc
import os
import tracemalloc
from dataclasses import replace

import pytest

from everstep.control.book import Book
from everstep.control.packing import pack, unpack
from everstep.control.shelf import Shelf
from everstep.model.causes import InstanceEnd
from everstep.model.events import InstanceEnded
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState
from everstep.testing.scripted_run import play_on_heap
from tests.brain.making import JOB, fold, prepared, running
from tests.parity.worlds import WORLDS


def book(*states: JobState) -> Book:
    live = {state.id: state for state in states}
    made = Book(live)
    for state in states:
        made.index(state)
    return made


@pytest.mark.parametrize("world", WORLDS[:12], ids=[w.name for w in WORLDS[:12]])
def test_a_packed_job_is_the_same_when_unpacked(world: object) -> None:
    for state in play_on_heap(world).states.values():  # type: ignore[arg-type]
        assert unpack(pack(state)) == state


def test_jobs_are_found_live_and_packed_and_counted_once() -> None:
    live: dict[JobId, JobState] = {JOB: running(1)}
    kept = Book(live)
    assert (len(kept), list(kept), JOB in kept) == (1, [JOB], True)
    kept.put_away(live.pop(JOB))
    assert (len(kept), list(kept), JOB in kept, kept.is_put_away(JOB)) == (1, [JOB], True, True)
    assert kept[JOB] == running(1)
    live[JOB] = kept.take_out(JOB)
    assert (len(kept), kept.is_put_away(JOB)) == (1, False)
    with pytest.raises(KeyError):
        kept[JobId("j-nobody")]
    with pytest.raises(KeyError):
        kept.take_out(JobId("j-nobody"))
    assert kept.get(JobId("j-nobody")) is None


def test_a_job_that_changed_after_it_was_taken_out_is_not_remembered_as_it_was() -> None:
    live: dict[JobId, JobState] = {JOB: prepared(1)}
    kept = Book(live)
    kept.put_away(live.pop(JOB))
    assert kept[JOB] == prepared(1)
    kept.take_out(JOB)
    live[JOB] = running(1)
    assert kept[JOB] == running(1)
    kept.put_away(live.pop(JOB))
    assert kept[JOB] == running(1)


def test_looking_at_many_ended_jobs_keeps_only_a_few_open() -> None:
    kept = book()
    state = running(1)
    packed = {JobId(f"j-{n}"): pack(state) for n in range(500)}
    kept.restore({}, Shelf().put_all(packed))
    for job in kept:
        assert kept[job] == state
    assert len(kept._opened) <= 32


def test_machines_lead_to_their_job_while_they_live() -> None:
    state = running(2)
    kept = book(state)
    assert kept.job_of(InstanceId("i-1")) == JOB
    kept.index(fold(state, [InstanceEnded(InstanceId("i-1"), 1.0, InstanceEnd.LOST)]))
    assert kept.job_of(InstanceId("i-1")) is None
    assert kept.job_of(InstanceId("i-2")) == JOB
    assert kept.job_of(InstanceId("i-99")) is None


def test_an_ended_job_takes_a_few_hundred_bytes_of_memory_however_much_it_was() -> None:
    live: dict[JobId, JobState] = {}
    kept = Book(live)
    state = replace(running(4), why=os.urandom(2_000).hex())
    assert len(pack(state)) > 2_000
    kept.put_away(state)
    gc.collect()
    tracemalloc.start()
    for n in range(1_000):
        kept.put_away(replace(state, id=JobId(f"j-{n:08d}")))
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] / 1_000
    tracemalloc.stop()
    assert held < 500
    assert kept[JobId("j-00000007")].attempts == state.attempts


def test_what_a_full_disk_refuses_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    shelf = Shelf()
    first = shelf.put(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        second = shelf.put(b"meanwhile")
    third = shelf.put(b"after")
    assert [leaf.read() for leaf in (first, second, third)] == [b"before", b"meanwhile", b"after"]


def test_a_shelf_writes_all_of_it_although_the_kernel_takes_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    shelf = Shelf()
    leaves = [*shelf.put_all({"a": b"first", "b": b"", "c": b"third"}).values(), shelf.put(b"fourth")]
    assert [leaf.read() for leaf in leaves] == [b"first", b"", b"third", b"fourth"]


def test_the_memory_of_ended_jobs_is_small() -> None:
    """50 KB a job is the goal; an ended one takes a fraction of it."""
    worst = max(len(pack(s)) for w in WORLDS for s in play_on_heap(w).states.values())
    assert worst < 5_000
