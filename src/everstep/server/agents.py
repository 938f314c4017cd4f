"""What agents call (``PATH_*`` of the handshake), as a bare ASGI application.

Thousands of messages a second go through here on one core: no routing table, no models, no dependency injection, and
for reports not even ASGI where our own connections bring them (``Reports``). Every request is checked against its
credential before its body is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from everstep.model import handshake as hs
from everstep.model.errors import BadInput, EverstepError, NotAuthorized, NotFound, Problem
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import InstanceState, JobState
from everstep.server.bucketfiles import Listed
from everstep.server.buckets import MOST_KEYS, OBJECT_BYTES
from everstep.server.connections import WHEN_GONE
from everstep.server.context import Context
from everstep.server.counter import CLOSING, Reply, begun
from everstep.server.logs import LogKey
from everstep.server.problems import NoToken, Refused, Stopping, TooLarge, describe

log = logging.getLogger(__name__)

PREFIX = "/agent/v1/"
REPORT_BYTES = 4 << 20
LOG_BYTES = 4 << 20
JOIN_BYTES = 64 << 10
LONGEST_WAIT_S = 60.0
_SEND_BYTES = 1 << 18
_JSON = (b"content-type", b"application/json")
_NOT_BY_URL = {"by_url": False}
_NO_LIST = Problem("", "messages", "expected a list of objects")
_parse = json.JSONDecoder().decode
_text_of = json.JSONEncoder(separators=(",", ":")).encode


class Disconnected(Exception):
    """The peer went away; nobody is there to answer."""


class AgentApp:
    """The agents' side of the server."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.counter = Reports(context)
        self._exact: dict[tuple[str, str], Callable[[Scope, Receive], Awaitable[Reply]]] = {
            ("POST", hs.PATH_JOIN): self._join,
            ("POST", hs.PATH_REPORTS): self._reports,
            ("GET", hs.PATH_ORDERS): self._orders,
            ("POST", hs.PATH_LOGS): self._logs,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        path: str = scope["path"]
        method: str = scope["method"]
        try:
            handler = self._exact.get((method, path))
            if handler is not None:
                status, body = await handler(scope, receive)
            elif method == "POST" and path.startswith(hs.PATH_OBJECTS):
                status, body = await self._objects(scope, receive)
            elif method == "POST" and path.startswith(hs.PATH_FILES):
                status, body = await self._files(scope, receive)
            elif method == "PUT" and path.startswith(hs.PATH_OUTPUTS):
                status, body = await self._output(scope, receive)
            elif method == "GET" and path.startswith(hs.PATH_WORKDIR):
                await _send_file(send, self._workdir(scope), b"application/gzip")
                return
            elif method == "GET" and path.startswith(hs.PATH_AGENT):
                await _send_file(send, self._agent(path), b"application/zip")
                return
            else:
                raise NotFound(f"agents have no {method} {path}")
        except Disconnected:
            return
        except Exception as error:
            status, body = _refusal(error)
        await _answer(send, status, body)

    async def _join(self, scope: Scope, receive: Receive) -> Reply:
        token = _bearer(scope)
        body = _object(await _body(scope, receive, JOIN_BYTES, "the join request"))
        return 200, _encode(await self._context.desk.join(token, body))

    async def _reports(self, scope: Scope, receive: Receive) -> Reply:
        who = self._context.desk.bearer(_bearer(scope))
        return await self.counter.take(who, await _body(scope, receive, REPORT_BYTES, "the report"))

    async def _orders(self, scope: Scope, receive: Receive) -> Reply:
        job, instance = self._bearer(scope)
        if self._context.controller.job_of(instance) not in (None, job):
            raise NotAuthorized(f"machine {instance} is not part of job {job} any more")
        query = _query(scope)
        seen, wait_s = _number(query, "seen"), min(_decimal(query, "wait_s"), LONGEST_WAIT_S)
        context = self._context
        if context.stopping:
            raise Stopping
        poll = asyncio.current_task()
        assert poll is not None
        gone = _Gone(scope, receive, poll)
        context.polls.add(poll)
        # A poll may take a minute, and there is one for each machine: what came with it is not held meanwhile.
        scope["headers"] = ()
        try:
            orders = await context.desk.orders(instance, seen=seen, wait_s=wait_s)
        except asyncio.CancelledError:
            # The task itself goes on: it has to answer, or to end in peace.
            why = Disconnected if gone.happened else Stopping if self._context.stopping else None
            if why is None:
                raise
            poll.uncancel()
            raise why from None
        finally:
            context.polls.discard(poll)
            gone.forget()
        return (204, b"") if orders is None else (200, _encode(orders))

    async def _logs(self, scope: Scope, receive: Receive) -> Reply:
        job, instance = self._bearer(scope)
        query = _query(scope)
        key = LogKey(_number(query, "attempt"), instance, query.get("rank", ""))
        data = await _body(scope, receive, LOG_BYTES, "the piece of the log")
        state, _ = self._context.whose(job, instance)
        return 200, _encode({"offset": self._context.logs.append(state.id, key, _number(query, "offset"), data)})

    async def _output(self, scope: Scope, receive: Receive) -> Reply:
        state, machine = self._context.whose(*self._bearer(scope))
        path = _output_path(machine, scope["path"].removeprefix(hs.PATH_OUTPUTS))
        digest = _header(scope, b"x-everstep-sha256")
        found = await self._context.files.store_output(_pieces(receive), job=state.id, path=path, digest=digest)
        if self._context.bucket_files is not None:
            await asyncio.to_thread(self._context.bucket_files.drop, state.id, path)
        return 200, _encode({"sha256": found})

    async def _files(self, scope: Scope, receive: Receive) -> Reply:
        job, instance = self._bearer(scope)
        what = scope["path"].removeprefix(hs.PATH_FILES)
        asked = _object(await _body(scope, receive, JOIN_BYTES, "the question"))
        if what not in ("folder", "output"):
            raise NotFound(f"nobody can ask for files by {what[:40]}")
        digest = asked.get("sha256")
        if not isinstance(digest, str):
            raise BadInput(Problem("", "sha256", "expected a text"))
        bucket = self._context.bucket_files
        # Who is gone may bring home what it has, but gets nothing that would be good for minutes.
        if bucket is None or self._context.controller.job_of(instance) != job:
            return 200, _encode(_NOT_BY_URL)
        state, machine = self._context.whose(job, instance)
        if what == "folder":
            _check_named(state, digest)
            found = await bucket.folder(digest)
            return 200, _encode(_NOT_BY_URL if found is None else {"by_url": True, "url": found[0], "bytes": found[1]})
        name, size = asked.get("path"), asked.get("bytes")
        if not isinstance(name, str) or not isinstance(size, int) or isinstance(size, bool):
            raise BadInput(Problem("", "path", "expected a text, and bytes as a whole number"))
        path = _output_path(machine, name)
        puts = await bucket.output(state.id, instance, Listed(path, size, digest, ""))
        if puts is not None and not puts:
            await asyncio.to_thread(self._context.files.drop_output, state.id, path)
        told = _NOT_BY_URL if puts is None else {"by_url": True, "puts": [dataclasses.asdict(put) for put in puts]}
        return 200, _encode(told)

    async def _objects(self, scope: Scope, receive: Receive) -> Reply:
        job, instance = self._bearer(scope)
        # Bills and logs of a machine that is gone are taken in; but nobody will read what it publishes now.
        if self._context.controller.job_of(instance) != job:
            raise NotAuthorized(f"machine {instance} is not part of job {job} any more")
        what = scope["path"].removeprefix(hs.PATH_OBJECTS)
        data = await _body(scope, receive, OBJECT_BYTES, "the request")
        place = self._context.buckets.place(self._context.controller.states[job])
        if what == "create":
            return 200, _encode({"created": await place.create(_query(scope).get("key", ""), data)})
        asked = _object(data)
        if what == "sign":
            urls = await place.sign(str(asked.get("method")), _keys(asked))
            return 200, _encode({"urls": urls, "life_s": place.life_s})
        if what == "list":
            return 200, _encode({"objects": await place.list(str(asked.get("prefix", "")))})
        if what == "delete":
            await place.delete(_keys(asked))
            return 200, b"{}"
        raise NotFound(f"objects cannot be asked to {what[:40]}")

    def _workdir(self, scope: Scope) -> Path:
        state, _ = self._context.whose(*self._bearer(scope))
        digest = scope["path"].removeprefix(hs.PATH_WORKDIR)
        _check_named(state, digest)
        path = self._context.files.upload(digest)
        if path is None:
            raise NotFound(f"the archive {digest} is not held any more; submit the job again")
        return path

    def _agent(self, path: str) -> Path:
        """Needs no credential: see ``server.agentfile``."""
        agents = self._context.agents
        found = agents.file(path.removeprefix(hs.PATH_AGENT)) if agents is not None else None
        if found is None:
            raise NotFound("there is no agent of that digest; the one of this server is in the boot settings")
        return found

    def _bearer(self, scope: Scope) -> tuple[JobId, InstanceId]:
        """Job and machine that the credential was given out for."""
        return self._context.desk.bearer(_bearer(scope))


class Reports:
    """Reports of agents, where our own connections bring them whole (a ``Counter``) and where ASGI does."""

    url = hs.PATH_REPORTS.encode()
    most_bytes = 1 << 16

    def __init__(self, context: Context) -> None:
        self._context = context

    def who(self, authorization: bytes) -> tuple[JobId, InstanceId]:
        """Job and machine that the credential was given out for; raises NotAuthorized, NoToken."""
        return self._context.desk.bearer(_token(authorization.decode("latin-1")))

    def begin(self, who: object, body: bytes) -> Reply | Coroutine[Any, Any, Reply]:
        """Signs of life are answered at once; what is journalled has to be durable first."""
        return begun(self.take(cast(tuple[JobId, InstanceId], who), body))

    def refusal(self, error: Exception) -> Reply:
        """See ``Counter``."""
        return _refusal(error)

    async def take(self, who: tuple[JobId, InstanceId], body: bytes) -> Reply:
        """Takes the messages of one report in."""
        job, instance = who
        messages = _object(body).get("messages")
        if not isinstance(messages, list):
            raise BadInput(_NO_LIST)
        for message in messages:
            if not isinstance(message, dict):
                raise BadInput(_NO_LIST)
        for message in messages:
            if message.get("kind") == hs.MSG_EXEC_ENDED:
                self._exec_ended(job, instance, message)
        return 200, _encode(await self._context.desk.report(instance, messages, given_for=job))

    def _exec_ended(self, job: JobId, instance: InstanceId, message: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound, TypeError, ValueError):
            state, _ = self._context.whose(job, instance)
            exec_id = message.get("id", "")
            self._context.execs.ended(state.id, str(exec_id), instance, int(message.get("rc", 0)))


def _check_named(state: JobState, digest: str) -> None:
    """Raises NotFound: a machine may have what its own job names, not what others uploaded."""
    if digest not in state.task.archives:
        raise NotFound(f"job {state.id} names no archive {digest[:80]}")


def _output_path(machine: InstanceState, name: str) -> str:
    """A place of its own for each slot: nodes often write files of the same name."""
    if not name.strip("/."):
        raise BadInput(Problem("", "path", f"'{name}' names no file"))
    return f"node-{machine.slot.index}/{name}"


def _refusal(error: Exception) -> Reply:
    """Agents get a plain text: ``{"error": text}``. A credential that is not known is 401 for them."""
    if isinstance(error, NotAuthorized):
        return 401, _encode({"error": str(error)})
    if not isinstance(error, EverstepError):
        log.error("a request of an agent failed", exc_info=error)
    elif not isinstance(error, Refused):
        log.info("refused an agent: %s", error)
    status, body = describe(error)
    return status, _encode({"error": body["error"]["message"]})


def _encode(value: Any) -> bytes:
    return _text_of(value).encode()


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [] if status == 204 else [_JSON, (b"content-length", str(len(body)).encode())]
    if status in CLOSING:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_file(send: Send, path: Path, kind: bytes) -> None:
    with await asyncio.to_thread(path.open, "rb") as file:
        size = path.stat().st_size
        headers = [(b"content-type", kind), (b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece := await asyncio.to_thread(file.read, _SEND_BYTES):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""


def _bearer(scope: Scope) -> str:
    return _token(_header(scope, b"authorization"))


def _token(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise NoToken("agents show their credential: Authorization: Bearer ...")
    return token.strip()


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))


def _number(query: dict[str, str], name: str) -> int:
    try:
        return int(query.get(name, ""))
    except ValueError:
        raise BadInput(Problem("", name, "expected a whole number")) from None


def _decimal(query: dict[str, str], name: str) -> float:
    try:
        value = float(query.get(name, "0"))
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise BadInput(Problem("", name, "expected a number of seconds"))
    return value


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = _parsed(data)
    except (ValueError, RecursionError):
        raise BadInput(Problem("", "body", "not JSON")) from None
    if not isinstance(value, dict):
        raise BadInput(Problem("", "body", "not a JSON object"))
    return value


def _parsed(data: bytes) -> Any:
    """As ``json.loads``, which guesses the encoding first: that takes a third of the time, and it is always UTF-8."""
    try:
        return _parse(data.decode())
    except ValueError:
        return json.loads(data)


def _keys(asked: dict[str, Any]) -> list[str]:
    keys = asked.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(keys) > MOST_KEYS:
        raise BadInput(Problem("", "keys", f"expected a list of at most {MOST_KEYS} texts"))
    return keys


async def _body(scope: Scope, receive: Receive, limit: int, what: str) -> bytes:
    promised = _header(scope, b"content-length")
    if promised.isdigit() and int(promised) > limit:
        raise TooLarge(limit, what)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message.get("body", b"")  # nearly always: one piece
        if len(whole) > limit:
            raise TooLarge(limit, what)
        return whole
    held = bytearray()
    async for piece in _pieces(receive, first=message):
        held += piece
        if len(held) > limit:
            raise TooLarge(limit, what)
    return bytes(held)


async def _pieces(receive: Receive, first: Message | None = None) -> AsyncIterator[bytes]:
    message = first or await receive()
    while True:
        if message["type"] != "http.request":
            raise Disconnected
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body"):
            return
        message = await receive()


class _Gone:
    """Cancels a task that waits when nobody is there any more to be answered.

    Our own connections tell it; with another server a second task has to listen.
    """

    __slots__ = ("_forget", "_task", "happened")

    def __init__(self, scope: Scope, receive: Receive, task: asyncio.Task[Any]) -> None:
        self.happened = False
        self._task = task
        when_gone = scope.get("extensions", {}).get(WHEN_GONE)
        if when_gone is not None:
            self._forget: Callable[[], object] = functools.partial(when_gone, None)
            when_gone(self._act)
        else:
            self._forget = asyncio.ensure_future(self._listen(receive)).cancel

    def forget(self) -> None:
        """Nobody waits any more; nothing is left behind in the loop."""
        self._forget()

    def _act(self) -> None:
        self.happened = True
        self._task.cancel()

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._act()
