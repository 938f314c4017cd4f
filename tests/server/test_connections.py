"""Connections: what they hold while they wait, and that they are still HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from everstep.model.ids import JobId
from everstep.server import serving
from everstep.server.connections import WHEN_GONE, Connection
from everstep.server.listening import bind_anywhere
from everstep.server.serving import serve
from tests.server import fakes
from tests.server.fakes import Rig

AGENT = {"Authorization": f"Bearer {fakes.CREDENTIAL}"}


class Echo:
    """Answers with the body, once ``gate`` is open; keeps nothing but a weak eye on each request's scope."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered: list[str] = []
        self.left: list[str] = []
        self.when_gone: list[Callable[[Any], None]] = []

    def has_seen(self, requests: int) -> bool:
        return len(self.when_gone) >= requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.append(scope["path"])
        self.when_gone.append(scope["extensions"][WHEN_GONE])
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode() + body})
        self.left.append(scope["path"])


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    listener = bind_anywhere("127.0.0.1")
    server = serve(app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.001)
        host, port = listener.getsockname()
        yield server, f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def only(server: uvicorn.Server) -> Connection:
    (connection,) = server.server_state.connections
    assert isinstance(connection, Connection)
    return connection


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)


async def raw(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def asked(path: str, body: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


async def test_many_requests_on_one_connection_large_bodies_included() -> None:
    async with served(Echo()) as (server, url), httpx.AsyncClient(base_url=url) as client:
        for size in (0, 1, 70_000, 3, 1 << 20):
            answer = await client.post("/p", content=b"x" * size)
            assert (answer.status_code, answer.content) == (200, b"/p" + b"x" * size)
        assert len(server.server_state.connections) == 1


async def test_requests_sent_before_the_answer_are_answered_in_turn() -> None:
    app = Echo()
    app.gate.clear()
    async with served(app) as (server, url):
        reader, writer = await raw(url)
        writer.write(asked("/1", b"a") + asked("/2", b"b") + asked("/3", b"c"))
        await until(lambda: app.entered)
        assert app.entered == ["/1"]
        app.gate.set()
        answers = b""
        while b"/3c" not in answers:
            answers += await reader.read(1000)
        assert app.left == ["/1", "/2", "/3"]
        assert answers.index(b"/1a") < answers.index(b"/2b") < answers.index(b"/3c")
        assert only(server).quiet_since is not None, "the last answer is out"
        writer.close()


async def test_a_quiet_connection_holds_nothing_of_its_last_request() -> None:
    scopes: list[weakref.ref[Any]] = []

    class Held(dict[str, Any]):
        """A body that can be watched."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["held"] = held = Held()
        scopes.append(weakref.ref(held))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with served(app) as (server, url), httpx.AsyncClient(base_url=url) as client:
        await client.post("/", content=b"x" * 1000)
        await until(lambda: not server.server_state.tasks)
        connection = only(server)
        gc.collect()
        assert [seen() for seen in scopes] == [None]
        assert [getattr(connection, name) for name in ("headers", "url", "scope")] == [[], b"", None]
        assert connection.timeout_keep_alive_task is None, "one timer for all connections"


async def test_a_connection_on_which_nothing_was_asked_for_long_is_closed_and_no_other() -> None:
    app = Echo()
    async with served(app) as (server, url):
        quiet, writer_1 = await raw(url)
        writer_1.write(asked("/quiet"))
        await quiet.readuntil(b"/quiet")
        app.gate.clear()
        busy, writer_2 = await raw(url)
        writer_2.write(asked("/busy"))
        await until(lambda: "/busy" in app.entered)
        server.config.timeout_keep_alive = 0
        await server.on_tick(0)
        assert await quiet.read() == b"0\r\n\r\n" or quiet.at_eof()
        app.gate.set()
        assert b"200 OK" in await busy.readuntil(b"/busy")
        writer_1.close()
        writer_2.close()


async def test_a_connection_that_was_just_used_stays_open() -> None:
    async with served(Echo()) as (server, url), httpx.AsyncClient(base_url=url) as client:
        await client.get("/1")
        await server.on_tick(0)
        await client.get("/2")
        assert len(server.server_state.connections) == 1
    assert serving.KEEP_ALIVE_S > 60


async def test_who_waits_is_told_that_the_peer_is_gone_unless_it_does_not_care_any_more() -> None:
    app = Echo()
    app.gate.clear()
    async with served(app) as (server, url):
        told: list[str] = []
        for name in ("cares", "does not"):
            _, writer = await raw(url)
            seen = len(app.when_gone)
            writer.write(asked(f"/{name[0]}"))
            await until(functools.partial(app.has_seen, seen + 1))
            app.when_gone[-1](functools.partial(told.append, name))
            if name != "cares":
                app.when_gone[-1](None)
            writer.close()
        await until(lambda: not server.server_state.connections)
        assert told == ["cares"]
        app.gate.set()


async def test_a_connection_that_is_gone_needs_no_collector(rig: Rig) -> None:
    """The server's collector looks for rings every half an hour only."""
    rig.add(fakes.job(JobId("j-1"), fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),)))
    async with served(rig.app) as (server, url):
        gc.collect()
        gc.disable()
        try:
            _, polling = await raw(url)
            agent = f"Host: x\r\nAuthorization: Bearer {fakes.CREDENTIAL}\r\n\r\n".encode()
            polling.write(b"GET /agent/v1/orders?seen=1&wait_s=60 HTTP/1.1\r\n" + agent)
            await until(lambda: rig.desk.polls)
            reader, answered = await raw(url)
            answered.write(asked("/agent/v1/orders"))
            await reader.readuntil(b"}")
            _, silent = await raw(url)
            await until(lambda: len(server.server_state.connections) == 3)
            seen = [weakref.ref(connection) for connection in server.server_state.connections]
            for writer in (polling, answered, silent):
                writer.close()
            await until(lambda: not (server.server_state.connections or server.server_state.tasks))
            await asyncio.sleep(0.01)
            assert [connection() for connection in seen] == [None, None, None]
        finally:
            gc.enable()


async def test_what_waits_behind_a_server_without_the_extension_ends_too(rig: Rig) -> None:
    """Other ASGI servers tell it by a message alone."""
    rig.add(fakes.job(JobId("j-1"), fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),)))
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to be answered")

    headers = [(k.lower().encode(), v.encode()) for k, v in AGENT.items()]
    scope = {
        "type": "http", "method": "GET", "path": "/agent/v1/orders", "query_string": b"seen=1&wait_s=60",
        "headers": headers,
    }  # fmt: skip
    before = asyncio.all_tasks()
    poll = asyncio.create_task(rig.app(scope, receive, send))
    await until(lambda: rig.desk.polls)
    assert rig.context.polls == {poll}
    gone.set()
    await poll
    await until(lambda: asyncio.all_tasks() == before)
    assert not rig.context.polls


async def test_a_waiting_poll_needs_no_task_beside_it_and_holds_no_headers(rig: Rig) -> None:
    rig.add(fakes.job(JobId("j-1"), fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),)))
    async with served(rig.app) as (server, url):
        before = len(asyncio.all_tasks())
        async with httpx.AsyncClient(base_url=url, headers={**AGENT, "x-mark": "f00d"}) as client:
            poll = asyncio.create_task(client.get("/agent/v1/orders?seen=1&wait_s=60"))
            await until(lambda: rig.desk.polls)
            assert rig.context.polls == server.server_state.tasks, "what answers is what waits"
            assert not any("_listen" in repr(task) for task in asyncio.all_tasks())
            held = only(server)
            assert held.headers == []
            assert held.cycle.scope["headers"] == ()
            poll.cancel()
            await until(lambda: not rig.desk.polls)
        await until(lambda: len(asyncio.all_tasks()) == before)
