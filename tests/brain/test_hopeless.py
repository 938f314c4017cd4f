"""When trying on is no use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.brain.hopeless import hopeless
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.gang import Slot
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.job import InstancePhase, InstanceState, JobState
from tests.brain.making import fresh, offer


def stillborn(no: int, slot: int = 0, **changes: object) -> InstanceState:
    machine = InstanceState(
        token=LaunchToken(f"t{no}"),
        launch_no=no,
        slot=Slot(0, slot),
        offer=offer(),
        intended_at=0.0,
        phase=InstancePhase.ENDED,
        instance=InstanceId(f"i-{no}"),
        started_at=1.0,
        ended_at=9.0,
        end=InstanceEnd.OWNER,
        leave_reason="it is silent",
    )
    return replace(machine, **changes)  # type: ignore[arg-type]


def job_with(*machines: InstanceState) -> JobState:
    return replace(fresh(), instances={m.token: m for m in machines})


def test_five_machines_in_a_row_that_never_came_up_are_enough() -> None:
    assert hopeless(job_with(*(stillborn(n) for n in range(1, 5)))) == ""
    text = hopeless(job_with(*(stillborn(n) for n in range(1, 6))))
    assert text == "5 machines in a row never became ready (the last: it is silent); see 'everstep logs'"
    refused = job_with(*(stillborn(n, leave_reason="", refusal="quota_exceeded: no disks left") for n in range(1, 6)))
    assert "(the last: quota_exceeded: no disks left)" in hopeless(refused)


@pytest.mark.parametrize(
    "lucky",
    [
        {"ready_at": 5.0},
        {"end": InstanceEnd.PREEMPTED},
        {"end": InstanceEnd.MAX_LIFE},
        {"notice": NoticeKind.TERMINATE},
    ],
)
def test_a_machine_that_came_up_or_was_taken_begins_the_count_anew(lucky: dict[str, object]) -> None:
    machines = [stillborn(n) for n in range(1, 9)]
    machines[4] = replace(machines[4], **lucky)  # type: ignore[arg-type]
    assert hopeless(job_with(*machines)) == ""


def test_each_place_counts_for_itself_and_an_older_life_of_the_job_not_at_all() -> None:
    spread = [stillborn(n, slot=n % 2) for n in range(1, 9)]
    assert hopeless(job_with(*spread)) == ""
    again = replace(job_with(*(stillborn(n) for n in range(1, 6))), old_launches=5)
    assert hopeless(again) == ""


def test_a_machine_that_is_still_coming_up_is_no_evidence() -> None:
    machines = [stillborn(n) for n in range(1, 5)]
    machines.append(stillborn(5, phase=InstancePhase.BOOTING, ended_at=None, end=None))
    assert hopeless(job_with(*machines)) == ""
