"""A gang that went on-demand in a drought is back on spot when it ends, and trains the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-moving")]

STEPS = 400
_DROUGHT = """\
trace_hour_s: 3600
notice_s: 4
boot_s: 0
stop_grace_s: 3
billing: {granularity_s: 1, minimum_s: 60}
machines:
  small: {cpus: 4, memory_gib: 8, prices: {on_demand: 3.6, spot: 1.2}}
zones:
  east-a: {region: east, spot: {trace: east-a.json}, on_demand: {capacity: 4}}
"""


@pytest.mark.expensive(family="training through losses")
def test_a_gang_returns_to_spot_when_a_drought_ends_with_the_weights_of_an_undisturbed_run(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(cloud=_DROUGHT)
    # One tick a second, from the first launch on.
    available = [0] * 12 + [2] * 600
    trace = {"metadata": {"gap_seconds": 1, "zone": "east-a"}, "data": available, "prices": [1.2] * len(available)}
    (rig.folder / "east-a.json").write_text(json.dumps(trace))
    rig.start()
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1", policy="incl")
    detail = rig.wait_phase(job, "succeeded")

    assert [m.market for m in detail.machines] == ["on_demand"] * 2 + ["spot"] * 2
    assert [a.cause for a in detail.attempts] == ["owner", "success"]
    last_save = max(e.body["step"] for e in rig.events(job, "CheckpointSaved") if e.body["attempt"] == 1)
    assert detail.attempts[1].base == f"1:{last_save}"
    steps = [x.step for x in rig.trail("step") if x.node == 0]
    assert steps == list(range(1, STEPS + 1)), "no step was lost or done twice"

    # The gang trained on until both machines of the move were ready, and only then were the old ones ended.
    # A machine is ready once more when its ranks have taken the port.
    ready = {e.body["instance"]: e.at for e in reversed(rig.events(job, "InstanceReady"))}
    members = [a.members for a in detail.attempts]
    moved_at = max(ready[i] for i in members[1])
    told = {e.body["instance"]: e.at for e in rig.events(job, "TerminateIntended")}
    assert min(told[i] for i in members[0]) >= moved_at
    assert max(x.t for x in rig.trail("step") if x.attempt == 1) > moved_at - 2.0

    decisions = [d for d in rig.client.why(job) if any("moves to" in r for r in d.reasons)]
    assert len(decisions) == 1
    verdicts = {c.what.rsplit("/", 1)[-1]: c.verdict for c in decisions[0].candidates}
    assert verdicts["spot"].startswith("chosen")
    assert verdicts["on_demand"].startswith("possible")
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    rig.check_settled()
    rig.check_tokens()
