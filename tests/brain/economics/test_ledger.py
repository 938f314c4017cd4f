"""The bill, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.economics.ledger import account, cost_usd, lines, price_usd_per_s
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.events import (
    CauseSettled,
    CheckpointSaved,
    GaveUp,
    InstanceEnded,
    InstanceJoined,
    InstanceReady,
    KeepExpired,
    LaunchSucceeded,
    PauseRequested,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    UnpauseRequested,
    VolumeDeleted,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import JobState
from everstep.model.ledger import LineKind
from everstep.model.offers import BillingRule, Market
from everstep.model.task import Recovery
from tests.brain.making import fold, fresh, machine, offer, prepared, running

I1, I2 = InstanceId("i-1"), InstanceId("i-2")


def launched(rule: BillingRule, price: float = 2.0) -> JobState:
    return fold(fresh(), machine(1, on=offer(billing=rule, price=price))[:2])


def ended(job: JobState, at: float, end: InstanceEnd = InstanceEnd.OWNER, instance: InstanceId = I1) -> JobState:
    return fold(job, [InstanceEnded(instance, at, end)], at)


def test_a_machine_bills_from_start_to_end_by_the_second() -> None:
    job = ended(launched(BillingRule(1.0, 60.0)), 1800.2)
    (line,) = lines(job, 9999.0)
    assert line.cost_usd == pytest.approx(1801 / 3600 * 2.0)
    assert (line.kind, line.resource, line.start, line.end) == (LineKind.COMPUTE, "i-1", 0.0, 1800.2)
    assert (line.price_usd, line.price_source, line.reclaimed) == (2.0, "test", False)


def test_at_least_the_minimum_is_billed_and_hours_are_rounded_up() -> None:
    assert cost_usd(ended(launched(BillingRule(1.0, 60.0)), 5.0), 99.0) == pytest.approx(60 / 3600 * 2.0)
    assert cost_usd(ended(launched(BillingRule(3600.0, 3600.0)), 3601.0), 9999.0) == pytest.approx(2 * 2.0)


def test_what_the_vendor_takes_back_early_is_free_and_what_we_end_is_not() -> None:
    rule = BillingRule(1.0, 60.0, free_if_reclaimed_within_s=3600.0)
    assert cost_usd(ended(launched(rule), 3599.0, InstanceEnd.PREEMPTED), 9999.0) == 0.0
    assert cost_usd(ended(launched(rule), 3600.0, InstanceEnd.PREEMPTED), 9999.0) == pytest.approx(2.0)
    assert cost_usd(ended(launched(rule), 1800.0, InstanceEnd.OWNER), 9999.0) == pytest.approx(1.0)
    assert cost_usd(ended(launched(rule), 1800.0, InstanceEnd.LOST), 9999.0) == pytest.approx(1.0)


def test_a_cloud_in_a_box_bills_market_time() -> None:
    job = ended(launched(BillingRule(1.0, 0.0, time_scale=360.0)), 10.0)
    assert cost_usd(job, 99.0) == pytest.approx(2.0)


def test_what_runs_bills_up_to_now_and_what_was_refused_never() -> None:
    job = launched(BillingRule(1.0, 0.0))
    assert cost_usd(job, 900.0) == pytest.approx(0.5)
    assert price_usd_per_s(job) == pytest.approx(2.0 / 3600)
    assert lines(fold(fresh(), machine(1)[:1]), 900.0) == ()
    assert price_usd_per_s(ended(job, 5.0)) == 0.0


def test_the_price_is_the_one_that_the_provider_answered() -> None:
    job = fold(fresh(), [machine(1)[0], LaunchSucceeded(LaunchToken("t-1"), I1, 0.0, 0.7)])
    assert cost_usd(job, 3600.0) == pytest.approx(0.7)


def test_a_disk_bills_on_when_the_machine_is_gone() -> None:
    slot = Slot(0, 0)
    made = [VolumeIntended(slot, "d", "a", "box", 100.0), VolumeReady(slot, VolumeId("v-1"), 0.0, 0.0002)]
    job = fold(ended(launched(BillingRule(1.0, 0.0)), 3600.0), made)
    assert cost_usd(job, 7200.0) == pytest.approx(2.0 + 100 * 2 * 0.0002)
    assert price_usd_per_s(job) == pytest.approx(100 * 0.0002 / 3600)
    assert account(job, 7200.0).disks_still_billing == ("d",)
    gone = fold(job, [VolumeDeleted(VolumeId("v-1"), 3600.0)])
    assert cost_usd(gone, 99999.0) == pytest.approx(2.0 + 100 * 0.0002)
    assert account(gone, 99999.0).disks_still_billing == ()


def test_the_disk_that_comes_with_a_machine_is_billed_also_where_the_machine_is_free() -> None:
    rule = BillingRule(1.0, 60.0, free_if_reclaimed_within_s=3600.0)
    on = replace(offer(billing=rule, price=2.0), boot_disk_usd_per_h=0.36, disk_minimum_s=60.0)
    job = fold(fresh(), machine(1, on=on)[:2])
    assert price_usd_per_s(job) == pytest.approx(2.36 / 3600)
    compute, disk = lines(ended(job, 1800.0, InstanceEnd.PREEMPTED), 9999.0)
    assert (compute.cost_usd, disk.cost_usd) == (0.0, pytest.approx(0.18))
    assert (disk.kind, disk.resource, disk.start, disk.end) == (LineKind.DISK, "i-1/boot", 0.0, 1800.0)
    assert cost_usd(ended(job, 5.0), 9999.0) == pytest.approx(60 / 3600 * 2.36)
    slot = Slot(0, 0)
    made = [VolumeIntended(slot, "d", "a", "box", 100.0), VolumeReady(slot, VolumeId("v-1"), 0.0, 0.0002)]
    data = lines(fold(job, [*made, VolumeDeleted(VolumeId("v-1"), 7.0)]), 30.0)[-1]
    assert data.cost_usd == pytest.approx(60 / 3600 * 100 * 0.0002), "a minute of it, at least"


def two_attempts() -> JobState:
    """Two machines at $1/h (list price $3/h), one preempted.

    i-1 and i-2 start at 0, join at 10, are ready at 15, ranks start at 20 and make steps 1..100 from 30 to 130 (10 s of
    which go into saving), the last save is of step 80. i-2 is taken at 130; i-3 comes at 140, joins at 150, is ready at
    155; the second attempt starts at 160, makes steps 81..200 from 165 to 285. All end at 300.
    """
    job = fresh(2)
    for n in (1, 2):
        job = fold(job, machine(n)[:2])
    job = fold(job, [machine(1)[2], machine(2)[2]], 10.0)
    job = fold(job, [machine(1)[3], machine(2)[3]], 15.0)
    first = [
        *[PeersChecked(i, 1) for i in (I1, I2)],
        *[RanksStarted(i, 1, 1, 20.0) for i in (I1, I2)],
        Restored(I1, 1, None),
        ProgressSeen(I1, 1, 1, 200, 30.0),
        CheckpointSaved(I1, 1, 80),
        RanksEnded(I1, 1, "failed", 1, step=100, first_step_at=30.0, last_step_at=130.0, steps_done=100, stall_s=10.0),
        InstanceEnded(I2, 130.0, InstanceEnd.PREEMPTED),
    ]
    job = fold(job, first, 130.0)
    i3 = InstanceId("i-3")
    intended, _, joined, ready = machine(3, slot=1)
    job = fold(job, [intended, LaunchSucceeded(LaunchToken("t-3"), i3, 140.0, 1.0)], 140.0)
    job = fold(fold(job, [joined], 150.0), [ready], 155.0)
    job = fold(job, [CauseSettled(1, Cause.PREEMPTION, "taken")], 156.0)
    figures = {"step": 200, "first_step_at": 165.0, "last_step_at": 285.0, "steps_done": 120}
    second = [
        *[PeersChecked(i, 2) for i in (I1, i3)],
        *[RanksStarted(i, 2, 1, 160.0) for i in (I1, i3)],
        Restored(I1, 2, "1:80"),
        RanksEnded(I1, 2, "ok", **figures),  # type: ignore[arg-type]
        RanksEnded(i3, 2, "ok", **figures),  # type: ignore[arg-type]
    ]
    job = fold(job, second, 286.0)
    return ended(ended(job, 300.0), 300.0, instance=i3)


def test_the_account_of_two_attempts_by_hand() -> None:
    book = account(two_attempts(), 400.0)
    life = 300 + 130 + 160
    assert book.billed_instance_s == pytest.approx(life)
    assert book.cost_usd == pytest.approx(life / 3600)
    # 20 of 100 steps are done again: a fifth of the 90 s that were not spent on saving, on two machines.
    assert book.lost_steps == 20
    assert book.overhead["lost_work"] == pytest.approx(2 * 18)
    assert book.overhead["save"] == pytest.approx(2 * 10)
    assert book.useful_instance_s == pytest.approx(2 * 72 + 2 * 120)
    assert book.overhead["boot"] == pytest.approx(10 + 10 + 10)
    assert book.overhead["setup"] == pytest.approx(5 + 5 + 5)
    assert book.overhead["restore"] == pytest.approx(2 * 10 + 2 * 5)
    assert book.overhead["kept"] == 0.0
    assert sum(book.overhead.values()) + book.useful_instance_s == pytest.approx(life)
    assert book.on_demand_cost_usd == pytest.approx((2 * 72 + 2 * 120) / 3600 * 3.0)
    assert book.saved_usd == pytest.approx(book.on_demand_cost_usd - book.cost_usd)
    assert book.saved_fraction == pytest.approx(1 - book.cost_usd / book.on_demand_cost_usd)
    assert (book.preemptions, book.recoveries, book.attempts) == (1, 1, 2)


def at_work_again(job: JobState, n: int) -> JobState:
    """On a new machine ``i-n``, in attempt ``n``."""
    return fold(job, [*machine(n, slot=0), RanksStarted(InstanceId(f"i-{n}"), n, 1, 0.0)])


def test_going_on_after_a_pause_is_no_recovery_and_going_on_after_a_loss_is() -> None:
    job = running()
    paused = [PauseRequested("u"), RanksEnded(I1, 1, "saved"), InstanceEnded(I1, 5.0, InstanceEnd.OWNER)]
    job = fold(job, [*paused, CauseSettled(1, Cause.OWNER, "paused by u"), UnpauseRequested("u")])
    job = at_work_again(job, 2)
    assert (account(job, 9.0).attempts, account(job, 9.0).recoveries) == (2, 0)
    job = at_work_again(fold(job, [InstanceEnded(I2, 7.0, InstanceEnd.LOST)]), 3)
    assert (account(job, 9.0).attempts, account(job, 9.0).recoveries) == (3, 1), "its cause is not settled yet"
    job = fold(job, [CauseSettled(2, Cause.NODE_LOSS, "lost")])
    assert account(job, 9.0).recoveries == 1


@pytest.mark.parametrize("cause", sorted(set(Cause) - {Cause.UNKNOWN}))
def test_what_the_owner_wanted_is_no_loss_and_every_other_cause_is(cause: Cause) -> None:
    first, second = two_attempts().attempts
    job = replace(two_attempts(), attempts=(replace(first, cause=cause), second))
    assert account(job, 400.0).recoveries == (0 if cause in (Cause.OWNER, Cause.SUCCESS) else 1)


def test_an_attempt_that_never_ran_is_no_recovery_but_what_it_lost_is_made_good_by_the_next() -> None:
    first, second = two_attempts().attempts
    by_wish = replace(first, cause=Cause.OWNER, failed=False)
    checked_only = replace(first, no=2, spawned_at=None, cause=Cause.UNREACHABLE_PEER)
    for attempts, recoveries in (((checked_only, second), 0), ((by_wish, checked_only, second), 1)):
        assert account(replace(two_attempts(), attempts=attempts), 400.0).recoveries == recoveries


def test_an_attempt_of_which_nothing_was_kept_is_lost_as_a_whole() -> None:
    job = two_attempts()
    first, second = job.attempts
    scratch = replace(job, attempts=(first, replace(second, base=None)))
    assert account(scratch, 400.0).lost_steps == 100
    assert account(scratch, 400.0).overhead["lost_work"] == pytest.approx(2 * 90)


def test_machines_kept_for_debugging_are_billed_and_shown_as_kept() -> None:
    job = prepared(recovery=Recovery(keep_on_failure_s=100.0))
    job = fold(job, [RanksStarted(I1, 1, 1, 20.0)], 20.0)
    job = fold(job, [GaveUp("x"), RanksEnded(I1, 1, "stopped")], 50.0)
    assert account(job, 90.0).overhead["kept"] == pytest.approx(40.0)
    job = ended(fold(job, [KeepExpired()], 150.0), 160.0)
    book = account(job, 999.0)
    assert book.overhead["kept"] == pytest.approx(100.0)
    assert book.cost_usd == pytest.approx(160 / 3600)


TIMES = st.floats(0.0, 1000.0)


@given(TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, st.floats(0, 500), st.integers(0, 50))
def test_the_parts_add_up_whatever_the_clocks_say(
    started: float, joined: float, ready: float, first: float, last: float, end: float, stall: float, steps: int
) -> None:
    intended, _, join, be_ready = machine(1)
    assert isinstance(join, InstanceJoined)
    assert isinstance(be_ready, InstanceReady)
    job = fold(fresh(), [intended, LaunchSucceeded(LaunchToken("t-1"), I1, started, 1.0)])
    job = fold(fold(job, [join], joined), [be_ready], ready)
    figures = RanksEnded(
        I1, 1, "ok", step=steps, first_step_at=first, last_step_at=last, steps_done=steps, stall_s=stall
    )
    job = fold(job, [RanksStarted(I1, 1, 1, first - 5.0), figures], last)
    book = account(ended(job, end), 2000.0)
    assert book.useful_instance_s + sum(book.overhead.values()) == pytest.approx(book.billed_instance_s)
    assert min(book.useful_instance_s, *book.overhead.values()) >= 0.0


def test_market_of_the_line_is_that_of_the_offer() -> None:
    job = fold(fresh(), machine(1, on=offer(market=Market.ON_DEMAND, price=3.0))[:2])
    assert lines(job, 1.0)[0].market is Market.ON_DEMAND


def test_work_whose_steps_nobody_saw_counts_if_the_attempt_got_through() -> None:
    """A script that reports nothing: 50 s in vain, then 80 s to the end; only these are what on-demand would cost."""
    job = fold(fresh(recovery=Recovery(max_restarts=1)), machine(1)[:2])
    job = fold(fold(job, [machine(1)[2]], 5.0), [machine(1)[3]], 10.0)
    job = fold(fold(job, [RanksStarted(I1, 1, 1, 10.0)], 10.0), [RanksEnded(I1, 1, "failed", 1)], 60.0)
    vain = account(job, 60.0)
    assert (vain.useful_instance_s, vain.on_demand_cost_usd) == (0.0, 0.0)
    job = fold(job, [RanksStarted(I1, 2, 1, 60.0)], 60.0)
    assert account(job, 100.0).useful_instance_s == pytest.approx(40.0)
    book = account(ended(fold(job, [RanksEnded(I1, 2, "ok")], 140.0), 150.0), 200.0)
    assert book.useful_instance_s == pytest.approx(80.0)
    assert book.on_demand_cost_usd == pytest.approx(80.0 / 3600 * 3.0)
    assert sum(book.overhead.values()) + book.useful_instance_s == pytest.approx(book.billed_instance_s)
