"""What users see of jobs, of what they cost and of what is on offer."""

from __future__ import annotations

import pytest

from everstep.model.errors import BadRequest, Throttled
from everstep.model.job import InstancePhase, JobPhase
from everstep.model.offers import Market
from everstep.model.task import Task
from everstep.server import views
from tests.server import fakes
from tests.server.answers import kind, message
from tests.server.fakes import Rig


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
