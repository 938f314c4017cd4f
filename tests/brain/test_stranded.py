"""A gang that must lie together does not wait for ever where the rest of it is not to be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from everstep.brain.guard import changeover_s
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.effects import Decision, DeleteVolume, Launch, Terminate
from everstep.model.events import (
    CauseSettled,
    CheckpointSaved,
    InstanceEnded,
    LaunchFailed,
    LaunchIntended,
    VolumeDeleted,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot, ZoneRule
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import JobState
from everstep.model.offers import Market, Offer
from tests.brain.making import fold, fresh, machine, offer, running, task
from tests.brain.test_plan import carry_out, decide, launches

I1, I2 = InstanceId("i-1"), InstanceId("i-2")
ROOM_IN_B = (offer("a", available=0), offer("b", price=1.5, available=2))
BOTH_SEE = {"a": "/shared", "b": "/shared"}


def ended(decision: Decision) -> list[str]:
    return [e.event.instance for e in decision.effects if isinstance(e, Terminate)]


def half(rule: ZoneRule = ZoneRule.SAME_ZONE, **fields: object) -> JobState:
    """One of two trains no more: its peer was lost at 12, in zone a."""
    job = fold(running(2, zones=rule, **fields), [InstanceEnded(I2, 12.0, InstanceEnd.LOST)], 12.0)
    return fold(job, [CauseSettled(1, Cause.PREEMPTION, "i-2 is gone")], 12.0)


def late(job: JobState) -> float:
    """When it has waited as long as a move takes."""
    assert job.waiting_since is not None
    return job.waiting_since + changeover_s(job)


def test_it_waits_as_long_as_a_move_takes_and_then_goes_where_there_is_room_for_all() -> None:
    job = half()
    patient = decide(job, late(job) - 1.0, offers=ROOM_IN_B, shared=BOTH_SEE)
    assert patient.effects == ()
    assert patient.record.wait.startswith("no capacity")
    goes = decide(job, late(job), offers=ROOM_IN_B, shared=BOTH_SEE)
    assert ended(goes) == [I1]
    assert goes.record.reasons == ("end i-1: the gang goes to b: no capacity for slot 0.1 where i-1 is",)
    assert goes.wake_at == late(job)
    job = carry_out(job, goes, late(job))
    moved = decide(job, late(job), offers=ROOM_IN_B, shared=BOTH_SEE)
    assert [(e.slot.index, e.offer.zone) for e in launches(moved)] == [(0, "b"), (1, "b")]


def test_a_gang_whose_first_launch_found_room_for_some_only_goes_too() -> None:
    job = fold(fresh(2, zones=ZoneRule.SAME_ZONE), machine(1))
    job = fold(job, [refused_launch(), LaunchFailed(LaunchToken("t-2"), "no_capacity", "none left")])
    assert ended(decide(job, late(job), offers=ROOM_IN_B, shared=BOTH_SEE)) == [I1]


def refused_launch() -> LaunchIntended:
    return LaunchIntended(LaunchToken("t-2"), 2, Slot(0, 1), offer(), None, shared_folder="/shared")


@pytest.mark.parametrize(
    ("offers", "shared"),
    [
        ((offer("a", available=0), offer("b", available=1)), BOTH_SEE),
        ((offer("a", available=0),), BOTH_SEE),
        ((offer("a", available=1), offer("b", available=2)), BOTH_SEE),
        (ROOM_IN_B, {"a": "/shared", "b": "/another"}),
        (ROOM_IN_B, {"a": "/shared"}),
    ],
    ids=["room for one", "nothing elsewhere", "room here", "checkpoints are not seen there", "no folder there"],
)
def test_it_stays_where_nothing_is_gained(offers: Sequence[Offer], shared: dict[str, str]) -> None:
    job = half()
    assert ended(decide(job, late(job) + 1000.0, offers=offers, shared=shared)) == []


def test_who_trains_is_not_disturbed_and_who_is_not_bound_stays() -> None:
    free = half(ZoneRule.ANY)
    decision = decide(free, late(free), offers=ROOM_IN_B, shared=BOTH_SEE)
    assert (ended(decision), [e.offer.zone for e in launches(decision)]) == ([], ["b"])
    at_work = running(2, zones=ZoneRule.SAME_ZONE)
    assert ended(decide(at_work, 10_000.0, offers=ROOM_IN_B, shared=BOTH_SEE)) == []


def test_a_region_is_left_like_a_zone() -> None:
    job = half(ZoneRule.SAME_REGION)
    near = (offer("a", available=0), offer("b", available=2))
    decision = decide(job, late(job), offers=near, shared=BOTH_SEE)
    assert (ended(decision), [e.offer.zone for e in launches(decision)]) == ([], ["b"])
    far = (offer("a", available=0), offer("b", available=2, region="s"))
    assert ended(decide(job, late(job), offers=far, shared=BOTH_SEE)) == [I1]


def test_on_demand_where_it_is_comes_before_a_move() -> None:
    job = half()
    offers = (*ROOM_IN_B, offer("a", Market.ON_DEMAND, 3.0))
    decision = decide(job, late(job), offers=offers, shared=BOTH_SEE)
    assert (ended(decision), [e.offer.market for e in launches(decision)]) == ([], [Market.ON_DEMAND])


def on_disks(*, mirror: str = "s3://b/p", **fields: object) -> JobState:
    """As ``half``, on disks of their own in zone a, with a checkpoint that is in the mirror too."""
    job = fresh(2, zones=ZoneRule.SAME_ZONE, checkpoint=replace(task().checkpoint, mirror=mirror), **fields)
    for n in (0, 1):
        job = fold(job, [VolumeIntended(Slot(0, n), f"j-test0001-0.{n}", "a", "box", 10.0)])
        job = fold(job, [VolumeReady(Slot(0, n), VolumeId(f"v-{n}"), 0.0)])
        intended, *rest = machine(n + 1, shared="")
        assert isinstance(intended, LaunchIntended)
        job = fold(job, [replace(intended, volume=VolumeId(f"v-{n}")), *rest])
    job = started(job)
    job = fold(job, [CheckpointSaved(I1, 1, 7, 100, 0.1, 0.0, True)])
    job = fold(job, [InstanceEnded(I2, 12.0, InstanceEnd.LOST)], 12.0)
    return fold(job, [CauseSettled(1, Cause.PREEMPTION, "i-2 is gone")], 12.0)


def started(job: JobState) -> JobState:
    from everstep.model.events import PeersChecked, RanksStarted

    job = fold(job, [PeersChecked(i, 1) for i in (I1, I2)])
    return fold(job, [RanksStarted(i, 1, 1, 0.0) for i in (I1, I2)])


def test_disks_that_are_mirrored_do_not_hold_a_gang() -> None:
    job = on_disks()
    goes = decide(job, late(job), offers=ROOM_IN_B, shared={})
    assert ended(goes) == [I1]
    assert not [e for e in goes.effects if isinstance(e, Launch)]
    at = late(job)
    job = fold(carry_out(job, goes, at), [InstanceEnded(I1, at, InstanceEnd.OWNER)], at)
    gone = decide(job, at, offers=ROOM_IN_B, shared={})
    deleted = [e.event.volume for e in gone.effects if isinstance(e, DeleteVolume)]
    assert sorted(deleted) == ["v-0", "v-1"]
    job = fold(carry_out(job, gone, at), [VolumeDeleted(v, at) for v in deleted], at)
    made = decide(job, at, offers=ROOM_IN_B, shared={})
    assert {e.event.zone for e in made.effects if hasattr(e, "event") and isinstance(e.event, VolumeIntended)} == {"b"}


@pytest.mark.parametrize("fields", [{"mirror": ""}, {"outputs": ("results",)}], ids=["no mirror", "files are wanted"])
def test_disks_that_are_worth_something_hold_it(fields: dict[str, object]) -> None:
    job = on_disks(**fields)  # type: ignore[arg-type]
    assert ended(decide(job, late(job) + 1000.0, offers=ROOM_IN_B, shared={})) == []
