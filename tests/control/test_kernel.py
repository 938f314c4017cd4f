"""The loop's arithmetic: lines first, effects after, and nothing done that no line tells of."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.brain.pools import see_offers
from everstep.control import kernel as module
from everstep.control.kernel import Kernel, Market
from everstep.model.effects import Launch
from everstep.model.errors import Conflict, NotFound, UnlistedTransition
from everstep.model.events import (
    CancelRequested,
    JobSubmitted,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    UnpauseRequested,
)
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.job import JobPhase
from everstep.model.offers import Market as Lease
from tests.brain.making import DEPLOYMENT, JOB, offer, task
from tests.brain.test_moving import at_work


def market() -> Kernel:
    made = Kernel(DEPLOYMENT)
    made.market.set_offers([offer("a"), offer("b", price=1.5)])
    made.market.shared_folders.update(a="/shared", b="/shared")
    return made


def with_job(nodes: int = 1) -> Kernel:
    made = market()
    made.submit(JobSubmitted(JOB, task(nodes), "u", "p"), 10.0)
    return made


def launches(made: Kernel) -> list[LaunchToken]:
    return [e.event.token for e in made.take().effects if isinstance(e, Launch)]


def test_every_effect_comes_with_its_intent_among_the_lines_and_is_handed_over_once() -> None:
    made = with_job(2)
    outcome = made.take()
    assert [type(line.event).__name__ for line in outcome.lines] == [
        "JobSubmitted", "Decided", "LaunchIntended", "LaunchIntended",
    ]  # fmt: skip
    told = [line.event for line in outcome.lines]
    assert all(effect.event in told for effect in outcome.effects if isinstance(effect, Launch))
    assert made.take().lines == []
    assert made.take().effects == []


@pytest.mark.parametrize("strict", [True, False])
def test_an_effect_whose_intent_is_not_listed_is_not_handed_over(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    real = module.advance

    def advance(state: Any, event: Any, now: float) -> Any:
        if type(event).__name__ == "LaunchIntended":
            raise UnlistedTransition("no launch in this test")
        return real(state, event, now)

    monkeypatch.setattr(module, "advance", advance)
    made = market()
    made.strict = strict
    if strict:
        with pytest.raises(UnlistedTransition):
            made.submit(JobSubmitted(JOB, task(1), "u", "p"), 10.0)
        return
    made.submit(JobSubmitted(JOB, task(1), "u", "p"), 10.0)
    outcome = made.take()
    assert outcome.effects == []
    assert [type(line.event).__name__ for line in outcome.lines].count("Rejected") == 1
    assert made.states[JOB].wait == "quarantined: no launch in this test"


def test_an_event_that_changes_nothing_leaves_no_line() -> None:
    made = with_job()
    (token,) = launches(made)
    answer = LaunchSucceeded(token, InstanceId("i-1"), 11.0, 1.0)
    made.handle(JOB, answer, 11.0)
    assert len(made.take().lines) == 1
    made.handle(JOB, answer, 12.0)
    assert made.take().lines == []


def test_a_launch_that_fails_after_a_sweep_found_its_machine_says_why_in_the_journal() -> None:
    made = with_job()
    (token,) = launches(made)
    made.handle(JOB, LaunchSucceeded(token, InstanceId("i-1"), 11.0, 1.0), 11.0)
    made.take()
    broke_off = LaunchFailed(token, "no_capacity", "its disk is in another zone")
    made.handle(JOB, broke_off, 12.0)
    made.handle(JOB, broke_off, 13.0)
    assert [line.event for line in made.take().lines if isinstance(line.event, LaunchFailed)] == [broke_off]
    assert made.pools.record(offer("a").pool).failure == "no_capacity", "the pool cools down"


def test_requests_that_do_not_fit_are_refused_without_a_line() -> None:
    made = with_job()
    made.take()
    with pytest.raises(NotFound):
        made.ask(JobId("j-nobody"), CancelRequested("u"), 11.0)
    with pytest.raises(Conflict):
        made.ask(JOB, UnpauseRequested("u"), 11.0)
    assert made.take().lines == []


def test_a_job_is_looked_at_when_its_time_has_come_and_not_before() -> None:
    made = Kernel(DEPLOYMENT)
    made.submit(JobSubmitted(JOB, task(1), "u", "p"), 10.0)
    made.take()
    at = made.next_wake()
    assert at is not None
    made.market.set_offers([offer("a")])
    made.market.shared_folders["a"] = "/shared"
    made.wake(at - 0.001)
    assert launches(made) == []
    made.wake(at)
    assert len(launches(made)) == 1


def test_a_market_that_moves_is_used_at_once_by_those_who_wait() -> None:
    made = Kernel(DEPLOYMENT)
    made.submit(JobSubmitted(JOB, task(1), "u", "p"), 10.0)
    made.take()
    assert made.market.set_offers([offer("a")])
    made.market.shared_folders["a"] = "/shared"
    made.market_moved(11.0)
    assert len(launches(made)) == 1
    made.market_moved(12.0)
    assert launches(made) == [], "nobody waits any more"


def test_only_what_matters_of_the_market_is_a_move() -> None:
    made = Market()
    assert made.set_offers([offer("a", price=1.0)])
    assert not made.set_offers([offer("a", price=1.0)])
    assert made.set_offers([offer("a", price=1.1)])
    assert made.set_offers([offer("a", price=1.1, available=0)])
    assert made.set_offers([])


def test_an_ended_job_that_is_dropped_is_looked_at_no_more() -> None:
    made = with_job()
    (token,) = launches(made)
    made.ask(JOB, CancelRequested("u"), 11.0)
    made.handle(JOB, LaunchFailed(token, "no_capacity", ""), 12.0)
    state = made.drop(JOB)
    assert state.phase is JobPhase.CANCELLED
    assert (made.states, made.next_wake()) == ({}, None)
    made.wake(1e9)
    made.adopt(state)
    assert made.states == {JOB: state}


def test_a_job_that_runs_is_looked_at_when_the_market_moves_only_where_its_policy_may_move_it() -> None:
    for policy, looked in (("incl", True), ("greedy", False)):
        made = market()
        state = at_work(policy=policy)
        made.adopt(state)
        made.market.set_offers([offer("a"), offer("a", Lease.ON_DEMAND, 3.0)])
        made.market_moved(1000.0)
        assert bool(launches(made)) is looked


def test_the_first_look_puts_what_changed_meanwhile_in_the_middle_and_later_ones_where_they_see_it() -> None:
    made = market()
    made.pools = see_offers(made.pools, [offer("a", available=1)], {}, 0.0, watched=True)
    for at, available in ((100.0, 0), (200.0, 1)):
        made.market.set_offers([offer("a", available=available)])
        made.market_moved(at)
    assert made.pools.record(offer("a").pool).flips == ((0.0, True), (50.0, False), (200.0, True))


def test_what_was_seen_of_launches_is_there_again_after_a_replay() -> None:
    made = with_job()
    (token,) = launches(made)
    made.handle(JOB, LaunchSucceeded(token, InstanceId("i-1"), 20.0, 1.0), 20.0)
    again = Kernel(DEPLOYMENT)
    again.replay(JOB, JobSubmitted(JOB, task(1), "u", "p"), 10.0)
    again.replay(JOB, LaunchIntended(token, 1, Slot(0, 0), offer("a"), None), 10.0)
    again.replay(JOB, LaunchSucceeded(token, InstanceId("i-1"), 20.0, 1.0), 20.0)
    record = made.pools.record(offer("a").pool)
    assert record.seen is not None
    assert again.pools.record(offer("a").pool) == record
