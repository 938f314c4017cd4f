from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from everstep.model import events as ev
from everstep.model.access import Actor, Resource, Verb
from everstep.model.codec import to_dict
from everstep.model.errors import BadRequest, Throttled
from everstep.model.ids import JobId
from everstep.model.job import InstancePhase, JobPhase, Saved
from everstep.model.offers import Market
from everstep.model.task import Task
from everstep.ports import ProviderResource, ResourceKind
from everstep.server import views
from tests.server import fakes
from tests.server.fakes import Rig

TASK = to_dict(Task(name="t", run="true"))
GZIP = b"\x1f\x8b" + b"packed" * 10
ROUTES = [
    ("GET", "/api/v1/health"),
    ("POST", "/api/v1/uploads"),
    ("HEAD", f"/api/v1/uploads/{'0' * 64}"),
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/plan"),
    ("GET", "/api/v1/jobs"),
    ("GET", "/api/v1/jobs/j"),
    ("GET", "/api/v1/jobs/j/events"),
    ("GET", "/api/v1/jobs/j/events?follow=1"),
    ("GET", "/api/v1/jobs/j/why"),
    ("GET", "/api/v1/jobs/j/cost"),
    ("GET", "/api/v1/cost"),
    ("GET", "/api/v1/jobs/j/checkpoints"),
    ("GET", "/api/v1/jobs/j/logs"),
    ("POST", "/api/v1/jobs/j/cancel"),
    ("POST", "/api/v1/jobs/j/pause"),
    ("POST", "/api/v1/jobs/j/unpause"),
    ("POST", "/api/v1/jobs/j/retry"),
    ("POST", "/api/v1/jobs/j/restore"),
    ("POST", "/api/v1/jobs/j/exec"),
    ("GET", "/api/v1/jobs/j/exec/x"),
    ("GET", "/api/v1/jobs/j/outputs"),
    ("GET", "/api/v1/jobs/j/outputs/a/b"),
    ("GET", "/api/v1/offers"),
    ("GET", "/api/v1/unknown"),
    ("POST", "/api/v1/unknown/end"),
    ("POST", "/api/v1/server/stop"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/anything/else"),
]


def kind(answer: Any) -> str:
    return str(answer.json()["error"]["kind"])


def message(answer: Any) -> str:
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", ["", "wrong", fakes.TOKEN[:-1], fakes.TOKEN + "x", "ключ"])
async def test_nothing_is_answered_without_the_token(rig: Rig, method: str, path: str, token: str) -> None:
    async with rig.client(token="") as client:
        headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert method == "HEAD" or kind(answer) == "not_authorized"
    assert fakes.TOKEN not in answer.text


async def test_every_route_of_the_application_is_in_the_table_above(rig: Rig) -> None:
    async with rig.client() as client:
        described = (await client.get("/api/v1/openapi.json")).json()["paths"]
    shapes = {(method.upper(), path.count("/")) for path, methods in described.items() for method in methods}
    assert shapes <= {(method, path.partition("?")[0].count("/")) for method, path in ROUTES}
    assert sum(len(methods) for methods in described.values()) == len(ROUTES) - 3


async def test_health_counts_jobs_by_phase(rig: Rig) -> None:
    rig.add(fakes.job("j-1"))
    rig.add(fakes.job("j-2", phase=JobPhase.FAILED))
    async with rig.client() as client:
        answer = (await client.get("/api/v1/health")).json()
    assert answer["jobs"] == {"running": 1, "ended": 1}
    assert (answer["pid"], answer["version"], answer["handshake"]) == (4242, "0.0-test", [1, 1])


async def test_kept_machines_are_seen_in_the_list(rig: Rig) -> None:
    rig.add(fakes.job("j-1", phase=JobPhase.RELEASING, keep_until=1_900_000_000.0))
    async with rig.client() as client:
        [shown] = (await client.get("/api/v1/jobs")).json()["jobs"]
    assert shown["wait"] == "cancel, or 2030-03-17 17:46:40 UTC: its machines are kept for debugging"


async def test_who_waits_is_told_why_a_provider_offers_nothing(rig: Rig) -> None:
    rig.add(fakes.job("j-1", phase=JobPhase.ACQUIRING, wait="no provider offers anything"))
    rig.controller.troubles = {"gcp": "wrong credentials", "aws": "timeout"}
    async with rig.client() as client:
        [line] = (await client.get("/api/v1/jobs")).json()["jobs"]
        assert line["wait"] == "no provider offers anything (aws: timeout; gcp: wrong credentials)"
        rig.controller.troubles = {}
        [line] = (await client.get("/api/v1/jobs")).json()["jobs"]
        assert line["wait"] == "no provider offers anything"


async def test_of_ended_jobs_only_so_many_are_kept_at_hand_and_all_are_listed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_ENDED_KEPT", 3)
    for n in range(9):
        rig.add(fakes.job(f"j-{n}", phase=JobPhase.SUCCEEDED, ended_at=1000.0))
    async with rig.client() as client:
        for _ in range(2):
            listed = (await client.get("/api/v1/jobs", params={"all": True})).json()["jobs"]
            assert sorted(j["job"] for j in listed) == [f"j-{n}" for n in range(9)]
    assert len(rig.context.views._ended) == 3


# --- Submitting -------------------------------------------------------------------------------------------------------


async def test_submit_hands_the_task_over(rig: Rig) -> None:
    task = dataclasses.replace(Task(name="t", run="true"), secret_names=("KEY",))
    async with rig.client() as client:
        value = {"task": to_dict(task), "secrets": {"KEY": "v"}, "project": "p"}
        answer = await client.post("/api/v1/jobs", json=value)
    assert answer.json() == {"job": "j-00000000"}
    assert rig.controller.submitted == [{"task": task, "secrets": {"KEY": "v"}, "actor": Actor(), "project": "p"}]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({}, "task"),
        ({"task": 1}, "task"),
        ({"task": {"gang": 7, "run": "x"}}, "task"),
        ({"task": {**TASK, "spot": "perhaps"}}, "task"),
        ({"task": {**TASK, "run": ""}}, "run"),
        ({"task": TASK, "secrets": ["a"]}, "secrets"),
        ({"task": TASK, "secrets": {"A": "1"}}, "secrets.A"),
        ({"task": {**TASK, "secret_names": ["B"]}}, "secrets.B"),
        ({"task": TASK, "project": 3}, "project"),
        ({"task": {**TASK, "workdir_digest": "a" * 64}}, "workdir"),
        ({"task": {**TASK, "workdir_digest": "../../etc/passwd"}}, "sha256"),
    ],
)
async def test_a_bad_submission_names_the_key_and_changes_nothing(rig: Rig, value: Any, key: str) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", json=value)
    assert (answer.status_code, kind(answer)) == (422, "bad_input")
    assert [p["key"] for p in answer.json()["error"]["problems"]] == [key]
    assert not rig.controller.submitted


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_bad_input(rig: Rig, body: bytes) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", content=body)
    assert (answer.status_code, kind(answer)) == (422, "bad_input")


async def test_a_submission_that_is_too_large_is_turned_away(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/jobs", content=b" " * (5 << 20))
    assert (answer.status_code, kind(answer)) == (413, "bad_input")


async def test_a_secret_in_the_wrong_place_is_not_echoed(rig: Rig) -> None:
    async with rig.client() as client:
        for value in (
            {"task": {**TASK, "spot": "hunter2"}},
            {"task": {**TASK, "gang": {"groups": "hunter2"}}},
            {"task": TASK, "secrets": {"A": ["hunter2"]}},
            {"task": TASK, "secrets": {"A": "hunter2"}},
        ):
            answer = await client.post("/api/v1/jobs", json=value)
            assert answer.status_code == 422
            assert "hunter2" not in answer.text


async def test_plan_does_nothing(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/api/v1/plan", json={"task": TASK})
    assert answer.json()["choice"]["zone"] == "east-a"
    assert [offer["zone"] for offer in answer.json()["offers"]] == ["east-a"]
    assert not rig.controller.states


# --- Looking ----------------------------------------------------------------------------------------------------------


async def test_jobs_are_listed_newest_first_and_ended_ones_on_request(rig: Rig) -> None:
    rig.add(fakes.job("j-old", submitted_at=1.0))
    rig.add(fakes.job("j-new", submitted_at=2.0))
    rig.add(fakes.job("j-end", submitted_at=3.0, phase=JobPhase.SUCCEEDED))
    async with rig.client() as client:
        live = (await client.get("/api/v1/jobs")).json()["jobs"]
        everything = (await client.get("/api/v1/jobs?all=1")).json()["jobs"]
        first = (await client.get("/api/v1/jobs?all=1&limit=1")).json()["jobs"]
        wrong = await client.get("/api/v1/jobs?limit=lots")
    assert [j["job"] for j in live] == ["j-new", "j-old"]
    assert [j["job"] for j in everything] == ["j-end", "j-new", "j-old"]
    assert [j["job"] for j in first] == ["j-end"]
    assert wrong.status_code == 422
    assert wrong.json()["error"]["problems"][0]["key"] == "limit"


async def test_a_job_is_found_by_id_beginning_or_name_if_only_one_has_it(rig: Rig) -> None:
    rig.add(fakes.job("j-abc1", task=Task(name="one", run="x")))
    rig.add(fakes.job("j-abd2", task=Task(name="two", run="x")))
    rig.add(fakes.job("j-xyz3", task=Task(name="two", run="x")))
    async with rig.client() as client:
        for name, found in (("j-abc1", "j-abc1"), ("j-abc", "j-abc1"), ("one", "j-abc1"), ("j-x", "j-xyz3")):
            assert (await client.get(f"/api/v1/jobs/{name}")).json()["job"] == found
        several = await client.get("/api/v1/jobs/two")
        none = await client.get("/api/v1/jobs/three")
        short = await client.get("/api/v1/jobs/j-")
    assert (several.status_code, kind(several)) == (409, "conflict")
    assert "j-abd2" in message(several)
    assert "j-xyz3" in message(several)
    assert (none.status_code, kind(none), message(none)) == (404, "not_found", "there is no job 'three'")
    assert message(short) == "there is no job 'j-'; the beginning of an id needs 3 characters"


async def test_the_detail_shows_attempts_machines_and_live_progress(rig: Rig) -> None:
    rig.add(
        fakes.job(
            "j-1",
            fakes.machine("i-1"),
            fakes.machine("i-2", 1, phase=InstancePhase.BOOTING),
            attempts=(fakes.attempt(1, "i-1", "i-2", step=3),),
        )
    )
    rig.controller.telemetry["i-1"] = fakes.Telemetry(1234.0, attempt=1, step=9, total=50, metrics={"loss": 0.5})  # type: ignore[index]
    rig.controller.telemetry["i-1"].warnings.append("the disk is full")  # type: ignore[index]
    async with rig.client() as client:
        detail = (await client.get("/api/v1/jobs/j-1")).json()
    assert (detail["step"], detail["total"], detail["metrics"]) == (9, 50, {"loss": 0.5})
    assert detail["warnings"] == ["i-1: the disk is full"]
    assert detail["instances"] == {"alive": 2, "ready": 1}
    assert (detail["market"], detail["price_usd_per_h"]) == ("spot", 2.0)
    assert [m["last_heard"] for m in detail["machines"]] == [1234.0, None]
    assert detail["attempts"][0]["members"] == ["i-1", "i-2"]
    assert detail["task"]["run"] == "python train.py"


async def test_telemetry_of_an_older_attempt_is_not_shown_as_progress(rig: Rig) -> None:
    rig.add(
        fakes.job("j-1", fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1", step=30), fakes.attempt(2, "i-1")))
    )
    rig.controller.telemetry["i-1"] = fakes.Telemetry(1.0, attempt=1, step=99)  # type: ignore[index]
    async with rig.client() as client:
        assert (await client.get("/api/v1/jobs/j-1")).json()["step"] == 30


async def test_the_bill_has_lines_and_sums(rig: Rig) -> None:
    ended = fakes.machine("i-1", phase=InstancePhase.ENDED, ended_at=4600.0)
    rig.add(fakes.job("j-1", ended, phase=JobPhase.SUCCEEDED, ended_at=4600.0))
    async with rig.client() as client:
        bill = (await client.get("/api/v1/jobs/j-1/cost")).json()
        total = (await client.get("/api/v1/cost")).json()
    assert bill["cost_usd"] == pytest.approx(1.0)
    assert [(line["resource"], line["kind"]) for line in bill["lines"]] == [("i-1", "compute")]
    assert total["total_usd"] == pytest.approx(1.0)
    assert total["jobs"][0]["job"] == "j-1"


async def test_offers_are_sorted_by_price_and_filtered(rig: Rig) -> None:
    rig.controller.market = [
        fakes.offer("b", price=2.0),
        fakes.offer("a", price=1.0, available=0),
        fakes.offer("c", price=3.0, market=Market.ON_DEMAND, available=None),
    ]
    async with rig.client() as client:
        usual = (await client.get("/api/v1/offers?accelerator=v100")).json()["offers"]
        everything = (await client.get("/api/v1/offers?all=true")).json()["offers"]
        none = (await client.get("/api/v1/offers?accelerator=H100")).json()["offers"]
    assert [o["zone"] for o in usual] == ["b", "c"]
    assert [o["zone"] for o in everything] == ["a", "b", "c"]
    assert none == []


async def test_trouble_of_a_provider_is_unavailable_and_a_surprise_internal_without_details(rig: Rig) -> None:
    async with rig.client() as client:
        rig.controller.failure = Throttled("slow down")
        throttled = await client.get("/api/v1/offers")
        rig.controller.failure = BadRequest("no such image")
        refused = await client.get("/api/v1/offers")
        rig.controller.failure = RuntimeError("the password is hunter2")
        surprise = await client.get("/api/v1/offers")
    assert (throttled.status_code, kind(throttled), message(throttled)) == (503, "unavailable", "slow down")
    assert refused.status_code == 503
    assert (surprise.status_code, kind(surprise)) == (500, "internal")
    assert "hunter2" not in surprise.text


# --- Steering ---------------------------------------------------------------------------------------------------------


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


async def test_the_seam_decides(rig: Rig) -> None:
    asked: list[tuple[Verb, str]] = []

    def only_reading(actor: Actor, verb: Verb, resource: Resource) -> bool:
        asked.append((verb, resource.job))
        return verb is Verb.READ

    rig.context.authorize = only_reading
    rig.add(fakes.job("j-1"))
    async with rig.client() as client:
        seen = await client.get("/api/v1/jobs/j-1")
        refused = [
            await client.post("/api/v1/jobs/j-1/cancel"),
            await client.post("/api/v1/jobs/j-1/exec", json={"command": "ls"}),
            await client.post("/api/v1/jobs", json={"task": TASK}),
            await client.post("/api/v1/uploads", content=GZIP),
            await client.post("/api/v1/server/stop"),
            await client.get("/api/v1/unknown"),
        ]
    assert seen.status_code == 200
    assert {(r.status_code, kind(r)) for r in refused} == {(403, "not_authorized")}
    assert not rig.controller.asked
    assert {(Verb.CONTROL, "j-1"), (Verb.EXEC, "j-1"), (Verb.SUBMIT, ""), (Verb.ADMIN, "")} <= set(asked)


async def test_a_job_that_may_not_be_read_does_not_exist(rig: Rig) -> None:
    rig.context.authorize = lambda actor, verb, resource: resource.owner != "somebody"
    rig.add(fakes.job("j-1", user="somebody"))
    async with rig.client() as client:
        assert (await client.get("/api/v1/jobs/j-1")).status_code == 404
        assert (await client.get("/api/v1/jobs")).json() == {"jobs": []}
        assert (await client.get("/api/v1/cost")).json() == {"jobs": [], "total_usd": 0}


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


# --- The deployment ---------------------------------------------------------------------------------------------------


async def test_unknown_resources_are_listed_and_ended_by_name_only(rig: Rig) -> None:
    stray = ProviderResource(
        ResourceKind.INSTANCE,
        "i-9",
        rig.controller.deployment,
        None,
        None,
        None,
        "east-a",
        "m1",
        Market.SPOT,
        True,
        5.0,
    )
    rig.controller.strangers = [stray]
    async with rig.client() as client:
        listed = (await client.get("/api/v1/unknown")).json()["resources"]
        wrong = [
            await client.post("/api/v1/unknown/end", json=v) for v in ({}, {"ids": "i-9"}, {"ids": ["i-9", "i-1"]})
        ]
        assert not rig.controller.ended
        await client.post("/api/v1/unknown/end", json={"ids": ["i-9"]})
    assert [(r["id"], r["kind"], r["zone"]) for r in listed] == [("i-9", "instance", "east-a")]
    assert [w.status_code for w in wrong] == [422, 422, 422]
    assert rig.controller.ended == ["i-9"]


async def test_stop_asks_the_owner_of_the_process(rig: Rig) -> None:
    asked: list[str] = []
    rig.context.on_stop = lambda: asked.append("stop")
    async with rig.client() as client:
        assert (await client.post("/api/v1/server/stop")).json() == {"stopping": True}
    assert asked == ["stop"]


# --- Files ------------------------------------------------------------------------------------------------------------


async def test_an_upload_is_kept_under_its_digest(rig: Rig) -> None:
    digest = hashlib.sha256(GZIP).hexdigest()
    async with rig.client() as client:
        before = await client.head(f"/api/v1/uploads/{digest}")
        answer = await client.post(f"/api/v1/uploads?sha256={digest}", content=GZIP)
        after = await client.head(f"/api/v1/uploads/{digest}")
        nonsense = await client.head("/api/v1/uploads/abc")
        submitted = await client.post("/api/v1/jobs", json={"task": {**TASK, "workdir_digest": digest}})
    assert (before.status_code, after.status_code, nonsense.status_code) == (404, 200, 422)
    assert answer.json() == {"digest": digest}
    assert submitted.status_code == 200


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        (f"?sha256={'0' * 64}", GZIP, 422),
        ("?sha256=abc", GZIP, 422),
        ("", b"plain", 422),
        ("", b"", 422),
        ("", GZIP + b"x" * (1 << 20), 413),
    ],
)
async def test_a_bad_upload_leaves_nothing_behind(rig: Rig, query: str, body: bytes, status: int) -> None:
    async with rig.client() as client:
        answer = await client.post(f"/api/v1/uploads{query}", content=body)
    assert (answer.status_code, kind(answer)) == (status, "bad_input")
    assert not list((rig.folder / "files" / "uploads").iterdir())


async def test_outputs_are_listed_and_fetched(rig: Rig) -> None:
    rig.add(fakes.job("j-1", fakes.machine("i-1")))
    async with rig.client() as client:
        headers = {"Authorization": f"Bearer {fakes.CREDENTIAL}"}
        await client.put("/agent/v1/outputs/model/weights.bin", content=b"w" * 10, headers=headers)
        listed = (await client.get("/api/v1/jobs/j-1/outputs")).json()["outputs"]
        fetched = await client.get("/api/v1/jobs/j-1/outputs/node-0/model/weights.bin")
        missing = await client.get("/api/v1/jobs/j-1/outputs/node-0/model")
        outside = await client.get("/api/v1/jobs/j-1/outputs/..%2F..%2Fsecrets")
    assert listed == [{"path": "node-0/model/weights.bin", "bytes": 10}]
    assert fetched.content == b"w" * 10
    assert (missing.status_code, outside.status_code) == (404, 422)
