"""The rules of behaviour that the brain decides, over random worlds: faults of every kind, at random moments."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everstep.brain.economics.ledger import account
from everstep.brain.guard import changeover_s
from everstep.brain.lifecycle import orders, transition
from everstep.brain.plan import plan
from everstep.model.causes import Cause, NoticeKind
from everstep.model.codec import from_dict, to_dict
from everstep.model.effects import Launch
from everstep.model.events import (
    CancelRequested,
    CauseSettled,
    Event,
    InstanceEnded,
    NoticeReceived,
    RanksEnded,
    RanksStarted,
    TerminateIntended,
    UnpauseRequested,
)
from everstep.model.gang import ZoneRule
from everstep.model.job import GangPhase, Goal, InstancePhase, JobPhase, JobState
from everstep.model.offers import Market
from everstep.model.task import Recovery
from tests.brain.making import task
from tests.brain.world import World
from tests.brain.world_loop import FAULTS_UNTIL_S, Faults

SEEDS = st.integers(0, 2**31)
NODES = st.integers(1, 4)
PATIENT = Recovery(max_restarts=2, no_progress_limit=1_000_000, cooldown_s=60.0, boot_timeout_s=100.0)
MACHINES = Faults(
    preemptions_per_h=15, deaths_per_h=6, freezes_per_h=12, restarts_per_h=6, launch_failure=0.2, lost_answer=0.15,
    duplicates=0.15, disk_failure=0.2, mute_agent=0.02,
)  # fmt: skip
EVERYTHING = Faults(
    preemptions_per_h=10, deaths_per_h=5, freezes_per_h=10, restarts_per_h=5, launch_failure=0.15, lost_answer=0.1,
    setup_failure=0.05, user_failure=0.1, unreachable=0.05, mute_agent=0.03, duplicates=0.15, requests_per_h=90,
    disk_failure=0.1,
)  # fmt: skip


def quiesce(world: World, limit_s: float = 6000.0) -> JobState:
    """Faults are over: the world goes on until the job has ended and nothing is left; a paused job is unpaused."""
    at = max(world.now, FAULTS_UNTIL_S)
    world.run(at)
    while at < FAULTS_UNTIL_S + limit_s:
        if world.state.phase is JobPhase.PAUSED:
            world.ask(UnpauseRequested("u"))
        at += 100.0
        world.run(at)
        if world.state.phase.ended and not world.alive:
            break
    return world.state


class Rules:
    """Watches every event of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.highest = 0
        world.watchers.append(self.watch)

    def watch(self, before: JobState, event: Event, after: JobState) -> None:
        numbers = [a.no for a in after.attempts]
        assert numbers == list(range(1, len(numbers) + 1)), "attempt numbers grow by one"
        assert sum(a.phase is not GangPhase.ENDED for a in after.attempts) <= 1, "one attempt at a time"
        self.fence(before, event, after)
        self.budget(before, event, after)
        self.survivors(before, event)
        if before.goal is Goal.CANCEL:
            assert after.goal is Goal.CANCEL or after.goal is Goal.RUN, "cancel wins"
        if isinstance(event, CancelRequested):
            # What has failed stays that: then the machines go that were kept to look at.
            kept = before.goal is Goal.FAIL and before.kept_from is not None
            assert after.keep_until is None if kept else after.goal is Goal.CANCEL
        attempt = after.attempt
        if attempt is not None and attempt.phase is not GangPhase.ENDED:
            assert len(set(attempt.members)) == after.task.gang.size
            assert {after.instances[t].slot for t in attempt.members} == set(after.task.gang.slots)

    def fence(self, before: JobState, event: Event, after: JobState) -> None:
        number = getattr(event, "attempt", None)
        if number is None or number >= before.attempt_no or isinstance(event, CauseSettled):
            return
        # A late message may complete the bill of its own attempt, nothing else.
        assert isinstance(event, RanksEnded)
        assert (after.phase, after.goal, after.instances, after.user_failures) == (
            before.phase, before.goal, before.instances, before.user_failures
        )  # fmt: skip
        assert after.attempt == before.attempt

    def budget(self, before: JobState, event: Event, after: JobState) -> None:
        if after.user_failures > before.user_failures:
            assert isinstance(event, CauseSettled)
            assert event.cause is Cause.USER_ERROR

    def survivors(self, before: JobState, event: Event) -> None:
        """A machine that works, or could, is ended only for a reason of its own, or because its place is taken.

        Or with all of its gang, which must lie together and has waited for the rest of it as long as a move takes.
        """
        if not isinstance(event, TerminateIntended) or before.goal is not Goal.RUN or before.phase.ended:
            return
        machine = before.by_instance(event.instance)
        assert machine is not None
        if machine.doomed or machine.phase in (InstancePhase.BOOTING, InstancePhase.JOINED):
            return
        attempt = before.attempt
        assert attempt is not None
        if machine.token in attempt.members:
            assert "the gang goes to" in event.reason, f"a survivor was ended: {event.reason}"
            assert before.task.gang.groups[machine.slot.group].zones is not ZoneRule.ANY
            assert attempt.phase is GangPhase.ENDED
            assert before.waiting_since is not None
            assert self.world.now >= before.waiting_since + changeover_s(before)


def check_always(world: World) -> None:
    """What holds at any moment between two events."""
    assert world.stuck() == ""
    state = world.state
    if state.phase is JobPhase.ACQUIRING:
        taken = {m.slot for m in state.instances.values() if not m.doomed}
        if set(state.task.gang.slots) - taken:
            assert state.wait, "a wait has a visible reason"
    for decision in world.decisions:
        for effect in decision.effects:
            if isinstance(effect, Launch) and effect.event.offer.market is Market.SPOT:
                cap = state.task.max_price_usd_per_h
                price = effect.event.offer.price_usd_per_h
                assert price <= effect.event.offer.on_demand_usd_per_h
                assert cap is None or price <= cap
    world.decisions.clear()


def drive(world: World) -> JobState:
    """Faults and all, with the rules checked on the way, until the job has ended."""
    Rules(world)
    at = 0.0
    while at < FAULTS_UNTIL_S:
        at += 20.0
        world.run(at)
        check_always(world)
    return quiesce(world)


@given(SEEDS, NODES, st.booleans())
def test_with_faulty_machines_every_job_succeeds_and_no_failure_is_charged(seed: int, nodes: int, shared: bool) -> None:
    world = World(task(nodes, recovery=PATIENT), seed, MACHINES, shared=shared)
    state = drive(world)
    assert state.phase is JobPhase.SUCCEEDED, (state.phase, state.why, state.wait)
    assert state.user_failures == 0
    assert not world.alive


@given(SEEDS, NODES, st.booleans())
@example(20154, 4, True)  # cancelled while its machines are kept to look at
def test_whatever_happens_every_job_ends_and_nothing_is_left(seed: int, nodes: int, shared: bool) -> None:
    recovery = replace(PATIENT, no_progress_limit=5, keep_on_failure_s=30.0)
    world = World(task(nodes, recovery=recovery), seed, EVERYTHING, shared=shared)
    state = drive(world)
    assert state.phase.ended, (state.phase, state.goal, state.wait)
    assert not world.alive
    assert not any(m.alive for m in state.instances.values())
    if state.phase is JobPhase.CANCELLED:
        assert not world.disks
    assert state.user_failures <= world.user_failures


@given(SEEDS, NODES, st.booleans())
def test_the_journal_replays_to_the_same_state_through_its_written_form(seed: int, nodes: int, shared: bool) -> None:
    world = World(task(nodes, recovery=PATIENT), seed, EVERYTHING, shared=shared)
    quiesce(world, limit_s=500.0)
    assert world.replayed() == world.state
    world.journal = [(at, from_dict(type(event), to_dict(event))) for at, event in world.journal]
    assert world.replayed() == world.state
    assert from_dict(JobState, to_dict(world.state)) == world.state


@given(SEEDS)
def test_the_same_seed_gives_the_same_journal(seed: int) -> None:
    first, second = (World(task(2, recovery=PATIENT), seed, EVERYTHING) for _ in range(2))
    first.run(400.0)
    second.run(400.0)
    assert first.journal == second.journal
    assert first.decisions == second.decisions


@given(SEEDS, st.floats(0.0, 400.0))
def test_plan_decides_the_same_from_the_same_input_and_leaves_it_alone(seed: int, until: float) -> None:
    world = World(task(2, recovery=PATIENT), seed, EVERYTHING, shared=bool(seed % 2))
    world.run(until)
    snapshot = world.snapshot()
    untouched = copy.deepcopy(snapshot)
    decisions = [plan(snapshot, world.now, Random(seed)) for _ in range(2)]
    assert decisions[0] == decisions[1]
    assert (snapshot.jobs, snapshot.pools, snapshot.inflight) == (untouched.jobs, untouched.pools, untouched.inflight)


@given(SEEDS, NODES, st.floats(0.0, 600.0), st.booleans())
def test_cancel_wins_at_any_moment(seed: int, nodes: int, when: float, shared: bool) -> None:
    world = World(task(nodes, recovery=PATIENT), seed, EVERYTHING, shared=shared)
    Rules(world)
    world.run(when)
    if not world.ask(CancelRequested("u")):
        assert world.state.phase.ended
        return
    launches = len(world.agents)
    phases = set()
    world.watchers.append(lambda _, __, after: phases.add(after.phase))
    world.faults = Faults()
    world.run(world.now + 400.0)
    if not phases & {JobPhase.ACQUIRING}:  # nobody retried it
        assert world.state.phase is JobPhase.CANCELLED
        assert not world.alive
        assert not world.disks
        # What was on its way when the user cancelled may still arrive, and is ended; nothing new is asked for.
        inflight = [m for m in world.state.instances.values() if m.started_at is not None]
        assert len(world.agents) <= max(launches + nodes, len(inflight))


@given(SEEDS, NODES)
def test_the_parts_of_the_bill_add_up_to_what_was_billed(seed: int, nodes: int) -> None:
    world = World(task(nodes, recovery=PATIENT), seed, MACHINES)
    state = drive(world)
    book = account(state, world.now)
    assert book.useful_instance_s + sum(book.overhead.values()) == pytest.approx(book.billed_instance_s)
    assert book.billed_instance_s == pytest.approx(
        sum(m.ended_at - m.started_at for m in state.instances.values() if m.started_at and m.ended_at)
    )
    assert book.cost_usd == pytest.approx(sum(line.cost_usd for line in book.lines))
    assert min(book.overhead.values()) >= 0


@given(SEEDS, NODES)
def test_a_message_of_an_older_attempt_moves_nothing(seed: int, nodes: int) -> None:
    world = World(task(nodes, recovery=PATIENT), seed, MACHINES)
    quiesce(world)
    state = world.state
    stale = [e for _, e in world.journal if getattr(e, "attempt", state.attempt_no) < state.attempt_no]
    for event in stale:
        if not isinstance(event, CauseSettled):
            assert transition(state, event, world.now) == state


@given(SEEDS, st.sampled_from(["restart", "freeze", "kill", "preempt"]))
def test_after_one_loss_the_survivors_are_members_of_the_next_attempt(seed: int, fault: str) -> None:
    world = World(task(3, recovery=PATIENT), seed)
    world.run(60.0)
    before = world.state.attempt
    assert before is not None
    assert before.phase is GangPhase.RUNNING
    lost = world.state.instances[before.members[seed % 3]]
    assert lost.instance is not None
    if fault == "restart":
        world.restart_agent(lost.instance)
    elif fault == "freeze":
        world.freeze(lost.instance, 500.0)
    elif fault == "kill":
        world.kill(lost.instance)
    else:
        world.preempt(lost.instance, notice_s=20.0)
    state = quiesce(world)
    assert state.phase is JobPhase.SUCCEEDED
    after = state.attempt
    assert after is not None
    survivors = set(before.members) - {lost.token}
    assert survivors <= set(after.members)
    assert (lost.token in after.members) == (fault == "restart")
    for token in survivors:  # ranks are kept; only a lost master makes a survivor move up
        if before.members[0] == lost.token and token == before.members[1] and fault != "restart":
            assert after.members[0] == token
        else:
            assert after.members.index(token) == before.members.index(token)


def test_two_losses_at_once_are_one_recovery() -> None:
    world = World(task(3, recovery=PATIENT), 7)
    world.run(60.0)
    attempt = world.state.attempt
    assert attempt is not None
    for token in attempt.members[:2]:
        instance = world.state.instances[token].instance
        assert instance is not None
        world.kill(instance)
    state = quiesce(world)
    assert state.phase is JobPhase.SUCCEEDED
    assert state.attempt_no == 2
    assert state.attempts[0].cause is Cause.NODE_LOSS
    assert state.attempt is not None
    assert state.attempt.members[0] == attempt.members[2]


def test_on_notice_the_gang_saves_a_replacement_comes_and_the_job_moves_before_the_deadline() -> None:
    world = World(task(2, recovery=PATIENT), 3, steps=200)
    world.run(60.0)
    attempt = world.state.attempt
    assert attempt is not None
    assert attempt.phase is GangPhase.RUNNING
    child = world.state.instances[attempt.members[1]]
    assert child.instance is not None
    told_at = len(world.journal)
    world.tell(NoticeReceived(child.instance, NoticeKind.TERMINATE, world.now + 120.0))
    # In the same breath: the whole gang saves, and the replacement is asked for.
    for token in attempt.members:
        assert orders(world.state, world.state.instances[token])["save"] == {"seq": 1, "by": world.now + 120.0}
    assert [type(e).__name__ for _, e in world.journal[told_at:]].count("LaunchIntended") == 1
    deadline = world.now + 120.0
    world.run(deadline)
    second = world.state.attempt
    assert second is not None
    assert (second.no, second.phase) == (2, GangPhase.RUNNING)
    assert child.token not in second.members
    assert second.members[0] == attempt.members[0]
    assert world.state.attempts[0].cause is Cause.PREEMPTION
    assert world.state.instances[child.token].phase is InstancePhase.ENDED
    state = quiesce(world)
    assert state.phase is JobPhase.SUCCEEDED
    assert state.user_failures == 0


def test_a_machine_that_its_peers_cannot_reach_is_replaced_after_the_second_try() -> None:
    world = World(task(3, recovery=PATIENT), 5)
    world.run(2.5)
    bad = list(world.agents.values())[1]
    bad.cut_off = True
    world.faults = Faults()
    state = quiesce(world)
    assert state.phase is JobPhase.SUCCEEDED
    causes = [a.cause for a in state.attempts]
    assert causes == [Cause.UNREACHABLE_PEER, Cause.UNREACHABLE_PEER, Cause.SUCCESS]
    first, last = state.attempts[0], state.attempts[-1]
    assert set(first.members) - set(last.members) == {bad.token}


def test_when_no_machine_ever_reaches_another_the_job_fails_with_a_clear_text() -> None:
    world = World(task(2), 5, Faults(unreachable=1.0))
    state = quiesce(world)
    assert state.phase is JobPhase.FAILED
    assert "could not reach each other in 3 attempts in a row" in state.why
    assert not world.alive


def test_surviving_ranks_that_crash_first_are_not_the_users_failure() -> None:
    world = World(task(2), 11)
    world.run(60.0)
    attempt = world.state.attempt
    assert attempt is not None
    child = world.state.instances[attempt.members[1]]
    assert child.instance is not None
    world.preempt(child.instance, notice_s=0.0)
    seen = [type(e) for _, e in world.journal]
    state = quiesce(world)
    order = [type(e) for _, e in world.journal[len(seen) :]]
    assert order.index(RanksEnded) < order.index(InstanceEnded)  # the crash came first, as in practice
    assert state.phase is JobPhase.SUCCEEDED
    assert state.attempts[0].cause is Cause.PREEMPTION
    assert state.user_failures == 0


def test_ranks_start_once_per_attempt_and_node() -> None:
    world = World(task(3, recovery=PATIENT), 21, MACHINES)
    quiesce(world)
    started = [(e.attempt, e.instance) for _, e in world.journal if isinstance(e, RanksStarted)]
    assert len(started) == len(set(started))
    assert len(started) >= 3
