from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everstep.model import events as ev
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobPhase, JobState
from everstep.server.logs import LogKey
from tests.server import fakes
from tests.server.fakes import Rig

JOB = JobId("j-1")
KEY = LogKey(1, InstanceId("i-1"), "0")
HEADERS = {"Authorization": f"Bearer {fakes.TOKEN}"}


def running(rig: Rig) -> JobState:
    return rig.add(fakes.job(JOB, fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),)))


async def end_job(rig: Rig) -> None:
    state = rig.controller.states[JOB]
    rig.controller.states[JOB] = dataclasses.replace(state, phase=JobPhase.SUCCEEDED, exit_code=0)
    await rig.controller.journal(JOB, ev.GaveUp("last words"))


async def messages(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Server-Sent Events without their comments."""
    fields: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = json.loads(value) if name == "data" else value
        elif fields:
            yield fields
            fields = {}


async def stream(url: str, path: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    async with (
        httpx.AsyncClient(timeout=10.0, headers=HEADERS) as client,
        client.stream("GET", f"{url}/api/v1/jobs/{JOB}/{path}", headers=headers) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [message async for message in messages(answer)]


async def test_events_are_paged_in_order_with_a_text_for_people(rig: Rig) -> None:
    running(rig)
    await rig.controller.journal(JobId("j-before"), ev.InstanceHeard(InstanceId("i-other")))
    await rig.controller.journal(JOB, *(ev.InstanceHeard(InstanceId(f"i-{n}")) for n in range(700)))
    async with rig.client() as client:
        first = (await client.get(f"/api/v1/jobs/{JOB}/events")).json()["events"]
        rest = (await client.get(f"/api/v1/jobs/{JOB}/events?after={first[-1]['version']}")).json()["events"]
        wrong = await client.get(f"/api/v1/jobs/{JOB}/events?after=-1")
        too_large = await client.get(f"/api/v1/jobs/{JOB}/events?after={2**63}")
    assert [e["version"] for e in first + rest] == list(range(1, 701))
    assert first[0].keys() == {"version", "at", "kind", "text", "body"}, "one number, that of `after`"
    assert first[0]["text"] == "machine i-0 is heard again"
    assert (first[0]["kind"], first[0]["body"]) == ("InstanceHeard", {"instance": "i-0"})
    assert wrong.status_code == too_large.status_code == 422


async def test_why_gives_the_newest_decisions_first(rig: Rig) -> None:
    running(rig)
    for n in range(5):
        await rig.controller.journal(JOB, ev.Decided(reasons=(f"because {n}",)), ev.InstanceHeard(InstanceId("i")))
    async with rig.client() as client:
        found = (await client.get(f"/api/v1/jobs/{JOB}/why?limit=2")).json()["decisions"]
    assert [d["reasons"] for d in found] == [["because 4"], ["because 3"]]


async def test_followed_events_arrive_as_they_happen_and_end_with_the_job(rig: Rig) -> None:
    running(rig)
    await rig.controller.journal(JOB, ev.InstanceHeard(InstanceId("i-1")))
    seen: list[dict[str, Any]] = []
    async with (
        rig.served() as url,
        httpx.AsyncClient(timeout=10.0, headers=HEADERS) as client,
        client.stream("GET", f"{url}/api/v1/jobs/{JOB}/events?follow=1") as answer,
    ):
        async for message in messages(answer):
            seen.append(message)
            if len(seen) == 1:
                await rig.controller.journal(JobId("j-other"), ev.InstanceHeard(InstanceId("not ours")))
                await rig.controller.journal(JOB, ev.SetupFailed(InstanceId("i-1"), 3))
            if len(seen) == 2:
                await end_job(rig)
    assert [m.get("id") for m in seen] == ["1", "2", "3", None]
    assert [m["data"]["kind"] for m in seen[:3]] == ["InstanceHeard", "SetupFailed", "GaveUp"]
    assert (seen[3]["event"], seen[3]["data"]) == ("end", {"phase": "succeeded", "exit_code": 0})


async def test_a_follower_that_comes_back_gets_what_it_missed_and_nothing_twice(rig: Rig) -> None:
    running(rig)
    await rig.controller.journal(JOB, *(ev.InstanceHeard(InstanceId(f"i-{n}")) for n in range(4)))
    await end_job(rig)
    async with rig.served() as url:
        seen = await stream(url, "events?follow=1", {"Last-Event-ID": "3"})
        async with httpx.AsyncClient(headers=HEADERS) as client:
            bad = await client.get(f"{url}/api/v1/jobs/{JOB}/events?follow=1", headers={"Last-Event-ID": "x"})
    assert [m["id"] for m in seen if "id" in m] == ["4", "5"]
    assert bad.status_code == 422


async def test_the_journal_is_followed_only_while_somebody_listens(rig: Rig) -> None:
    running(rig)
    async with (
        rig.served() as url,
        httpx.AsyncClient(timeout=10.0, headers=HEADERS) as client,
    ):
        async with client.stream("GET", f"{url}/api/v1/jobs/{JOB}/events?follow=1") as answer:
            await anext(answer.aiter_lines())
            assert [t for t in asyncio.all_tasks() if t.get_name() == "journal tail"]
        while [t for t in asyncio.all_tasks() if t.get_name() == "journal tail"]:
            await asyncio.sleep(0.01)
        assert rig.context.logs.bells.listeners == 0


async def test_two_hundred_followers_all_hear_and_leave_nothing_behind(rig: Rig) -> None:
    running(rig)
    async with rig.served() as url:
        before = len(asyncio.all_tasks())
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=30.0, headers=HEADERS, limits=limits) as client:
            ready = asyncio.Semaphore(0)

            async def follow() -> list[str]:
                async with client.stream("GET", f"{url}/api/v1/jobs/{JOB}/events?follow=1") as answer:
                    ready.release()
                    return [m["data"]["kind"] async for m in messages(answer) if "id" in m]

            followers = [asyncio.create_task(follow()) for _ in range(200)]
            for _ in followers:
                await ready.acquire()
            await rig.controller.journal(JOB, ev.InstanceHeard(InstanceId("i-1")))
            await end_job(rig)
            heard = await asyncio.gather(*followers)
        assert heard == [["InstanceHeard", "GaveUp"]] * 200
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_holds_up_nobody_and_costs_one_page(rig: Rig) -> None:
    running(rig)
    many = [ev.SetupFailed(InstanceId("i-1"), 1, "x" * 20_000) for _ in range(1000)]
    await rig.controller.journal(JOB, *many)
    reads = 0
    read = rig.context.store.read

    async def counted(**arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(**arguments)

    rig.context.store.read = counted  # type: ignore[method-assign]
    async with rig.served() as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        request = (
            f"GET /api/v1/jobs/{JOB}/events?follow=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fakes.TOKEN}\r\n\r\n"
        )
        writer.write(request.encode())
        async with httpx.AsyncClient(headers=HEADERS) as client:
            while reads == 0:
                await asyncio.sleep(0.01)
            answers = [await client.get(f"{url}/api/v1/health") for _ in range(20)]
        assert {a.status_code for a in answers} == {200}
        assert reads == 1  # the second page is not even read before the first one is taken
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# --- Logs -------------------------------------------------------------------------------------------------------------


async def test_logs_are_joined_across_attempts_with_set_up_first(rig: Rig) -> None:
    two = (fakes.attempt(1, "i-1", "i-2"), fakes.attempt(2, "i-2", "i-1"))
    rig.add(fakes.job(JOB, fakes.machine("i-1"), fakes.machine("i-2", 1), attempts=two))
    logs = rig.context.logs
    for attempt, instance, rank, text in [
        (2, "i-1", "1", "second on 1"),
        (1, "i-2", "10", "ten"),
        (1, "i-2", "2", "two"),
        (0, "i-1", "setup", "set up"),
        (2, "i-2", "0", "second on 0"),
        (1, "i-1", "exec-abc", "not shown"),
    ]:
        logs.append(JOB, LogKey(attempt, InstanceId(instance), rank), 0, text.encode())
    async with rig.client() as client:
        everything = (await client.get(f"/api/v1/jobs/{JOB}/logs")).json()["parts"]
        one = (await client.get(f"/api/v1/jobs/{JOB}/logs?attempt=2&rank=1")).json()["parts"]
        node = (await client.get(f"/api/v1/jobs/{JOB}/logs?node=1&offset=-3")).json()["parts"]
        command = (await client.get(f"/api/v1/jobs/{JOB}/logs?rank=exec-abc")).json()["parts"]
    assert [p["text"] for p in everything] == ["set up", "two", "ten", "second on 0", "second on 1"]
    assert [(p["text"], p["node"]) for p in one] == [("second on 1", 1)]
    assert [p["text"] for p in node] == ["two", "ten", "n 1"]
    assert [p["text"] for p in command] == ["not shown"]


async def test_a_log_larger_than_an_answer_is_read_in_several(rig: Rig) -> None:
    running(rig)
    line = b"0123456789abcde\n"
    for n in range(6):
        rig.context.logs.append(JOB, KEY, n * (1 << 20), line * (1 << 16))
    got, cursor, answers = "", "", 0
    async with rig.client() as client:
        while True:
            answer = (await client.get(f"/api/v1/jobs/{JOB}/logs", params={"cursor": cursor})).json()
            answers += 1
            got += "".join(part["text"] for part in answer["parts"])
            cursor = answer["cursor"]
            if not answer["more"]:
                break
        bad = await client.get(f"/api/v1/jobs/{JOB}/logs?cursor=nonsense")
    assert got == line.decode() * (6 << 16)
    assert answers > 1
    assert bad.status_code == 422


async def test_a_followed_log_goes_on_where_the_follower_was(rig: Rig) -> None:
    running(rig)
    rig.context.logs.append(JOB, KEY, 0, b"one\n")
    async with rig.served() as url:
        async with (
            httpx.AsyncClient(timeout=10.0, headers=HEADERS) as client,
            client.stream("GET", f"{url}/api/v1/jobs/{JOB}/logs?follow=1") as answer,
        ):
            feed = messages(answer)
            first = await anext(feed)
            rig.context.logs.append(JOB, KEY, 4, "zwölf\n".encode()[:3])
            second = await anext(feed)
        rig.context.logs.append(JOB, KEY, 7, "zwölf\n".encode()[3:])
        await end_job(rig)
        rest = await stream(url, "logs?follow=1", {"Last-Event-ID": second["id"]})
    assert (first["data"]["text"], second["data"]["text"]) == ("one\n", "zw")
    assert [m["data"]["text"] for m in rest if "id" in m] == ["ölf\n"]
    assert rest[0]["data"]["eof"] is True
    assert rest[-1]["event"] == "end"


# --- Agents -----------------------------------------------------------------------------------------------------------

AGENT = {"Authorization": f"Bearer {fakes.CREDENTIAL}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/agent/v1/join"),
        ("POST", "/agent/v1/reports"),
        ("GET", "/agent/v1/orders?seen=0&wait_s=0"),
        ("POST", "/agent/v1/logs?attempt=1&rank=0&offset=0"),
        ("GET", f"/agent/v1/workdir/{'0' * 64}"),
        ("PUT", "/agent/v1/outputs/a"),
    ],
)
async def test_agents_need_their_credential_and_the_users_token_is_none(rig: Rig, method: str, path: str) -> None:
    running(rig)
    async with rig.client(token="") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, HEADERS):
            answer = await client.request(
                method, path, headers=headers, json={"handshake": [1, 1]} if method == "POST" else None
            )
            assert answer.status_code == 401
            assert isinstance(answer.json()["error"], str)


async def test_join_answers_as_the_handshake_says(rig: Rig) -> None:
    async with rig.client(token="join-token") as client:
        good = await client.post("/agent/v1/join", json={"handshake": [1, 1]})
        other = await client.post("/agent/v1/join", json={"handshake": [9, 9]})
        nonsense = await client.post("/agent/v1/join", content=b"{")
        large = await client.post("/agent/v1/join", content=b" " * (1 << 20))
    assert good.json()["credential"] == fakes.CREDENTIAL
    assert (other.status_code, other.json()["error"]) == (426, "the agent speaks handshake 9 to 9, this server 1 to 1")
    assert (nonsense.status_code, large.status_code) == (422, 413)


async def test_reports_are_handed_over_and_acknowledged(rig: Rig) -> None:
    running(rig)
    batch = [{"seq": 1, "kind": "heartbeat"}, {"seq": 2, "kind": "ready"}]
    async with rig.client(token=fakes.CREDENTIAL) as client:
        good = await client.post("/agent/v1/reports", json={"messages": batch})
        bad = [await client.post("/agent/v1/reports", json=v) for v in ({}, {"messages": 1}, {"messages": [1]}, [])]
        large = await client.post("/agent/v1/reports", content=b" " * ((4 << 20) + 1))
        rig.desk.failure = RuntimeError("hunter2")
        surprise = await client.post("/agent/v1/reports", json={"messages": batch})
    assert good.json() == {"ack": 2, "orders_version": 1}
    assert rig.desk.reports == [batch]
    assert [b.status_code for b in bad] == [422] * 4
    assert large.status_code == 413
    assert surprise.status_code == 500
    assert "hunter2" not in surprise.text


async def test_orders_wait_until_they_change_or_time_is_up(rig: Rig) -> None:
    running(rig)
    async with rig.served() as url, httpx.AsyncClient(base_url=url, headers=AGENT) as client:
        at_once = await client.get("/agent/v1/orders?seen=0&wait_s=30")
        nothing = await client.get("/agent/v1/orders?seen=1&wait_s=0.05")
        waiting = asyncio.create_task(client.get("/agent/v1/orders?seen=1&wait_s=30"))
        while rig.desk.polls == 0:
            await asyncio.sleep(0.005)
        rig.desk.version = 2
        rig.desk.changed.set()
        bad = [
            await client.get(f"/agent/v1/orders?{q}") for q in ("", "seen=x", "seen=1&wait_s=-1", "seen=1&wait_s=nan")
        ]
        assert (await waiting).json()["version"] == 2
    assert at_once.json() == {"version": 1, "phase": "hold"}
    assert (nothing.status_code, nothing.content) == (204, b"")
    assert [b.status_code for b in bad] == [422] * 4


async def test_long_polls_whose_agents_vanish_leave_no_task(rig: Rig) -> None:
    running(rig)
    async with rig.served() as url:
        before = len(asyncio.all_tasks())
        host, port = url.removeprefix("http://").split(":")
        target = "/agent/v1/orders?seen=1&wait_s=60"
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fakes.CREDENTIAL}\r\n\r\n"
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(request.encode())
            writers.append(writer)
        while rig.desk.polls < 200:
            await asyncio.sleep(0.01)
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        while rig.desk.polls or len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)
        assert not rig.context.polls


async def test_a_stopping_server_lets_long_polls_and_followers_go(rig: Rig) -> None:
    running(rig)
    async with rig.served() as url, httpx.AsyncClient(base_url=url, timeout=10.0) as client:
        poll = asyncio.create_task(client.get("/agent/v1/orders?seen=1&wait_s=60", headers=AGENT))
        follow = asyncio.create_task(client.get(f"/api/v1/jobs/{JOB}/logs?follow=1", headers=HEADERS))
        while rig.desk.polls == 0 or rig.context.logs.bells.listeners == 0:
            await asyncio.sleep(0.005)
        rig.context.close()
        assert (await poll).status_code == 503
        assert "event: end" not in (await follow).text  # the job has not ended: the follower comes back
        late = [
            await client.get("/agent/v1/orders?seen=1", headers=AGENT),
            await client.get(f"/api/v1/jobs/{JOB}/logs?follow=1", headers=HEADERS),
        ]
        assert [a.status_code for a in late] == [503, 503]


async def test_logs_are_taken_with_offsets(rig: Rig) -> None:
    running(rig)
    async with rig.client(token=fakes.CREDENTIAL) as client:

        async def send(offset: int, data: bytes, rank: str = "0") -> Any:
            return (await client.post(f"/agent/v1/logs?attempt=1&rank={rank}&offset={offset}", content=data)).json()

        assert await send(0, b"hello ") == {"offset": 6}
        assert await send(9, b"gap") == {"offset": 6}
        assert await send(3, b"lo world") == {"offset": 11}
        assert await send(0, b"hello") == {"offset": 11}
        assert "error" in await send(0, b"x", rank="../../x")
        large = await client.post("/agent/v1/logs?attempt=1&rank=0&offset=11", content=b"x" * ((4 << 20) + 1))
        stranger = await client.post(
            "/agent/v1/logs?attempt=1&rank=0&offset=0",
            content=b"x",
            headers={"Authorization": "Bearer credential-of-i-7"},
        )
    assert rig.context.logs.read(JOB, KEY, 0, 100) == (0, b"hello world")
    assert (large.status_code, stranger.status_code) == (413, 404)


async def test_an_agent_gets_the_archives_of_its_own_job_only(rig: Rig) -> None:
    body = b"\x1f\x8b" + b"mine" * 100_000

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    mine = await rig.context.files.store_upload(pieces(), digest="")
    body = b"\x1f\x8bother"
    other = await rig.context.files.store_upload(pieces(), digest="")
    state = running(rig)
    rig.add(dataclasses.replace(state, task=dataclasses.replace(state.task, workdir_digest=mine)))
    async with rig.client(token=fakes.CREDENTIAL) as client:
        answer = await client.get(f"/agent/v1/workdir/{mine}")
        refused = [await client.get(f"/agent/v1/workdir/{name}") for name in (other, "", "..%2Fx")]
    assert answer.content == b"\x1f\x8b" + b"mine" * 100_000
    assert [r.status_code for r in refused] == [404] * 3


@pytest.mark.parametrize("path", ["..%2F..%2Ftoken", "a/..%2f..%2f..%2fx", "%00", "/etc/passwd", "a%5Cb", ""])
async def test_outputs_cannot_leave_their_folder(rig: Rig, path: str) -> None:
    running(rig)
    async with rig.client(token=fakes.CREDENTIAL) as client:
        answer = await client.put(f"/agent/v1/outputs/{path}", content=b"x")
    inside = {p.relative_to(rig.folder).as_posix() for p in rig.folder.rglob("*") if p.is_file()}
    assert all(p.startswith("files/outputs/j-1/node-0/") for p in inside)
    assert answer.status_code == 422 or inside


async def test_an_output_is_kept_whole_or_not_at_all(rig: Rig) -> None:
    running(rig)
    async with rig.client(token=fakes.CREDENTIAL) as client:
        wrong = await client.put("/agent/v1/outputs/w", content=b"x", headers={"X-Everstep-Sha256": "0" * 64})
    assert wrong.status_code == 422
    assert rig.context.files.outputs(JOB) == []


async def test_what_a_machine_sends_is_of_the_job_that_its_credential_is_for_whatever_it_does_now(rig: Rig) -> None:
    """A machine that one has at home works for one job after the other, under one name."""
    later = JobId("j-0")  # found first by the name of the machine
    rig.add(fakes.job(later, fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),)))
    running(rig)
    async with rig.client(token=fakes.CREDENTIAL) as client:
        assert (await client.put("/agent/v1/outputs/model.pt", content=b"x")).status_code == 200
        assert (await client.post("/agent/v1/logs?attempt=1&rank=0&offset=0", content=b"bye")).status_code == 200
        assert (await client.get("/agent/v1/orders?seen=0&wait_s=0")).status_code == 401
    assert [f.path for f in rig.context.files.outputs(JOB)] == ["node-0/model.pt"]
    assert rig.context.files.outputs(later) == []
    assert rig.context.logs.read(JOB, KEY, 0, 9) == (0, b"bye")
    assert rig.context.logs.read(later, KEY, 0, 9) == (0, b"")
