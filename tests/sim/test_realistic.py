"""The realistic driver: what the journal says is what the vendor saw, and nothing hangs on chance but the seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.brain.economics.ledger import account
from everstep.control.kernel import Kernel
from everstep.model.causes import Cause, InstanceEnd
from everstep.model.events import InstanceEnded, LaunchFailed, LaunchIntended, NoticeReceived, RanksStarted
from everstep.model.ids import JobId
from everstep.model.job import JobPhase
from everstep.model.task import OnNoCapacity, Recovery, SpotMode
from everstep.sim.accounts import bill
from everstep.sim.lookout import Lookout
from everstep.sim.quiet import QuietLookout
from everstep.sim.realistic import DEPLOYMENT, Entry, Played, Realistic, World, play
from everstep.sim.world.conditions import Conditions
from everstep.sim.world.supply import Lot
from tests.sim.world.made import JOB, START, V100, entry, flaky, lot, supply, world


def cost_usd(played: Played, spec: World, job: JobId = JOB) -> float:
    return sum(line.cost_usd for line in bill(played.states[job], played.ended_at, spec.tariff))


def charged_usd(played: Played) -> float:
    return sum(c["cost_usd"] for c in played.cloud.charges(DEPLOYMENT))


def kinds(played: Played, kind: type) -> list[object]:
    return [line.event for line in played.journal if isinstance(line.event, kind)]


def test_an_undisturbed_job_costs_its_work_its_boot_and_its_saves() -> None:
    spec = world(lot("a", [1]))
    played = play(spec, [entry(2.0)])
    state = played.states[JOB]
    assert state.phase is JobPhase.SUCCEEDED
    found = account(state, played.ended_at)
    assert (found.preemptions, found.lost_steps, found.attempts) == (0, 0, 1)
    # Two hours at a dollar, and what boot, set-up and saves take.
    extra_s = found.overhead["boot"] + found.overhead["setup"] + found.overhead["save"]
    assert found.cost_usd == pytest.approx(2.0 + extra_s / 3600.0, abs=0.02)
    assert extra_s > 100.0


def test_a_preemption_with_notice_moves_to_the_other_zone_and_loses_nothing() -> None:
    spec = world(lot("a", [1] * 6 + [0] * 200), lot("b", [1], price=1.5))
    played = play(spec, [entry(3.0)])
    state = played.states[JOB]
    found = account(state, played.ended_at)
    assert state.phase is JobPhase.SUCCEEDED
    assert {m.offer.zone for m in state.instances.values()} == {"a", "b"}
    assert kinds(played, NoticeReceived)
    assert (found.preemptions, found.lost_steps) == (1, 0)


def test_without_notice_what_was_done_since_the_last_save_is_lost() -> None:
    spec = world(lot("a", [1] * 6 + [0] * 200), lot("b", [1], price=1.5), conditions=Conditions(notice_chance=0.0))
    played = play(spec, [entry(3.0)])
    state = played.states[JOB]
    found = account(state, played.ended_at)
    assert state.phase is JobPhase.SUCCEEDED
    first, second = state.attempts
    assert first.cause is Cause.PREEMPTION
    assert first.step is not None
    assert second.base == f"1:{first.saves[-1].step}"
    assert found.lost_steps == first.step - first.saves[-1].step > 0


def test_of_a_gang_only_the_lost_machine_is_replaced() -> None:
    spec = world(lot("a", [4] * 6 + [3] * 200), lot("b", [9], price=1.5))
    played = play(spec, [entry(3.0, nodes=4)])
    state = played.states[JOB]
    assert state.phase is JobPhase.SUCCEEDED
    assert Counter(m.offer.zone for m in state.instances.values()) == {"a": 4, "b": 1}
    first, second = state.attempts
    assert len(set(first.members) & set(second.members)) == 3
    assert len(kinds(played, RanksStarted)) == 8


def test_a_checkpoint_that_changes_region_is_charged_once_per_read() -> None:
    far = lot("b", [1], region="r2", price=1.5)
    spec = world(lot("a", [1] * 6 + [0] * 200), far, tariff=lambda source, target: 0.02)
    played = play(spec, [entry(3.0)])
    egress = [line for line in bill(played.states[JOB], played.ended_at, spec.tariff) if line.kind == "egress"]
    assert [(line.resource, line.quantity, line.cost_usd) for line in egress] == [("r1->r2", 10.0, pytest.approx(0.2))]
    charged = [c for c in played.cloud.charges(DEPLOYMENT) if c["kind"] == "egress"]
    assert [(c["resource"], c["cost_usd"]) for c in charged] == [("r1->r2", pytest.approx(0.2))]


def test_a_machine_that_never_comes_up_is_replaced() -> None:
    played = play(world(lot("a", [9]), conditions=Conditions(boot_failure=0.5), seed=2), [entry(1.0)])
    state = played.states[JOB]
    assert state.phase is JobPhase.SUCCEEDED
    never = [m for m in state.instances.values() if m.joined_at is None]
    assert never
    assert all("not ready" in m.leave_reason for m in never)


def test_a_maximum_life_is_a_known_end_and_not_a_preemption_of_the_pool() -> None:
    played = play(world(lot("a", [9]), conditions=Conditions(max_life_s=5400.0)), [entry(3.0)])
    state = played.states[JOB]
    assert state.phase is JobPhase.SUCCEEDED
    assert InstanceEnd.MAX_LIFE in {m.end for m in state.instances.values()}
    assert account(state, played.ended_at).lost_steps == 0


def test_a_job_that_waits_for_spot_goes_on_when_the_market_does_without_looking_in_between() -> None:
    waits = entry(1.0, spot=SpotMode.TRUE, recovery=Recovery(on_no_capacity=OnNoCapacity.WAIT))
    spec = world(Lot("a", "r1", V100, 3.0, supply([0] * 60 + [1] * 60)))
    made = Realistic(spec, [waits])
    instants: list[float] = []
    played = made.run(lambda engine: instants.append(engine.timeline.now()))
    assert played.states[JOB].phase is JobPhase.SUCCEEDED
    (intent,) = kinds(played, LaunchIntended)
    assert isinstance(intent, LaunchIntended)
    launched_at = next(line.at for line in played.journal if line.event is intent)
    assert START + 36_000.0 <= launched_at <= START + 36_010.0
    waiting = [at for at in instants if START + 60.0 < at < START + 36_000.0]
    assert len(waiting) <= 25, "ten hours of waiting: at most one look each half hour"


def test_hidden_capacity_is_found_out_by_launching() -> None:
    spec = world(lot("a", [0]), lot("b", [1], price=1.5), conditions=Conditions(told=False))
    played = play(spec, [entry(1.0)])
    refused = kinds(played, LaunchFailed)
    assert [e.error for e in refused if isinstance(e, LaunchFailed)] == ["no_capacity"]
    assert played.states[JOB].phase is JobPhase.SUCCEEDED


def test_a_quiet_month_is_no_more_work_than_its_saves() -> None:
    month = entry(720.0)
    month = replace(month, work=replace(month.work, step_s=1.0))
    made = Realistic(world(lot("a", [1] * 4320), hours=800.0), [month])
    count = 0

    def watch(engine: object) -> None:
        nonlocal count
        count += 1

    played = made.run(watch)
    saves = len(made.engine.journal)
    assert played.states[JOB].phase is JobPhase.SUCCEEDED
    assert count <= 3 * saves + 100


def test_the_same_seed_gives_the_same_journal_and_another_one_does_not() -> None:
    lots = [lot("a", [3, 3, 1, 3, 0, 2] * 20), lot("b", [1, 0] * 60, region="r2", price=1.2)]
    entries = [entry(3.0, nodes=2), entry(2.0, job=JobId("j-2"), at=500.0)]

    def run(seed: int) -> list[object]:
        return list(play(world(*lots, seed=seed, conditions=flaky()), entries).journal)

    assert run(7) == run(7)
    assert run(7) != run(8)


_POLICIES = ("greedy", "rotate", "on_demand", "uniform_progress", "utility", "spot_only")


@st.composite
def scenes(draw: st.DrawFn) -> tuple[World, list[Entry]]:
    """Zones that come and go, conditions of any roughness, a few jobs."""
    gap_s = draw(st.sampled_from([195.0, 600.0, 1800.0]))
    counts = st.lists(st.integers(0, 4), min_size=1, max_size=30)
    lots = tuple(
        lot(f"z{n}", draw(counts), region=f"r{n % 2}", price=1.0 + 0.1 * n, gap_s=gap_s)
        for n in range(draw(st.integers(1, 3)))
    )
    conditions = Conditions(
        launch_failure=draw(st.sampled_from([0.0, 0.3])),
        boot_failure=draw(st.sampled_from([0.0, 0.2])),
        loss_per_h=draw(st.sampled_from([0.0, 0.3])),
        notice_chance=draw(st.sampled_from([0.0, 0.5, 1.0])),
        notice_s=draw(st.sampled_from([0.0, 30.0, 120.0])),
        max_life_s=draw(st.sampled_from([None, 3000.0])),
        told=draw(st.booleans()),
        burst=draw(st.sampled_from([2, 100])),
    )
    entries = [
        entry(
            draw(st.sampled_from([0.2, 1.5])),
            nodes=draw(st.integers(1, 3)),
            at=draw(st.floats(0, 2000)),
            job=JobId(f"j-{n}"),
            policy=draw(st.sampled_from(_POLICIES)),
            deadline_s=draw(st.sampled_from([None, 9000.0])),
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    tariff = lambda source, target: 0.02  # noqa: E731
    shared = draw(st.sampled_from(["/bucket", "/bucket", None]))
    seed = draw(st.integers(0, 99))
    return world(*lots, hours=8.0, seed=seed, conditions=conditions, tariff=tariff, shared=shared), entries


@given(scenes())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_ledger_of_the_journal_is_the_meter_of_the_vendor(scene: tuple[World, list[Entry]]) -> None:
    spec, entries = scene
    played = play(spec, entries)
    folded = Kernel(DEPLOYMENT, strict=True)
    for line in played.journal:
        folded.replay(line.job, line.event, line.at)
    assert folded.states == played.states
    lines = [one for state in folded.states.values() for one in bill(state, played.ended_at, spec.tariff)]
    charges = played.cloud.charges(DEPLOYMENT)
    told = {(line.kind.value, line.resource, line.start) for line in lines}
    assert told == {(c["kind"], c["resource"], c["start"]) for c in charges} - _unheard(played, told)
    by_key = {(line.kind.value, line.resource, line.start): line for line in lines}
    for charge in charges:
        line = by_key.get((charge["kind"], charge["resource"], charge["start"]))
        # What ended in the last moments of the simulation has not been seen yet.
        if line is not None and (line.end is not None or charge["end"] is None):
            assert line.cost_usd == pytest.approx(charge["cost_usd"], abs=1e-9)
            assert line.end == charge["end"]


def _unheard(played: Played, told: set[tuple[str, str, float]]) -> set[tuple[str, str, float]]:
    """Charges of the last ten seconds before time was up."""
    found = {(c["kind"], c["resource"], c["start"]) for c in played.cloud.charges(DEPLOYMENT)} - told
    return {key for key in found if key[2] > played.ended_at - 10.0}


def _able(policy: str) -> str:
    return "greedy" if policy == "spot_only" else policy


@given(scenes())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_nothing_is_left_that_costs(scene: tuple[World, list[Entry]]) -> None:
    spec, entries = scene
    # Whoever takes spot alone may wait for ever in a market that has none any more.
    entries = [replace(one, task=replace(one.task, policy=_able(one.task.policy))) for one in entries]
    played = play(replace(spec, until=spec.until + 100 * 3600.0), entries)
    assert all(state.phase.ended for state in played.states.values())
    assert not any(m.alive for m in played.cloud.machines.values())
    for machine in played.cloud.machines.values():
        known = played.states[machine.request.job].by_instance(machine.instance)
        assert known is not None
        assert (known.started_at, known.ended_at, known.end) == (machine.started_at, machine.ended_at, machine.end)


@pytest.mark.parametrize("seed", range(4))
def test_leaving_out_the_looks_that_find_nothing_changes_nothing_that_counts(seed: int) -> None:
    lots = [lot("a", [2, 2, 1, 2, 0, 2] * 4), lot("b", [1, 1, 0] * 8, price=1.2)]
    spec = world(*lots, hours=6.0, seed=seed, conditions=flaky(loss_per_h=0.0))
    quiet, polling = (
        Realistic(spec, [entry(1.5, nodes=2)], lookout=lookout).run() for lookout in (QuietLookout, Lookout)
    )
    named = [[type(line.event).__name__ for line in p.journal] for p in (quiet, polling)]
    ends = [sorted(e.end for e in kinds(p, InstanceEnded) if isinstance(e, InstanceEnded)) for p in (quiet, polling)]
    assert ends[0] == ends[1]
    assert Counter(named[0])["LaunchIntended"] == Counter(named[1])["LaunchIntended"]
    assert cost_usd(quiet, spec) == pytest.approx(cost_usd(polling, spec), rel=0.02)
    assert charged_usd(polling) == pytest.approx(cost_usd(polling, spec), abs=1e-6)


def test_the_trace_may_be_as_long_as_it_likes() -> None:
    """Memory of a run does not grow with ticks at which nothing changes."""
    import tracemalloc

    def peak(ticks: int) -> int:
        counts = np.ones(ticks, dtype=np.int64)
        spec = world(Lot("a", "r1", V100, 3.0, replace(supply([1]), counts=counts, gap_s=1.0)))
        tracemalloc.start()
        play(spec, [entry(1.0)])
        found = tracemalloc.get_traced_memory()[1] - counts.nbytes
        tracemalloc.stop()
        return found

    play(world(lot("a", [1])), [entry(1.0)])  # what is imported or cached on the way counts for neither
    short, long = peak(10_000), peak(200_000)
    assert long < short + 200_000 + 190_000 * 2
