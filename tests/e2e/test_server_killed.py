"""kill -9 of the server on each side of every effect; an init system starts it again, and nobody notices (rule 2)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from everstep.control.faults import POINTS
from everstep.model.errors import EverstepError
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-server-killed")]

#: Which pass of a point is worth dying at, where the first one is not the interesting one (or not the only one).
PASSES = {
    "append.before": (1, 7),
    "append.after": (1, 12),
    "launch.after": (1, 2),
    "orders.before": (1, 4),
    "orders.after": (1, 3),
    "report.before_ack": (1, 5),
    "sweep.before": (1, 3),
    "sweep.after": (1, 3),
    "terminate.before": (1, 2),
}
CASES = [f"{point}:{nth}" for point in POINTS for nth in PASSES.get(point, (1,))]


@pytest.mark.expensive(family="servers and agents lost")
@pytest.mark.parametrize("fault", CASES)
def test_kill_at_a_fault_point_loses_nothing_and_does_nothing_twice(make_rig: Callable[..., Rig], fault: str) -> None:
    # No shared folder: every slot has a disk, so that the effects on disks are among those survived.
    rig = make_rig(config="providers: {local: {shared: false}}\n")
    struck = rig.folder / "struck"
    rig.supervise()
    rig.start(EVERSTEP_FAULT_POINT=fault, EVERSTEP_FAULT_ONCE=str(struck))
    job = _submit_surely(rig)
    rig.wait_step(job, 4)
    rig.wait_step(job, 4, node=1)
    if fault.startswith("snapshot"):
        assert rig.server is not None
        rig.server.send_signal(signal.SIGTERM)  # snapshots are taken when a server stops
        rig.wait_for(struck.exists, "kill at the fault point")
    taken = rig.members(job)[1]
    rig.box("preempt", instance=taken, notice=True, notice_s=1.5)

    detail = rig.wait_phase(job, "succeeded")
    rig.wait_for(struck.exists, "kill at the fault point")
    rig.check_settled()
    assert rig.restarts == 1
    assert [a.cause for a in detail.attempts] == ["preemption", "success"], "a dead server is no reason to start anew"
    rig.check_tokens()
    rig.check_ranks()
    assert {line.node for line in rig.trail("ended")} == {0, 1}
    # The disk went from the lost machine to its replacement, or the surviving one stayed: steps are done once.
    assert detail.step == 50


OPTIONS = "--steps 50 --step-s 0.1 --until-attempt 2"


def _submit_surely(rig: Rig) -> str:
    """A submission that got no answer may have arrived or not; the list of jobs tells."""
    try:
        return rig.stepper(nodes=2, options=OPTIONS)
    except EverstepError:
        rig.client.close()
        known = rig.wait_for(lambda: (rig.client.jobs(all=True),), "list of jobs")[0]
    assert len(known) <= 1
    if known:
        rig.jobs.append(known[0].job)
        return known[0].job
    return rig.stepper(nodes=2, options=OPTIONS)
