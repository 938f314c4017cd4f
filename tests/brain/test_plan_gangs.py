"""A gang is asked for whole: with all of its disks, and with credit for all of it; which disks bind it to a zone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from everstep.brain.plan import Snapshot, plan
from everstep.brain.pools import PoolBook, PoolRecord, note_pools
from everstep.brain.snapshot import Settings
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.effects import Decision, DeleteVolume, EnsureVolume, Launch, Terminate
from everstep.model.events import (
    Event,
    InstanceEnded,
    InstanceJoined,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot, ZoneRule
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import AttemptState, GangPhase, JobPhase, JobState, Saved
from everstep.model.offers import Market, Offer
from everstep.model.task import CheckpointSpec, OnNoCapacity, Recovery
from tests.brain.making import DEPLOYMENT, fold, fresh, offer

SLOTS = [Slot(0, 0), Slot(0, 1), Slot(0, 2)]
SPOT = offer("a")


def decide(
    job: JobState, now: float = 10.0, *, shared: bool = False, per_minute: int = 60, asked: int = 0,
    offers: Sequence[Offer] = (SPOT,), pools: PoolBook | None = None,
) -> Decision:  # fmt: skip
    """Args: per_minute, asked: how many launches the pool allows in a minute, how many there were 5 s ago."""
    pools = pools or PoolBook({SPOT.pool: PoolRecord(launched_at=(now - 5.0,) * asked)})
    folders = {"a": "/shared"} if shared else {}
    settings = Settings(launches_per_minute=per_minute)
    return plan(Snapshot(DEPLOYMENT, (job,), offers, pools, {}, folders, settings=settings), now, Random(0))[0]


def launched(decision: Decision) -> list[tuple[int, str | None]]:
    events: list[LaunchIntended] = [e.event for e in decision.effects if isinstance(e, Launch)]
    return [(e.slot.index, e.volume) for e in events]


def disks(slots: Sequence[Slot], now: float = 5.0) -> list[Event]:
    return [VolumeReady(s, VolumeId(f"v-{s.index}"), now, 0.001, f"j-test0001-{s}") for s in slots]


def ordered() -> JobState:
    intents = [VolumeIntended(s, f"j-test0001-{s}", "a", "box", 10.0) for s in SLOTS]
    return fold(fresh(3), intents)


def test_all_disks_are_ordered_at_once() -> None:
    effects = decide(fresh(3)).effects
    assert [e.event.slot for e in effects if isinstance(e, EnsureVolume)] == SLOTS
    assert len(effects) == 3


def test_no_machine_starts_until_every_disk_is_there_and_then_all_do() -> None:
    for there in ([], SLOTS[:1], SLOTS[1:]):
        decision = decide(fold(ordered(), disks(there)))
        assert decision.effects == ()
        missing = next(s for s in reversed(SLOTS) if s not in there)
        assert decision.record.wait == f"the disk of slot {missing} is being made"
    assert launched(decide(fold(ordered(), disks(SLOTS)))) == [(0, "v-0"), (1, "v-1"), (2, "v-2")]


def test_nobody_starts_while_one_disk_cannot_be_made_and_that_one_is_tried_again() -> None:
    job = fold(ordered(), disks(SLOTS[:2]))
    job = fold(job, [VolumeFailed(SLOTS[2], "quota", "no more disks", f"j-test0001-{SLOTS[2]}")], 9.0)
    waiting = decide(job, 10.0)
    assert waiting.effects == ()
    assert waiting.record.wait == "the disk of slot 0.2 could not be made"
    assert waiting.wake_at is not None
    (again,) = decide(job, 19.0).effects
    assert isinstance(again, EnsureVolume)
    assert again.event.slot == SLOTS[2]


def test_credit_for_one_machine_does_for_a_gang_and_the_pool_catches_up_afterwards() -> None:
    waiting = decide(fresh(3), shared=True, per_minute=2, asked=2)
    assert waiting.effects == ()
    assert waiting.record.wait == f"pool {SPOT.pool} has no launch credit"
    assert waiting.wake_at is not None
    told = decide(fresh(3), shared=True, per_minute=2, asked=1)
    assert [n for n, _ in launched(told)] == [0, 1, 2]
    book = PoolBook({SPOT.pool: PoolRecord(launched_at=(5.0,))})
    for effect in told.effects:
        book = note_pools(book, effect.event, None, 10.0)
    # Two of four launches in the last minute are allowed: the next is when but one of them has left it.
    assert book.credit_at(SPOT.pool, 11.0, 2) == 70.0


def test_a_gang_comes_to_its_turn_beside_jobs_that_take_all_credit_one_by_one() -> None:
    book = PoolBook({SPOT.pool: PoolRecord(launched_at=tuple(float(n) for n in range(-60, 0)))})
    for now in range(120):
        if launched(decide(fresh(40), float(now), shared=True, pools=book)):
            break
        if book.credit_at(SPOT.pool, now + 0.5, 60) <= now + 0.5:
            other = LaunchIntended(LaunchToken(f"o-{now}"), 1, SLOTS[0], SPOT, 3.0, "/shared", None)
            book = note_pools(book, other, None, now + 0.5)
    assert now <= 1


# --- What a disk binds ------------------------------------------------------------------------------------------------

DEAR_HERE_CHEAP_THERE = (offer("a", Market.ON_DEMAND, 3.0), offer("b"))


def tried(slot: Slot, *after: Event) -> list[Event]:
    """A machine for the slot, with its disk; and what came of it."""
    n = slot.index
    return [LaunchIntended(LaunchToken(f"t-{n}"), n + 1, slot, SPOT, 3.0, "", VolumeId(f"v-{n}")), *after]


def refused(slot: Slot) -> list[Event]:
    return tried(slot, LaunchFailed(LaunchToken(f"t-{slot.index}"), "no_capacity", "none"))


def lost(slot: Slot, *, joined: bool) -> list[Event]:
    token, instance = LaunchToken(f"t-{slot.index}"), InstanceId(f"i-{slot.index}")
    join = [InstanceJoined(instance, "10.0.0.1", 1)] if joined else []
    return tried(
        slot, LaunchSucceeded(token, instance, 5.0, 1.0), *join, InstanceEnded(instance, 6.0, InstanceEnd.LOST)
    )


def with_disks(*events: Event, nodes: int = 1, zones: ZoneRule = ZoneRule.SAME_ZONE, **task: Any) -> JobState:
    intents = [VolumeIntended(s, f"j-test0001-{s}", "a", "box", 10.0) for s in SLOTS[:nodes]]
    return fold(fresh(nodes, zones=zones, **task), [*intents, *disks(SLOTS[:nodes]), *events])


def was_in_an_attempt(job: JobState) -> JobState:
    """Whoever joined was."""
    members = tuple(m.token for m in job.instances.values() if m.joined_at is not None)
    ended = AttemptState(
        1, members, 1, 5.0, phase=GangPhase.ENDED, cause=Cause.PREEMPTION, ended_at=6.0, settled_at=6.0
    )
    return replace(job, attempts=(ended,))


def moved(decision: Decision) -> tuple[list[str], list[str]]:
    """Disks that are deleted, and zones in which others are made."""
    gone = [str(e.event.volume) for e in decision.effects if isinstance(e, DeleteVolume)]
    return gone, [e.event.zone for e in decision.effects if isinstance(e, EnsureVolume)]


CAME_TO_NOTHING = {
    "refused": refused(SLOTS[0]),
    "never joined": lost(SLOTS[0], joined=False),
    "joined, but there was no attempt yet": lost(SLOTS[0], joined=True),
}


@pytest.mark.parametrize("what", CAME_TO_NOTHING.values(), ids=CAME_TO_NOTHING)
def test_a_disk_on_which_nothing_can_be_does_not_keep_a_job_where_it_is_dearer(what: list[Event]) -> None:
    decision = decide(with_disks(*what), offers=DEAR_HERE_CHEAP_THERE)
    assert moved(decision) == (["v-0"], ["b"])
    assert decision.record.reasons[0] == "delete disk v-0: unused, and slot 0.0 goes to b"


OTHERS = [with_disks(), was_in_an_attempt(with_disks(*lost(SLOTS[0], joined=True)))]


@pytest.mark.parametrize("job", OTHERS, ids=["not tried yet", "a machine worked with it"])
def test_any_other_disk_binds(job: JobState) -> None:
    decision = decide(job, offers=DEAR_HERE_CHEAP_THERE)
    assert launched(decision) == [(0, "v-0")]
    assert moved(decision) == ([], [])


def test_a_refused_gang_takes_its_disks_along_to_one_zone() -> None:
    job = with_disks(*(e for s in SLOTS for e in refused(s)), nodes=3)
    assert moved(decide(job, offers=DEAR_HERE_CHEAP_THERE)) == (["v-0", "v-1", "v-2"], ["b", "b", "b"])


def test_a_gang_of_one_zone_stays_where_a_disk_of_it_was_used() -> None:
    job = with_disks(*refused(SLOTS[0]), *lost(SLOTS[1], joined=True), *refused(SLOTS[2]), nodes=3)
    decision = decide(was_in_an_attempt(job), offers=DEAR_HERE_CHEAP_THERE)
    assert sorted(launched(decision)) == [(0, "v-0"), (1, "v-1"), (2, "v-2")]


def test_a_gang_of_one_region_stays_where_a_disk_of_it_was_used() -> None:
    job = with_disks(*refused(SLOTS[0]), *lost(SLOTS[1], joined=True), nodes=2, zones=ZoneRule.SAME_REGION)
    offers = (offer("a", price=1.1, region="r1"), offer("z", price=1.0, region="r2"))
    decision = decide(was_in_an_attempt(job), offers=offers)
    assert sorted(launched(decision)) == [(0, "v-0"), (1, "v-1")]


def test_disks_that_bind_nobody_go_where_a_folder_is_shared() -> None:
    decision = decide(with_disks(*refused(SLOTS[0])), offers=(offer("a"),), shared=True)
    assert moved(decision) == (["v-0"], [])
    assert launched(decision) == [(0, None)]


def test_a_gang_that_lacks_room_for_one_is_kept_by_no_disk_of_the_others() -> None:
    """All machines are gone, all is in the mirror; here is room for one of two, there for both."""
    mirror = CheckpointSpec(mirror="s3://b/p")
    job = with_disks(*(e for s in SLOTS[:2] for e in lost(s, joined=True)), nodes=2, checkpoint=mirror)
    job = was_in_an_attempt(job)
    job = replace(job, attempts=(replace(job.attempts[0], saves=(Saved(5, 6.0),)),))
    offers = (replace(SPOT, available=1), replace(offer("b"), available=2))
    assert moved(decide(job, offers=offers)) == (["v-0", "v-1"], [])


def test_a_machine_whose_disk_was_given_up_is_ended_when_it_comes_after_all() -> None:
    """Its launch was told to fail; what it would save on a disk that is deleted would be lost."""
    job = with_disks(*refused(SLOTS[0]))
    job = fold(job, [e.event for e in decide(job, offers=DEAR_HERE_CHEAP_THERE).effects], 10.0)
    job = fold(job, [LaunchSucceeded(LaunchToken("t-0"), InstanceId("i-0"), 11.0, 1.0)], 11.0)
    (end,) = decide(job, 12.0, offers=DEAR_HERE_CHEAP_THERE).effects
    assert isinstance(end, Terminate)
    assert (end.event.instance, end.event.reason) == ("i-0", "its disk is being deleted")


@pytest.mark.parametrize("used", [True, False])
def test_a_job_that_failed_keeps_disks_on_which_something_may_be(used: bool) -> None:
    recovery = Recovery(on_no_capacity=OnNoCapacity.FAIL)
    job = with_disks(*lost(SLOTS[0], joined=True), zones=ZoneRule.ANY, recovery=recovery)
    job = was_in_an_attempt(job) if used else job
    job = fold(job, [e.event for e in decide(job, offers=()).effects], 11.0)
    assert job.phase is JobPhase.FAILED
    assert moved(decide(job, 12.0)) == ([] if used else ["v-0"], [])
