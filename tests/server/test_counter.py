"""Reports at the counter: the same answers as by ASGI, and everything unusual goes the usual way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from everstep.model.errors import BadInput, NotAuthorized, Problem
from everstep.model.ids import InstanceId, JobId
from everstep.server.agents import REPORT_BYTES, AgentApp, Reports
from everstep.server.counter import begun
from tests.server import fakes
from tests.server.fakes import Rig
from tests.server.test_connections import only, raw, served, until

GOOD = f"Bearer {fakes.CREDENTIAL}"
TOLD = {"seq": 3, "kind": "heartbeat"}
BODY = json.dumps({"messages": [TOLD]}).encode()


def post(body: bytes = BODY, *, authorization: str = GOOD, more: str = "", version: str = "1.1") -> bytes:
    head = f"POST /agent/v1/reports HTTP/{version}\r\nHost: x\r\nAuthorization: {authorization}\r\n{more}"
    return head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def in_chunks(body: bytes = BODY, *, authorization: str = GOOD) -> bytes:
    """The same request in a form that is no business of the counter's."""
    head = f"POST /agent/v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n"
    piece = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % piece


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line, headers but for the date, body."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).strip().split(b"\r\n")
    headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
    body = await reader.readexactly(int(headers[b"content-length"]))
    assert headers.pop(b"date")
    return status, headers, body


@pytest.fixture
def by_asgi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the requests that went the usual way."""
    seen: list[str] = []
    usual = AgentApp.__call__

    async def watched(self: AgentApp, scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await usual(self, scope, receive, send)

    monkeypatch.setattr(AgentApp, "__call__", watched)
    return seen


class Slow(fakes.FakeDesk):
    """Answers once its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.answered = 0

    async def report(
        self, instance: InstanceId, messages: Sequence[Mapping[str, Any]], *, given_for: JobId | None = None
    ) -> dict[str, Any]:
        told = await super().report(instance, messages, given_for=given_for)
        await self.gate.wait()
        self.answered += 1
        return told


async def test_a_report_is_answered_at_the_counter_without_a_task(rig: Rig, by_asgi: list[str]) -> None:
    async with served(rig.app) as (server, url):
        reader, writer = await raw(url)
        for _ in range(3):
            writer.write(post())
            status, headers, body = await answer(reader)
            assert status == b"HTTP/1.1 200 OK"
            assert headers == {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
            assert json.loads(body) == {"ack": 3, "orders_version": 1}
        assert rig.desk.reports == [[TOLD]] * 3
        assert by_asgi == []
        assert only(server).quiet_since is not None
        assert (only(server).headers, only(server).url) == ([], b"")
        writer.close()


@pytest.mark.parametrize(
    ("body", "authorization"),
    [
        (BODY, GOOD),
        (BODY, "Bearer stranger"),
        (BODY, "Basic abc"),
        (BODY, "Bearer "),
        (b"{", GOOD),
        (b"[]", GOOD),
        (b"", GOOD),
        (b'{"messages": 1}', GOOD),
        (b'{"messages": [1]}', GOOD),
        (b'{"messages": ["\xff"]}', GOOD),
        ("\ufeff".encode() + BODY, GOOD),
        (BODY.decode().encode("utf-16"), GOOD),
        (b'{"messages": [{"kind": "\\ud800"}]}', GOOD),
        (b"[" * 60_000, GOOD),
    ],
)
async def test_the_answer_is_the_one_that_asgi_gives(
    rig: Rig, by_asgi: list[str], body: bytes, authorization: str
) -> None:
    found = []
    async with served(rig.app) as (_, url):
        for request in (post(body, authorization=authorization), in_chunks(body, authorization=authorization)):
            reader, writer = await raw(url)
            writer.write(request)
            found.append(await answer(reader))
            if b"401" in found[-1][0]:
                assert await reader.read() == b"", "closed"
            writer.close()
    assert found[0] == found[1]
    assert len(by_asgi) == 1
    assert len(rig.desk.reports) in (0, 2)


@pytest.mark.parametrize(
    "error",
    [
        NotAuthorized("gone"),
        BadInput(Problem("report", "kind", "unknown")),
        RuntimeError("secret"),
        OSError(28, "full"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_what_the_desk_refuses_is_refused_as_by_asgi(rig: Rig, error: Exception, late: bool) -> None:
    async def refuse(*given: Any, **more: Any) -> dict[str, Any]:
        if late:
            await asyncio.sleep(0.001)
        raise error

    rig.desk.report = refuse  # type: ignore[method-assign]
    found = []
    async with served(rig.app) as (_, url):
        for request in (post(), in_chunks()):
            reader, writer = await raw(url)
            writer.write(request)
            found.append(await answer(reader))
            writer.close()
    assert found[0] == found[1]
    assert b"200" not in found[0][0]
    assert b"secret" not in found[0][2]


async def test_everything_unusual_goes_the_usual_way(rig: Rig, by_asgi: list[str]) -> None:
    large = json.dumps({"messages": [TOLD, {"kind": "x" * Reports.most_bytes}]}).encode()
    waits = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with served(rig.app) as (_, url):
        for n, request in enumerate(
            (in_chunks(), post(large), post(version="1.0"), post(more="Expect: 100-continue\r\n")), 1
        ):
            reader, writer = await raw(url)
            writer.write(request)
            if n == 4:
                assert await reader.readexactly(len(waits)) == waits
            status, _, body = await answer(reader)
            assert (status, json.loads(body)["ack"]) == (b"HTTP/1.1 200 OK", 3)
            assert len(by_asgi) == n
            writer.close()
        reader, writer = await raw(url)
        writer.write(b"POST /agent/v1/reports HTTP/1.1\r\nContent-Length: %d\r\n" % (REPORT_BYTES + 1))
        writer.write(f"Authorization: {GOOD}\r\n\r\n".encode())
        assert b"413" in (await answer(reader))[0]
        writer.close()


async def test_a_length_and_chunks_at_once_are_no_request(rig: Rig, by_asgi: list[str]) -> None:
    async with served(rig.app) as (_, url):
        reader, writer = await raw(url)
        writer.write(in_chunks().replace(b"Host: x\r\n", b"Host: x\r\nContent-Length: 3\r\n"))
        assert b"400" in await reader.readline()
        writer.close()
    assert (rig.desk.reports, by_asgi) == ([], [])


async def test_requests_behind_one_that_waits_are_answered_in_turn(rig: Rig) -> None:
    rig.context.desk = desk = Slow()
    async with served(rig.app) as (server, url):
        reader, writer = await raw(url)
        bodies = [json.dumps({"messages": [{"seq": n}]}).encode() for n in (1, 2, 3, 4)]
        writer.write(b"".join(post(body) for body in bodies))
        await until(lambda: desk.reports)
        assert [m["seq"] for (m,) in desk.reports] == [1], "one at a time"
        assert only(server).quiet_since is None
        desk.gate.set()
        assert [json.loads((await answer(reader))[2])["ack"] for _ in bodies] == [1, 2, 3, 4]
        writer.close()


async def test_nothing_is_taken_from_behind_a_request_that_closes_the_connection(rig: Rig) -> None:
    async with served(rig.app) as (_, url):
        for first in (post(authorization="Bearer stranger"), post(more="Connection: close\r\n")):
            reader, writer = await raw(url)
            before = len(rig.desk.reports)
            writer.write(first + post() + post())
            await answer(reader)
            assert await reader.read() == b""
            assert len(rig.desk.reports) - before == (0 if b"stranger" in first else 1)
            writer.close()


async def test_each_credential_is_checked_however_often_the_connection_was_believed(rig: Rig) -> None:
    async with served(rig.app) as (_, url):
        reader, writer = await raw(url)
        seen = []
        for name in ("credential-of-i-1", "credential-of-i-1", "credential-of-i-2", "stranger"):
            writer.write(post(authorization=f"Bearer {name}"))
            seen.append((await answer(reader))[0][9:12])
        assert seen == [b"200", b"200", b"200", b"401"]
        writer.close()


async def test_who_goes_away_while_its_report_waits_is_heard_all_the_same(rig: Rig) -> None:
    rig.context.desk = desk = Slow()
    async with served(rig.app) as (server, url):
        _, writer = await raw(url)
        writer.write(post())
        await until(lambda: desk.reports)
        writer.close()
        await until(lambda: not server.server_state.connections)
        desk.gate.set()
        await until(lambda: desk.answered == 1 and not server.server_state.tasks)


async def test_a_server_that_stops_answers_what_it_has_taken(rig: Rig) -> None:
    rig.context.desk = desk = Slow()
    async with served(rig.app) as (server, url):
        reader, writer = await raw(url)
        writer.write(post())
        await until(lambda: desk.reports)
        server.should_exit = True
        await until(lambda: not only(server).cycle.keep_alive)
        desk.gate.set()
        status, headers, _ = await answer(reader)
        assert (status, headers[b"connection"]) == (b"HTTP/1.1 200 OK", b"close")
        assert await reader.read() == b""
        writer.close()


async def test_who_does_not_read_answers_is_not_read_from(rig: Rig) -> None:
    async with served(rig.app) as (server, url):
        _, writer = await raw(url)
        await until(lambda: server.server_state.connections)
        connection = only(server)
        many = post() * 500

        async def flood() -> None:
            while True:
                writer.write(many)
                await writer.drain()

        flooding = asyncio.create_task(flood())
        await until(lambda: connection.flow.write_paused and connection.flow.read_paused)
        taken = len(rig.desk.reports)
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert len(rig.desk.reports) == taken
        assert connection.transport.get_write_buffer_size() < 1 << 20
        flooding.cancel()
        writer.transport.abort()


async def test_a_coroutine_is_begun_at_once_and_only_the_rest_of_it_is_awaited() -> None:
    steps: list[str] = []

    async def work(pauses: int, error: Exception | None = None) -> str:
        steps.append("begun")
        for _ in range(pauses):
            await asyncio.sleep(0.001)
        if error is not None:
            raise error
        return "done"

    assert begun(work(0)) == "done"
    with pytest.raises(ValueError, match="at once"):
        begun(work(0, ValueError("at once")))
    steps.clear()
    rest = begun(work(3))
    assert steps == ["begun"]
    assert not isinstance(rest, str)
    assert await rest == "done"
    late = begun(work(1, ValueError("late")))
    assert not isinstance(late, str)
    with pytest.raises(ValueError, match="late"):
        await late


async def test_the_rest_of_a_coroutine_can_be_cancelled() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    rest = begun(work())
    assert rest is not None
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
