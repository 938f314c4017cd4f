from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from everstep.brain.guard import changeover_s, must_on_demand, progress, work_left_s
from everstep.brain.lifecycle import submitted, transition
from everstep.brain.plan import Heard, Snapshot, plan
from everstep.brain.pools import PoolBook, PoolRecord, note_pools
from everstep.brain.snapshot import Settings
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.effects import Decision, DeleteVolume, EnsureVolume, Launch, Note, Terminate
from everstep.model.events import (
    AttemptOverdue,
    BudgetSpent,
    CancelRequested,
    CauseSettled,
    CheckpointSaved,
    DeadlineAlarm,
    Event,
    GaveUp,
    InstanceEnded,
    InstanceSilent,
    JobSubmitted,
    KeepExpired,
    LaunchFailed,
    LaunchIntended,
    NoticeReceived,
    OutputsStored,
    PauseRequested,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Rejected,
    Restored,
    RetryRequested,
    SetupFailed,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Gang, Slot, SlotGroup, ZoneRule
from everstep.model.ids import InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import JobPhase, JobState
from everstep.model.offers import BillingRule, MachineRequirement, Market, Offer
from everstep.model.task import Objective, OnNoCapacity, Recovery, SpotMode, Work
from tests.brain.making import DEPLOYMENT, fold, fresh, machine, offer, prepared, running, task

I1, I2 = InstanceId("i-1"), InstanceId("i-2")
MARKET = (offer("a"), offer("b", price=1.5), offer("a", Market.ON_DEMAND, 3.0))
SHARED = {"a": "/shared", "b": "/shared"}


def decide(
    job: JobState, now: float = 10.0, *, offers: Sequence[Offer] = MARKET, shared: dict[str, str] | None = None,
    heard: dict[InstanceId, Heard] | None = None, pools: PoolBook | None = None,
) -> Decision:  # fmt: skip
    where = SHARED if shared is None else shared
    snapshot = Snapshot(DEPLOYMENT, (job,), offers, pools or PoolBook(), heard or {}, where)
    return plan(snapshot, now, Random(0))[0]


def launches(decision: Decision) -> list[LaunchIntended]:
    return [e.event for e in decision.effects if isinstance(e, Launch)]


def notes(decision: Decision) -> list[Event]:
    return [e.event for e in decision.effects if isinstance(e, Note)]


def carry_out(job: JobState, decision: Decision, now: float = 10.0) -> JobState:
    return fold(job, [e.event for e in decision.effects if hasattr(e, "event")], now)


# --- Launching -------------------------------------------------------------------------------------------------------


def test_every_slot_gets_one_launch_with_a_token_of_its_own() -> None:
    decision = decide(fresh(3))
    assert [(e.slot.index, e.launch_no) for e in launches(decision)] == [(0, 1), (1, 2), (2, 3)]
    assert len({e.token for e in launches(decision)}) == 3
    assert all(e.offer == MARKET[0] and e.max_price_usd_per_h == 3.0 for e in launches(decision))
    assert launches(decide(carry_out(fresh(3), decision))) == []


def test_a_doomed_machine_is_replaced_at_once_while_it_still_works() -> None:
    job = transition(running(2), NoticeReceived(I2, NoticeKind.TERMINATE, 90.0), 10.0)
    decision = decide(job, heard={I1: Heard(10.0), I2: Heard(10.0)})
    assert [e.slot.index for e in launches(decision)] == [1]
    assert not [e for e in decision.effects if isinstance(e, Terminate)]


def test_the_decision_records_what_it_looked_at() -> None:
    record = decide(fresh()).record
    assert set(record.inputs) == {"offers", "seed", "decision", "policy", "cost_usd", "progress"}
    assert [c.verdict for c in record.candidates].count("chosen") == 1


def test_500_jobs_preempted_at_once_do_not_rush_one_pool() -> None:
    jobs = [submitted(JobSubmitted(JobId(f"j-{n}"), task(), "u", "p"), 0.0) for n in range(500)]
    snapshot = Snapshot(DEPLOYMENT, jobs, MARKET, shared_folders=SHARED)
    decisions = plan(snapshot, 10.0, Random(1))
    made = [e for d in decisions for e in launches(d)]
    credits = Settings().launches_per_minute
    # Both spot pools are asked as often as they may be; on-demand is not taken for want of a minute.
    assert Counter(str(e.offer.pool) for e in made) == {str(o.pool): credits for o in MARKET[:2]}
    waiting = [d for d in decisions if not d.effects]
    assert all("no launch credit" in d.record.wait and d.wake_at is not None for d in waiting)
    # Recorded launches count as well: one call after another gets no further.
    book = PoolBook()
    for event in made:
        book = note_pools(book, event, None, 10.0)
    again = plan(replace(snapshot, jobs=jobs[:150], pools=book), 11.0, Random(1))
    assert sum(len(launches(d)) for d in again) == 0
    later = plan(replace(snapshot, jobs=jobs[:150], pools=book), 70.5, Random(1))
    assert sum(len(launches(d)) for d in later) == 2 * credits


def asked_too_often(*offers: Offer, at: float = 5.0) -> PoolBook:
    """Pools that were asked as often as they may be in a minute."""
    times = (at,) * Settings().launches_per_minute
    return PoolBook({o.pool: PoolRecord(launched_at=times) for o in offers})


def test_a_pool_without_credit_is_passed_over_for_the_next_and_the_decision_says_so() -> None:
    snapshot = Snapshot(DEPLOYMENT, (fresh(),), MARKET, asked_too_often(MARKET[0]), shared_folders=SHARED)
    (decision,) = plan(snapshot, 10.0, Random(1))
    assert [e.offer for e in launches(decision)] == [MARKET[1]]
    verdicts = {c.what: (c.verdict, c.score) for c in decision.record.candidates}
    assert verdicts[str(MARKET[0].pool)] == ("no launch credit", None)


def test_for_want_of_a_minute_nobody_goes_on_demand_unless_the_deadline_says_so() -> None:
    spent = asked_too_often(*MARKET[:2])
    snapshot = Snapshot(DEPLOYMENT, (fresh(),), MARKET, spent, shared_folders=SHARED)
    (decision,) = plan(snapshot, 10.0, Random(1))
    assert launches(decision) == []
    assert (decision.record.wait, decision.wake_at) == (f"pool {MARKET[0].pool} has no launch credit", 15.0)
    late = fresh(work=Work(hours=1.0), objective=Objective(deadline_s=3800.0))
    (decision,) = plan(replace(snapshot, jobs=(late,)), 10.0, Random(1))
    assert [e.offer for e in launches(decision)] == [MARKET[2]]


def test_a_gang_of_one_zone_is_launched_in_one_zone_that_can_hold_it() -> None:
    offers = (offer("a", available=1), offer("b", price=1.5, available=2), offer("c", price=2.0))
    decision = decide(fresh(2, zones=ZoneRule.SAME_ZONE), offers=offers, shared={z: "/s" for z in "abc"})
    assert [e.offer.zone for e in launches(decision)] == ["b", "b"]
    spread = decide(fresh(2), offers=offers, shared={z: "/s" for z in "abc"})
    assert [e.offer.zone for e in launches(spread)] == ["a", "b"]


def test_a_quarantined_job_launches_nothing_and_says_why() -> None:
    decision = decide(transition(fresh(), Rejected("X", "acquiring", "X is not listed"), 5.0))
    assert decision.effects == ()
    assert decision.record.wait == "quarantined: X is not listed"


# --- Waiting and giving up -------------------------------------------------------------------------------------------


def test_a_wait_has_a_reason_and_a_next_look() -> None:
    decision = decide(fresh(), offers=(offer("a", available=0),))
    assert decision.effects == ()
    assert decision.record.wait == "no capacity in any pool that is allowed (1 pool looked at)"
    assert decision.wake_at == 15.0


def test_a_job_that_no_offer_fits_says_who_was_asked() -> None:
    big = Gang((SlotGroup("worker", MachineRequirement(cpus_min=1000), 1),))
    assert decide(fresh(gang=big), offers=[offer()]).record.wait == "a machine that fits the task: box offers none"
    assert decide(fresh(gang=big), offers=[]).record.wait == "no provider offers anything"


def test_on_no_capacity_fail_gives_up_and_launches_nothing_for_the_other_slots() -> None:
    job = fresh(2, recovery=Recovery(on_no_capacity=OnNoCapacity.FAIL))
    decision = decide(job, offers=(offer("a", available=1),))
    assert [type(e) for e in decision.effects] == [Note]
    assert isinstance(notes(decision)[0], GaveUp)
    carry_out(job, decision)
    wait = fresh(2, recovery=Recovery(on_no_capacity=OnNoCapacity.WAIT))
    assert notes(decide(wait, offers=(offer("a", available=1),))) == []


def test_max_wait_counts_while_a_place_is_empty_and_not_while_its_machine_boots() -> None:
    job = fresh(recovery=Recovery(max_wait_s=60.0))
    none = (offer("a", available=0),)
    assert notes(decide(job, 59.0, offers=none)) == []
    assert isinstance(notes(decide(job, 60.0, offers=none))[0], GaveUp)
    booting = fold(job, machine(1)[:2])
    assert notes(decide(booting, 100.0)) == []


def test_a_request_that_the_vendor_refuses_ends_the_job_until_it_is_retried() -> None:
    job = fold(fresh(), [machine(1)[0], LaunchFailed(LaunchToken("t-1"), "bad_request", "no such image")])
    decision = decide(job)
    assert notes(decision) == [GaveUp("the provider refuses the request: bad_request: no such image")]
    failed = carry_out(job, decision)
    assert failed.phase is JobPhase.FAILED
    again = transition(failed, RetryRequested("u"), 20.0)
    assert [e.launch_no for e in launches(decide(again, 20.0))] == [2]


def test_setup_that_fails_is_tried_as_often_as_restarts_are_allowed() -> None:
    job = fold(fresh(2, recovery=Recovery(max_restarts=1)), [*machine(1)[:3], *machine(2)[:3]])
    job = fold(job, [SetupFailed(I1, 1, "no pip"), SetupFailed(I2, 1, "no pip")])
    decision = decide(job)
    assert [e.event.instance for e in decision.effects if isinstance(e, Terminate)] == [I1, I2]
    assert decision.wake_at == 10.0
    job = carry_out(job, decision)
    assert len(launches(decide(job))) == 2
    job = fold(job, [*machine(3, slot=0)[:3], SetupFailed(InstanceId("i-3"), 1, "no pip")])
    assert [type(n) for n in notes(decide(job))] == [GaveUp]


def test_a_machine_that_is_not_ready_in_time_is_replaced_also_after_its_agent_was_started_anew() -> None:
    job = fold(fresh(recovery=Recovery(boot_timeout_s=100.0)), machine(1)[:3])
    assert decide(job, 99.0).effects == ()
    assert isinstance(decide(job, 100.0).effects[0], Terminate)
    job = fold(prepared(recovery=Recovery(boot_timeout_s=100.0)), [machine(1)[2]], 500.0)
    calm = decide(job, 599.0, heard={I1: Heard(599.0)})
    assert not [e for e in calm.effects if isinstance(e, Terminate)]
    assert isinstance(decide(job, 600.0, heard={I1: Heard(600.0)}).effects[-1], Terminate | Note)


# --- Conclusions -----------------------------------------------------------------------------------------------------


def test_silence_is_concluded_once_and_looked_for_in_time() -> None:
    job = running()
    assert decide(job, 19.0, heard={I1: Heard(10.0)}).wake_at == pytest.approx(20.01)
    decision = decide(job, 20.5, heard={I1: Heard(10.0, 7, 9.0)})
    assert notes(decision) == [InstanceSilent(I1, 10.0, 7, 9.0)]
    lost = carry_out(job, decision)
    follow = decide(lost, 20.5, heard={I1: Heard(10.0)})
    assert notes(follow) == [CauseSettled(1, Cause.NODE_LOSS, "i-1: silent")]
    assert not notes(decide(job, 300.0, heard={I1: Heard(900.0)}))  # after a restart of the server: a fresh lease


def test_a_check_or_a_stop_that_takes_too_long_is_over() -> None:
    checking = prepared(2)
    heard = {i: Heard(119.0) for i in (I1, I2)}
    assert decide(checking, 119.0, heard=heard).wake_at == 120.0
    assert [type(n) for n in notes(decide(checking, 120.0, heard=heard))] == [AttemptOverdue]
    stopping = transition(running(2, stop_grace_s=30.0), PauseRequested("u"), 100.0)
    assert not notes(decide(stopping, 139.0, heard={i: Heard(139.0) for i in (I1, I2)}))
    decision = decide(stopping, 140.0, heard={i: Heard(140.0) for i in (I1, I2)})
    assert [type(n) for n in notes(decision)] == [AttemptOverdue]
    assert carry_out(stopping, decision, 140.0).phase is JobPhase.RELEASING


def test_kept_machines_go_when_the_time_is_over_and_bring_outputs_home_first() -> None:
    job = running(recovery=Recovery(keep_on_failure_s=600.0), outputs=("out",))
    job = fold(job, [RanksEnded(I1, 1, "failed", 1), CauseSettled(1, Cause.USER_ERROR, "x")], 50.0)
    kept = decide(job, 100.0, heard={I1: Heard(100.0)})
    assert (kept.effects, job.phase) == ((), JobPhase.RELEASING)
    decision = decide(job, 650.0, heard={I1: Heard(650.0)})
    assert notes(decision) == [KeepExpired()]
    job = carry_out(job, decision, 650.0)
    assert not [e for e in decide(job, 651.0, heard={I1: Heard(651.0)}).effects if isinstance(e, Terminate)]
    job = transition(job, OutputsStored(I1, 1, 1), 655.0)
    assert [type(e) for e in decide(job, 655.0, heard={I1: Heard(655.0)}).effects] == [Terminate]


def test_the_vendor_is_left_to_take_a_machine_back_for_free() -> None:
    free = BillingRule(1.0, 60.0, free_if_reclaimed_within_s=3600.0)
    job = fold(
        fresh(2), [*machine(1), *machine(2, on=offer(billing=free)), NoticeReceived(I2, NoticeKind.TERMINATE, 90.0)]
    )
    job = transition(job, RanksEnded(I1, 1, "failed", 1), 10.0)
    ends = [e for e in decide(job, heard={I1: Heard(10.0), I2: Heard(10.0)}).effects if isinstance(e, Terminate)]
    assert ends == []
    late = decide(job, 151.0, heard={I1: Heard(151.0), I2: Heard(151.0)})
    assert [e.event.instance for e in carry_notes(job, late, 151.0).effects if isinstance(e, Terminate)] == [I2]


def carry_notes(job: JobState, decision: Decision, now: float) -> Decision:
    """The decision that follows once the conclusions of one are recorded."""
    while notes(decision):
        job = carry_out(job, decision, now)
        decision = decide(job, now, heard={i: Heard(now) for i in (I1, I2)})
    return decision


# --- Disks -----------------------------------------------------------------------------------------------------------

DISK = VolumeReady(Slot(0, 0), VolumeId("v-1"), 1.0, 0.001)


def with_disk() -> JobState:
    return fold(fresh(), [VolumeIntended(Slot(0, 0), "j-test0001-0.0", "b", "box", 10.0), DISK])


def test_without_a_shared_folder_a_disk_is_made_first_and_binds_the_zone() -> None:
    decision = decide(fresh(), shared={})
    assert [type(e) for e in decision.effects] == [EnsureVolume]
    assert decision.record.wait == "the disk of slot 0.0 is being made"
    (launch,) = launches(decide(with_disk(), shared={}))
    assert (launch.offer.zone, launch.volume) == ("b", "v-1")


@pytest.mark.parametrize("late", [DISK, replace(DISK, volume=VolumeId("v-2"), name="j-test0001-0.0")])
def test_what_is_told_late_of_a_disk_is_not_taken_for_its_successors(late: VolumeReady) -> None:
    gone = [VolumeDeleteIntended(VolumeId("v-1")), VolumeDeleted(VolumeId("v-1"), 5.0)]
    name = "j-test0001-0.0-2"
    job = fold(with_disk(), [*gone, VolumeIntended(Slot(0, 0), name, "b", "box", 10.0), late])
    assert job.volumes[name].volume is None
    made = fold(job, [VolumeReady(Slot(0, 0), VolumeId("v-3"), 9.0, 0.001, name)])
    assert made.volumes[name].volume == "v-3"


def test_a_disk_is_attached_to_one_machine_at_a_time() -> None:
    job = fold(with_disk(), carry(with_disk()))
    job = transition(job, NoticeReceived(I1, NoticeKind.TERMINATE, 90.0), 11.0)
    decision = decide(job, 12.0, shared={}, heard={I1: Heard(12.0)})
    assert launches(decision) == []
    assert "still attached" in decision.record.wait
    job = transition(job, InstanceEnded(I1, 13.0, InstanceEnd.PREEMPTED), 14.0)
    (launch,) = launches(carry_settled(job))
    assert launch.volume == "v-1"


def carry(job: JobState) -> list[Event]:
    (launch,) = launches(decide(job, shared={}))
    return [launch, *[replace(e, token=launch.token) if hasattr(e, "token") else e for e in machine(1)[1:]]]


def carry_settled(job: JobState) -> Decision:
    decision = decide(job, 15.0, shared={})
    return decide(carry_out(job, decision, 15.0), 15.0, shared={})


def test_an_unused_disk_does_not_tie_the_job_to_a_dry_zone() -> None:
    decision = decide(with_disk(), offers=(offer("a"),), shared={})
    assert [type(e) for e in decision.effects] == [DeleteVolume]
    moved = decide(carry_out(with_disk(), decision), offers=(offer("a"),), shared={})
    (made,) = [e.event for e in moved.effects if isinstance(e, EnsureVolume)]
    assert (made.zone, made.name) == ("a", "j-test0001-0.0-2")


def stranded(*, mirror: str = "s3://b/p", durable: bool = True, **fields: object) -> JobState:
    """Its only machine is gone, its disk is in zone b, and has a checkpoint on it."""
    checkpoint = replace(task().checkpoint, mirror=mirror)
    job = fold(fresh(checkpoint=checkpoint, **fields), [VolumeIntended(Slot(0, 0), "j-test0001-0.0", "b", "box", 10.0)])
    job = fold(job, [DISK])
    job = fold(job, carry(job))
    saved = CheckpointSaved(I1, 1, 7, 100, 0.1, 0.0, durable)
    job = fold(job, [RanksStarted(I1, 1, 1, 0.0), saved, InstanceEnded(I1, 12.0, InstanceEnd.LOST)], 12.0)
    return carry_out(job, decide(job, 12.0, offers=(), shared={}), 12.0)


def test_a_disk_whose_checkpoints_are_mirrored_does_not_tie_the_job_to_a_dry_zone() -> None:
    there = (offer("a"),)
    decision = decide(stranded(), 13.0, offers=there, shared={})
    assert [type(e) for e in decision.effects] == [DeleteVolume]
    assert decision.record.reasons == ("delete disk v-1: no capacity in b, but in a, where the mirror is read",)
    moved = decide(carry_out(stranded(), decision, 13.0), 14.0, offers=there, shared={})
    (made,) = [e.event for e in moved.effects if isinstance(e, EnsureVolume)]
    assert made.zone == "a"


@pytest.mark.parametrize(
    ("job", "offers"),
    [
        (stranded(mirror=""), (offer("a"),)),
        (stranded(durable=False), (offer("a"),)),
        (stranded(outputs=("results",)), (offer("a"),)),
        (stranded(), ()),
    ],
    ids=["no mirror", "nothing in the mirror", "other files are wanted", "no capacity elsewhere either"],
)
def test_a_disk_that_is_worth_something_is_waited_for(job: JobState, offers: Sequence[Offer]) -> None:
    decision = decide(job, 13.0, offers=offers, shared={})
    assert not [e for e in decision.effects if isinstance(e, DeleteVolume | EnsureVolume | Launch)]
    assert decision.record.wait


def test_a_disk_that_cannot_be_made_is_tried_again_after_a_pause() -> None:
    job = fold(fresh(), [VolumeIntended(Slot(0, 0), "j-test0001-0.0", "b", "box", 10.0)])
    job = transition(job, VolumeFailed(Slot(0, 0), "no_capacity", "none"), 10.0)
    decision = decide(job, 11.0, shared={})
    assert (decision.effects, decision.record.wait) == ((), "the disk of slot 0.0 could not be made")
    assert [type(e) for e in decide(job, 20.0, shared={}).effects] == [EnsureVolume]


def test_disks_are_deleted_only_when_what_is_on_them_came_home_or_is_not_wanted() -> None:
    def over(*last: Event) -> set[str]:
        job = fold(with_disk(), [*carry(with_disk()), *last])
        job = fold(job, [InstanceEnded(I1, 40.0, InstanceEnd.OWNER)], 40.0)
        assert job.phase.ended
        job = carry_out(job, decide(job, 41.0, shared={}), 41.0)
        job = carry_out(job, decide(job, 41.0, shared={}), 41.0)
        return {v.volume for v in job.volumes.values() if v.deleting and v.volume is not None}

    done = RanksEnded(I1, 1, "ok")
    assert over(done) == set()
    assert over(done, OutputsStored(I1, 1, 5)) == {"v-1"}
    assert over(done, OutputsStored(I1, 0, 0, "disk full")) == set()
    assert over(CancelRequested("u")) == {"v-1"}
    assert over(GaveUp("no progress")) == set()


# --- Guarantees ------------------------------------------------------------------------------------------------------


def test_a_budget_is_spent_a_little_early_so_that_saving_and_leaving_fit_in() -> None:
    job = running(objective=Objective(budget_usd=1.0), stop_grace_s=30.0)  # $1/h: the end would be at 3600 s
    heard = {I1: Heard(3500.0)}
    assert notes(decide(job, 3500.0, heard=heard)) == []
    (event,) = notes(decide(job, 3560.0, heard={I1: Heard(3560.0)}))
    assert isinstance(event, BudgetSpent)
    assert event.cost_usd == pytest.approx(3560 / 3600)
    assert transition(job, event, 3560.0).phase is JobPhase.STOPPING


def training(objective: Objective, **fields: object) -> JobState:
    """100 of 200 steps done at 1 s each, now is 150 s; the first attempt saved at step 100 and was lost."""
    job = running(objective=objective, work=Work(steps=200), **fields)
    told: list[Event] = [
        Restored(I1, 1, None),
        ProgressSeen(I1, 1, 1, 200, 10.0),
        CheckpointSaved(I1, 1, 100),
        RanksEnded(I1, 1, "failed", 1, step=110, total=200, first_step_at=10.0, last_step_at=120.0, steps_done=110),
    ]
    return fold(job, told, 121.0)


def test_the_work_left_counts_from_the_checkpoint_that_the_next_attempt_will_find() -> None:
    job = training(Objective())
    assert progress(job, {}) == (100, 200)
    assert work_left_s(job, {}) == pytest.approx(100.0)
    assert changeover_s(job) == 10.0


def test_ranks_that_could_not_tell_are_timed_by_the_last_word_of_their_telemetry() -> None:
    job = fold(running(work=Work(steps=200)), [Restored(I1, 1, None), ProgressSeen(I1, 1, 1, 200, 10.0)])
    assert work_left_s(job, {}) is None
    assert work_left_s(job, {I1: Heard(35.0, 51, 35.0)}) == pytest.approx(149 * 0.5), "while they run"
    lost = transition(job, InstanceEnded(I1, 120.0, InstanceEnd.PREEMPTED, last_step=100, last_step_at=60.0), 121.0)
    assert work_left_s(lost, {}) == pytest.approx(200 * 0.5), "nothing was saved"


def test_the_safety_net_takes_on_demand_when_two_changeovers_are_all_the_time_left() -> None:
    job = training(Objective(deadline_at=300.0), spot=SpotMode.AUTO)
    assert not must_on_demand(job, {}, 179.0)
    assert must_on_demand(job, {}, 180.0)
    lost = fold(training(Objective(deadline_at=300.0)), [InstanceEnded(I1, 130.0, InstanceEnd.PREEMPTED)], 131.0)
    lost = fold(lost, [CauseSettled(1, Cause.PREEMPTION, "x")], 131.0)
    assert [e.offer.market for e in launches(decide(lost, 150.0))] == [Market.SPOT]
    assert [e.offer.market for e in launches(decide(lost, 185.0))] == [Market.ON_DEMAND]


def test_a_deadline_that_cannot_be_kept_raises_one_alarm_whatever_else_is_wrong() -> None:
    job = replace(training(Objective(deadline_at=200.0)), alarm="no disk for slot 0.0: none")
    job = fold(job, [CauseSettled(1, Cause.NODE_LOSS, "x")], 125.0)
    decision = decide(job, 130.0, heard={I1: Heard(130.0)})
    alarms = [n for n in notes(decision) if isinstance(n, DeadlineAlarm)]
    assert len(alarms) == 1
    assert alarms[0].earliest_finish == pytest.approx(240.0)
    job = carry_out(job, decision, 130.0)
    assert "40 s late" in job.alarm
    assert not notes(decide(job, 131.0, heard={I1: Heard(131.0)}))


def test_a_changeover_onto_survivors_is_measured_from_the_end_before() -> None:
    job = running(2)
    job = fold(job, [ProgressSeen(I1, 1, 1, 9, 5.0)], 5.0)
    job = fold(job, [InstanceEnded(I2, 1000.0, InstanceEnd.LOST)], 1000.0)
    job = fold(job, machine(3, slot=1), 1010.0)
    job = fold(job, [ProgressSeen(I1, 2, 1, 9, 1040.0)], 1040.0)
    assert changeover_s(job) == 30.0
