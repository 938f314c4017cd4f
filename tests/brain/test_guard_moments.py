"""When a job with a deadline is looked at although nothing happened: at the moments that matter, not by the minute."""

from __future__ import annotations

import pytest

from everstep.brain import guard
from everstep.brain.plan import Heard
from everstep.model.events import DeadlineAlarm, ProgressSeen, Restored
from everstep.model.ids import InstanceId
from everstep.model.job import JobState
from everstep.model.task import Objective, Work
from tests.brain.making import fold, fresh, running

HOUR = 3600.0
I1 = InstanceId("i-1")


def at_work(deadline_h: float = 40.0) -> JobState:
    """10 h of work in steps of a second; the first step was done at 100 s, so a changeover takes 100 s."""
    job = running(work=Work(steps=36_000), objective=Objective(deadline_s=deadline_h * HOUR))
    return fold(job, [Restored(I1, 1, None), ProgressSeen(I1, 1, 1, 36_000, 100.0)], 100.0)


def looks(job: JobState, *, until: float, steps_per_s: float = 1.0) -> tuple[list[float], list[float]]:
    """Instants at which the guard asked to be called, and those at which the alarm was raised."""
    now, asked, alarms = 200.0, [], []
    while now < until:
        step = int((now - 100.0) * steps_per_s) + 1
        verdicts, wakes = guard.guards(job, {I1: Heard(now, step, now, 36_000)}, (), now)
        alarms += [now for event, _ in verdicts if isinstance(event, DeadlineAlarm)]
        if alarms or not wakes:
            break
        assert min(wakes) > now
        now = min(wakes)
        asked.append(now)
    return asked, alarms


def test_a_job_that_trains_well_ahead_of_its_deadline_is_hardly_looked_at() -> None:
    asked, alarms = looks(at_work(), until=10 * HOUR)
    assert len(asked) <= 1
    assert not alarms


def test_a_job_that_trains_with_little_slack_is_not_looked_at_by_the_second() -> None:
    # 36,100 s at best, within 36,200 s: the net has spoken, the alarm would need 100 s without a step.
    asked, alarms = looks(at_work(36_200 / HOUR), until=10 * HOUR)
    assert not alarms
    assert len(asked) < 10 * HOUR / 60


def test_where_no_step_is_done_any_more_the_look_comes_when_the_net_would_speak_and_when_it_is_too_late() -> None:
    job = at_work()
    heard = {I1: Heard(200.0, 101, 200.0, 36_000)}
    _, wakes = guard.guards(job, heard, (), 200.0)
    left_s = guard.work_left_s(job, heard)
    assert left_s == pytest.approx(35_899.0)
    net_at, late_at = sorted(wakes)
    assert late_at - net_at == pytest.approx(2 * guard.changeover_s(job))
    assert not guard.must_on_demand(job, heard, net_at - 2.0)
    assert guard.must_on_demand(job, heard, net_at)
    verdicts, _ = guard.guards(job, heard, (), late_at - 2.0)
    assert verdicts == []
    ((event, _),), _ = guard.guards(job, heard, (), late_at)
    assert isinstance(event, DeadlineAlarm)


def test_a_job_that_waits_is_looked_at_when_its_net_would_speak() -> None:
    job = fresh(work=Work(hours=10.0), objective=Objective(deadline_s=20 * HOUR))
    _, wakes = guard.guards(job, {}, (), 0.0)
    assert min(wakes) == pytest.approx(10 * HOUR - 2 * guard.changeover_s(job), abs=1.5)
    assert guard.must_on_demand(job, {}, min(wakes))
