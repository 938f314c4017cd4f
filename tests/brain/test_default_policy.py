"""Who decides for a job whose task names no policy."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from everstep.brain.needs import policy_of
from everstep.brain.plan import Heard, Snapshot, plan
from everstep.brain.select import SELECTORS, TIMED, UNTIMED
from everstep.model.effects import Launch
from everstep.model.events import ProgressSeen, Restored
from everstep.model.ids import InstanceId
from everstep.model.job import JobState
from everstep.model.offers import Market
from everstep.model.task import Objective, Work
from tests.brain.making import DEPLOYMENT, fold, fresh, offer, prepared

DEADLINE = Objective(deadline_s=40 * 3600.0)
HOURS = Work(hours=10.0)
SPOT, STEADY = offer("a"), offer("a", Market.ON_DEMAND, 3.0)


def test_both_defaults_exist() -> None:
    assert {TIMED, UNTIMED} <= set(SELECTORS)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "greedy"),
        ({"work": HOURS}, "greedy"),
        ({"objective": DEADLINE}, "greedy"),
        ({"work": HOURS, "objective": DEADLINE}, "auto"),
        ({"work": HOURS, "objective": DEADLINE, "policy": "rotate"}, "rotate"),
        ({"policy": "auto"}, "auto"),
    ],
)
def test_the_default_is_auto_where_work_and_deadline_are_known(fields: dict[str, object], expected: str) -> None:
    assert policy_of(fresh(**fields), {}) == expected


def test_once_a_script_tells_its_total_and_steps_were_measured_auto_decides() -> None:
    first = InstanceId("i-1")
    job = prepared(objective=DEADLINE)
    assert policy_of(job, {}) == "greedy"
    job = fold(job, [Restored(first, 1, None), ProgressSeen(first, 1, 1, 1000, 100.0)], 100.0)
    assert policy_of(job, {first: Heard(200.0, 100, 199.0, 1000)}) == "auto"


def _decided(job: JobState, dry: bool) -> tuple[list[str], str, dict[str, str]]:
    offers = (replace(SPOT, available=0) if dry else SPOT, STEADY)
    snapshot = Snapshot(DEPLOYMENT, (job,), offers, shared_folders={"a": "/shared"})
    (decision,) = plan(snapshot, 10.0, Random(0))
    leased = [e.event.offer.market.value for e in decision.effects if isinstance(e, Launch)]
    return leased, decision.record.wait, {c.what: c.verdict for c in decision.record.candidates}


def test_in_a_drought_auto_waits_as_long_as_that_is_worth_it_and_greedy_does_not() -> None:
    timed = fresh(work=HOURS, objective=DEADLINE)
    leased, wait, weighed = _decided(timed, dry=True)
    assert leased == []
    assert wait.startswith("auto: to wait is worth more now than anything that is to be had")
    assert weighed[f"{STEADY.pool}"].startswith("possible: the rest of the job would cost $")
    assert weighed["wait"].startswith("chosen: the rest of the job would cost $")
    assert weighed[f"{SPOT.pool}"] == "no capacity"
    assert _decided(fresh(work=HOURS), dry=True)[0] == ["on_demand"]
    hurried = fresh(work=HOURS, objective=Objective(deadline_s=10.05 * 3600.0))
    assert _decided(hurried, dry=True)[0] == ["on_demand"]


def test_auto_by_name_waits_for_spot_without_a_deadline_however_long_that_takes() -> None:
    job = fresh(work=HOURS, policy="auto")
    assert _decided(job, dry=False)[0] == ["spot"]
    leased, wait, _ = _decided(job, dry=True)
    assert leased == []
    assert wait.startswith("auto: ")
    nothing_known = fresh(policy="auto")
    assert _decided(nothing_known, dry=True)[0] == ["on_demand"], "it cannot reckon, and greedy decides"
