"""What users ask of a job: to end, to pause, to go back; commands on its machines."""

from __future__ import annotations

import pytest

from everstep.model import events as ev
from everstep.model.codec import to_dict
from everstep.model.ids import JobId
from everstep.model.job import InstancePhase, JobPhase, Saved
from tests.server import fakes
from tests.server.answers import kind, message
from tests.server.fakes import Rig


@pytest.mark.parametrize(
    ("verb", "event"),
    [
        ("cancel", ev.CancelRequested("default", "enough")),
        ("pause", ev.PauseRequested("default", "enough")),
        ("unpause", ev.UnpauseRequested("default")),
        ("retry", ev.RetryRequested("default")),
    ],
)
async def test_steering_asks_the_controller(rig: Rig, verb: str, event: ev.Event) -> None:
    rig.add(fakes.job("j-1"))
    async with rig.client() as client:
        answer = await client.post(
            f"/api/v1/jobs/j-1/{verb}", json={"reason": "enough"} if "reason" in to_dict(event) else {}
        )
        missing = await client.post(f"/api/v1/jobs/nobody/{verb}")
    assert answer.json() == {"job": "j-1", "phase": str(rig.controller.states[JobId("j-1")].phase)}
    assert rig.controller.asked == [("j-1", event)]
    assert missing.status_code == 404


async def test_a_wish_that_does_not_fit_is_a_conflict(rig: Rig) -> None:
    rig.add(fakes.job("j-1", phase=JobPhase.SUCCEEDED))
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs/j-1/cancel")
    assert (answer.status_code, kind(answer), message(answer)) == (409, "conflict", "job j-1 has succeeded")


async def test_a_job_that_has_succeeded_is_not_retried(rig: Rig) -> None:
    rig.add(fakes.job("j-1", phase=JobPhase.SUCCEEDED))
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs/j-1/retry")
    assert (answer.status_code, kind(answer)) == (409, "conflict")
    assert message(answer) == (
        "job j-1 has succeeded, nothing is left to retry; everstep run trains anew, "
        "everstep ckpt restore --step N goes back to one of its checkpoints"
    )
    assert rig.controller.asked == []


async def test_restore_takes_the_newest_visible_checkpoint_of_that_step(rig: Rig) -> None:
    saves = tuple(Saved(step, 1.0) for step in (10, 20, 30))
    first = fakes.attempt(1, "i-1", saves=saves, restored_at=1.0)
    second = fakes.attempt(2, "i-1", saves=(Saved(20, 2.0),), restored_at=2.0, base="1:10")
    rig.add(fakes.job("j-1", fakes.machine("i-1"), attempts=(first, second)))
    async with rig.client() as client:
        shown = (await client.get("/api/v1/jobs/j-1/checkpoints")).json()["checkpoints"]
        good = await client.post("/api/v1/jobs/j-1/restore", json={"step": 20})
        hidden = await client.post("/api/v1/jobs/j-1/restore", json={"step": 30})
        other = await client.post("/api/v1/jobs/j-1/restore", json={"step": 20, "attempt": 1})
        missing = await client.post("/api/v1/jobs/j-1/restore", json={"step": 21})
        bad = [await client.post("/api/v1/jobs/j-1/restore", json=v) for v in ({}, {"step": "2"}, {"step": True})]
    assert [(c["attempt"], c["step"]) for c in shown if c["visible"]] == [(1, 10), (2, 20)]
    assert good.json() == {"base": "2:20"}
    assert rig.controller.asked == [("j-1", ev.RestoreRequested("default", "2:20"))]
    assert (hidden.status_code, kind(hidden)) == (409, "conflict")
    assert message(hidden).endswith("its attempt was superseded; these steps can be restored: 10, 20")
    assert other.status_code == 409
    assert missing.status_code == 404
    assert [b.status_code for b in bad] == [422, 422, 422]


# --- Exec -------------------------------------------------------------------------------------------------------------


async def test_exec_gathers_what_each_machine_says(rig: Rig) -> None:
    rig.add(
        fakes.job(
            "j-1", fakes.machine("i-1"), fakes.machine("i-2", 1), fakes.machine("i-3", 2, phase=InstancePhase.BOOTING)
        )
    )
    async with rig.client() as client:
        exec_id = (await client.post("/api/v1/jobs/j-1/exec", json={"command": "ls"})).json()["exec_id"]
        assert rig.controller.asked == [("j-1", ev.ExecRequested("default", exec_id, "ls"))]
        headers = {"Authorization": f"Bearer {fakes.CREDENTIAL}"}
        await client.post(
            f"/agent/v1/logs?attempt=1&rank=exec-{exec_id}&offset=0", content=b"a file\n", headers=headers
        )
        ended = {"messages": [{"seq": 1, "kind": "exec_ended", "id": exec_id, "rc": 3}]}
        await client.post("/agent/v1/reports", json=ended, headers=headers)
        path = f"/api/v1/jobs/j-1/exec/{exec_id}"
        half = (await client.get(path)).json()
        gone = fakes.machine("i-2", 1, phase=InstancePhase.ENDED)
        rig.add(fakes.job("j-1", fakes.machine("i-1"), gone))
        whole = (await client.get(path)).json()
        logs = (await client.get("/api/v1/jobs/j-1/logs")).json()["parts"]
    assert half["results"][0] == {"instance": "i-1", "rc": 3, "text": "a file\n", "lost": False}
    assert (half["done"], half["results"][1]["rc"]) == (False, None)
    assert (whole["done"], whole["results"][1]["lost"]) == (True, True)
    assert logs == []


async def test_exec_needs_a_machine_a_command_and_an_id_that_exists(rig: Rig) -> None:
    rig.add(fakes.job("j-1"))
    async with rig.client() as client:
        none_up = await client.post("/api/v1/jobs/j-1/exec", json={"command": "ls"})
        empty = await client.post("/api/v1/jobs/j-1/exec", json={"command": " "})
        unknown = [await client.get(f"/api/v1/jobs/j-1/exec/{one}") for one in ("x12", "..%2F..%2Fa", "a.b")]
    assert (none_up.status_code, message(none_up)) == (409, "job j-1 has no machine that is up (it is running)")
    assert empty.status_code == 422
    assert [u.status_code for u in unknown] == [404, 404, 404]
