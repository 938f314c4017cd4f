"""A gang is asked for whole: with all of its disks, and with credit for all of it; which disks bind it to a zone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from everstep.brain.plan import Snapshot, plan
from everstep.brain.pools import PoolBook, PoolRecord
from everstep.brain.snapshot import Settings
from everstep.model.causes import InstanceEnd
from everstep.model.effects import Decision, DeleteVolume, EnsureVolume, Launch
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
from everstep.model.job import JobState
from everstep.model.offers import Market, Offer
from tests.brain.making import DEPLOYMENT, fold, fresh, offer

SLOTS = [Slot(0, 0), Slot(0, 1), Slot(0, 2)]
SPOT = offer("a")


def decide(
    job: JobState, now: float = 10.0, *, shared: bool = False, per_minute: int = 60, asked: int = 0,
    offers: Sequence[Offer] = (SPOT,),
) -> Decision:  # fmt: skip
    """Args: per_minute, asked: how many launches the pool allows in a minute, how many there were 5 s ago."""
    pools = PoolBook({SPOT.pool: PoolRecord(launched_at=(now - 5.0,) * asked)})
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


def test_a_gang_waits_for_credit_for_all_of_it() -> None:
    waiting = decide(fresh(3), shared=True, per_minute=4, asked=2)
    assert waiting.effects == ()
    assert waiting.record.wait == f"pool {SPOT.pool} has no launch credit"
    assert waiting.wake_at is not None
    assert [n for n, _ in launched(decide(fresh(3), shared=True, per_minute=4, asked=1))] == [0, 1, 2]


def test_a_gang_beyond_the_credit_of_a_minute_starts_with_as_many_as_it_may() -> None:
    assert launched(decide(fresh(3), shared=True, per_minute=2, asked=1)) == []
    first = decide(fresh(3), shared=True, per_minute=2)
    assert [n for n, _ in launched(first)] == [0, 1]
    assert first.record.wait == f"pool {SPOT.pool} has no launch credit"


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


def with_disks(*events: Event, nodes: int = 1) -> JobState:
    intents = [VolumeIntended(s, f"j-test0001-{s}", "a", "box", 10.0) for s in SLOTS[:nodes]]
    return fold(fresh(nodes, zones=ZoneRule.SAME_ZONE), [*intents, *disks(SLOTS[:nodes]), *events])


def moved(decision: Decision) -> tuple[list[str], list[str]]:
    """Disks that are deleted, and zones in which others are made."""
    gone = [str(e.event.volume) for e in decision.effects if isinstance(e, DeleteVolume)]
    return gone, [e.event.zone for e in decision.effects if isinstance(e, EnsureVolume)]


@pytest.mark.parametrize("what", [refused(SLOTS[0]), lost(SLOTS[0], joined=False)], ids=["refused", "never joined"])
def test_a_disk_on_which_nothing_can_be_does_not_keep_a_job_where_it_is_dearer(what: list[Event]) -> None:
    decision = decide(with_disks(*what), offers=DEAR_HERE_CHEAP_THERE)
    assert moved(decision) == (["v-0"], ["b"])
    assert decision.record.reasons[0] == "delete disk v-0: unused, and slot 0.0 goes to b"


@pytest.mark.parametrize("what", [[], lost(SLOTS[0], joined=True)], ids=["not tried yet", "a machine had it"])
def test_any_other_disk_binds(what: list[Event]) -> None:
    decision = decide(with_disks(*what), offers=DEAR_HERE_CHEAP_THERE)
    assert launched(decision) == [(0, "v-0")]
    assert moved(decision) == ([], [])


def test_a_refused_gang_takes_its_disks_along_to_one_zone() -> None:
    job = with_disks(*(e for s in SLOTS for e in refused(s)), nodes=3)
    assert moved(decide(job, offers=DEAR_HERE_CHEAP_THERE)) == (["v-0", "v-1", "v-2"], ["b", "b", "b"])


def test_a_gang_of_one_zone_stays_where_a_disk_of_it_was_used() -> None:
    job = with_disks(*refused(SLOTS[0]), *lost(SLOTS[1], joined=True), *refused(SLOTS[2]), nodes=3)
    decision = decide(job, offers=DEAR_HERE_CHEAP_THERE)
    assert launched(decision) == [(0, "v-0"), (1, "v-1"), (2, "v-2")]
