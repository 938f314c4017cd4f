"""What the gang is told of its hazard, and what is known of its stalls when it is lost."""

from __future__ import annotations

import pytest

from everstep.brain.checkpoint.hazard import machine_hazard_per_h
from everstep.brain.economics.ledger import account
from everstep.brain.lifecycle import orders
from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd
from everstep.model.events import CheckpointSaved, InstanceEnded, ProgressSeen, RanksEnded, Restored
from everstep.model.ids import InstanceId
from everstep.model.job import JobState
from everstep.model.ledger import Overhead
from everstep.model.offers import Market
from tests.brain.making import fold, running

I1 = InstanceId("i-1")


def told(job: JobState) -> float:
    (machine,) = job.instances.values()
    return float(orders(job, machine)[h.ORDERS_HAZARD_PER_H])


def test_the_hazard_falls_as_the_machine_grows_older_at_each_save() -> None:
    job = running()
    assert told(job) == machine_hazard_per_h(Market.SPOT, 0.0)
    seen = []
    for n, at_h in enumerate((0.1, 0.5, 0.9, 2.0, 5.0, 13.0), 1):
        job = fold(job, [CheckpointSaved(I1, 1, 100 * n)], at_h * 3600.0)
        seen.append(told(job))
    assert seen == [machine_hazard_per_h(Market.SPOT, age_h) for age_h in (0.1, 0.5, 0.9, 2.0, 5.0, 13.0)]
    assert seen[-1] < 0.1 * seen[0]
    assert seen[1] == seen[2], "not a new order at every save"


def lost_alone() -> JobState:
    """One machine: steps from 10 to 110 s, three saves of 4 s, taken without a word at 111 s."""
    job = fold(running(), [Restored(I1, 1, None), ProgressSeen(I1, 1, 1, 200, 10.0)], 10.0)
    for step in (30, 60, 90):
        job = fold(job, [CheckpointSaved(I1, 1, step, stall_s=4.0)], 10.0 + step)
    return job


def test_stalls_of_a_machine_that_is_lost_without_a_word_are_overhead() -> None:
    job = fold(
        lost_alone(), [InstanceEnded(I1, 111.0, InstanceEnd.PREEMPTED, last_step=100, last_step_at=110.0)], 111.0
    )
    assert account(job, 200.0).overhead[Overhead.SAVE.value] == pytest.approx(12.0)


def test_what_the_ranks_measured_is_not_counted_on_top_of_what_their_saves_told() -> None:
    figures = RanksEnded(
        I1, 1, "ok", step=100, total=200, first_step_at=10.0, last_step_at=110.0, steps_done=100, stall_s=13.5
    )
    job = fold(lost_alone(), [figures], 111.0)
    assert account(job, 200.0).overhead[Overhead.SAVE.value] == pytest.approx(13.5)
    again = fold(lost_alone(), [CheckpointSaved(I1, 1, 90, stall_s=4.0)], 105.0)
    assert again.attempt is not None
    assert again.attempt.stall_s == pytest.approx(12.0), "a save that is told twice"
