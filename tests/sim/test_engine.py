"""The heap driver: virtual time, no side doors, what it leaves is what the vendor saw."""

from __future__ import annotations

import pytest
from hypothesis import given

from everstep.brain.economics.ledger import account, cost_usd
from everstep.brain.pools import PoolBook
from everstep.control.kernel import Kernel
from everstep.model.errors import Conflict, NotFound, UnlistedTransition
from everstep.model.events import CancelRequested, InstanceReady, JobSubmitted, RetryRequested
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import InstancePhase, JobPhase
from everstep.model.offers import Pool
from everstep.sim.engine import Engine
from everstep.sim.strand import Timeline
from everstep.testing.scripted import Fault, FaultKind, ScriptedWorld
from everstep.testing.scripted_agents import ScriptedAgents
from everstep.testing.scripted_cloud import ScriptedProvider
from everstep.testing.scripted_run import DEPLOYMENT, START, ScriptedPlay
from tests.parity.generated import worlds
from tests.parity.worlds import BY_NAME, JOB, task, world


def engine(scripted: ScriptedWorld, *, strict: bool = True) -> tuple[Engine, ScriptedProvider]:
    timeline = Timeline(START)
    provider = ScriptedProvider(scripted, timeline)
    made = Engine({provider.name: provider}, deployment=DEPLOYMENT, timeline=timeline, strict=strict)
    play = ScriptedPlay(scripted, timeline, provider, ScriptedAgents(scripted, timeline, made.desk))
    made.begin()
    play.begin(made)
    return made, provider


def test_time_moves_to_where_it_is_told_and_no_further() -> None:
    made, _ = engine(world("calm"))
    made.run(START + 3.0)
    assert made.timeline.now() == START + 3.0
    assert all(line.at <= START + 3.0 for line in made.journal)
    assert made.state(JOB) is not None


def test_in_steps_or_at_once_is_the_same() -> None:
    at_once, _ = engine(BY_NAME["three_jobs"])
    at_once.run(START + 200.0)
    in_steps, _ = engine(BY_NAME["three_jobs"])
    for n in range(1, 2001):
        in_steps.run(START + n / 10)
    assert in_steps.journal == at_once.journal


def test_requests_are_granted_or_refused_as_live() -> None:
    made, _ = engine(world("empty", submissions=()))
    answers: list[str] = []

    async def ask(job: str, event: object) -> None:
        try:
            await made.ask(JobId(job), event)  # type: ignore[arg-type]
            answers.append("granted")
        except (Conflict, NotFound) as error:
            answers.append(str(error))

    made.put(JOB, JobSubmitted(JOB, task(1), "u", "default"))
    made.timeline.spawn(ask("j-nobody", CancelRequested("u")))
    made.run(START + 1.0)
    made.timeline.spawn(ask(JOB, RetryRequested("u")))
    made.run(START + 2.0)
    made.timeline.spawn(ask(JOB, CancelRequested("u")))
    made.run(START + 60.0)
    assert answers == ["there is no job j-nobody", "job j-1 is acquiring: retry is not possible now", "granted"]
    assert list(made.ended) == [JOB]
    made.timeline.spawn(ask(JOB, CancelRequested("u")))
    made.run(START + 61.0)
    assert answers[-1] == "job j-1 is cancelled: cancel is not possible now"
    assert list(made.ended) == [JOB], "a refused request does not bring an ended job back"


def test_an_unlisted_move_is_raised_when_strict_and_quarantined_when_not() -> None:
    wrong = InstanceReady(InstanceId("i-of-nobody"), 1)
    strict, _ = engine(world("calm"))
    strict.run(START + 20.0)
    strict.put(JOB, wrong)
    with pytest.raises(UnlistedTransition):
        strict.run(START + 21.0)
    loose, _ = engine(world("calm"), strict=False)
    loose.run(START + 20.0)
    loose.put(JOB, wrong)
    loose.run(START + 21.0)
    state = loose.state(JOB)
    assert state is not None
    assert "i-of-nobody" in state.quarantined


def test_trouble_with_a_vendor_is_shown_while_it_lasts() -> None:
    made, _ = engine(world("down", faults=(Fault(20.0, FaultKind.API_DOWN, seconds=20.0),)))
    made.run(START + 30.0)
    assert made.troubles == {"box": "scripted: the vendor does not answer"}
    made.run(START + 60.0)
    assert made.troubles == {}


def journalled(book: PoolBook) -> dict[Pool, tuple[object, ...]]:
    """What events tell of pools. What looks at the market showed besides is no event."""
    told = {p: (r.failed_at, r.failure, r.preemptions, r.refusals, r.launched_at) for p, r in book.records.items()}
    return {pool: record for pool, record in told.items() if record != (None, "", 0, 0, ())}


@given(worlds())
def test_in_any_world_the_journal_adds_up_and_nothing_is_left_behind(drawn: ScriptedWorld) -> None:
    made, provider = engine(drawn)
    made.run(START + 150.0)
    # At the end users cancel all that is left; then nothing of it may live on.
    for job in list(made.kernel.states):
        made.ask(job, CancelRequested("u"))
    made.run(START + 500.0)
    states = {**made.kernel.states, **made.ended}
    folded = Kernel(DEPLOYMENT, strict=True)
    for line in made.journal:
        folded.replay(line.job, line.event, line.at)
    assert folded.states == states
    assert journalled(folded.pools) == journalled(made.kernel.pools)
    for machine in provider.machines.values():
        assert not machine.alive
        known = states[machine.request.job].by_instance(machine.instance)
        assert known is not None
        assert known.phase is InstancePhase.ENDED
        assert (known.started_at, known.ended_at) == (machine.started_at, machine.ended_at), "what is billed"
    for state in states.values():
        assert state.phase.ended or state.phase is JobPhase.PAUSED
        assert account(state, START + 500.0).cost_usd == pytest.approx(cost_usd(state, START + 500.0))
