"""What grows: events, decisions and logs, page by page or followed as Server-Sent Events.

A follower is woken, looks what is new and sends it; nothing is queued for it, so a slow one costs one page of memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from everstep.model.access import Verb
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput, Problem
from everstep.model.ids import JobId, job_stream
from everstep.model.job import JobState
from everstep.ports import Record
from everstep.server.bells import rung
from everstep.server.context import Context, actor_of, context_of
from everstep.server.problems import Stopping
from everstep.server.reading import Reader, Wanted
from everstep.server.views import decision_view, event_view

router = APIRouter()
_PAGE = 500
_ANSWER_BYTES = 4 << 20
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

News = AsyncIterator[tuple[str, Any]]
"""``(id, JSON-ready value)``."""


@router.get("/api/v1/jobs/{job}/events")
async def events(
    request: Request, job: str, after: int = Query(default=0, ge=0, le=2**63 - 1), follow: bool = False
) -> Any:
    """The journal of a job."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.READ, job)
    after = max(after, _last_id(request))
    if not follow:
        records = await context.store.read(stream=job_stream(state.id), after=after, limit=_PAGE)
        return {"events": to_dict([event_view(record) for record in records])}

    async def news() -> News:
        nonlocal after
        while records := await context.store.read(stream=job_stream(state.id), after=after, limit=_PAGE):
            for record in records:
                after = record.version
                yield str(after), to_dict(event_view(record))

    return _stream(context, state.id, news)


@router.get("/api/v1/jobs/{job}/why")
async def why(request: Request, job: str, limit: int = Query(default=20, ge=1, le=10_000)) -> Any:
    """Decisions about a job, newest first."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.READ, job)
    found: list[Record] = []
    after = 0
    while records := await context.store.read(stream=job_stream(state.id), after=after, limit=10_000):
        after = records[-1].version
        found = [*found, *(record for record in records if record.kind == "Decided")][-limit:]
    return {"decisions": to_dict([decision_view(record) for record in reversed(found)])}


@router.get("/api/v1/jobs/{job}/logs")
async def logs(
    request: Request,
    job: str,
    *,
    attempt: int | None = None,
    node: int | None = None,
    rank: str | None = None,
    offset: int = 0,
    cursor: str = "",
    follow: bool = False,
) -> Any:
    """Logs of a job, joined across attempts."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.READ, job)
    wanted = Wanted(attempt, node, rank)
    cursor = request.headers.get("last-event-id", "") or cursor
    reader = Reader(context.logs, context.read_log, wanted, offset=offset, cursor=cursor)
    if not follow:
        return await _page(reader, state)

    async def news() -> News:
        current = context.controller.states[state.id]
        async for part in reader.parts(current):
            yield reader.cursor, to_dict(part)

    return _stream(context, state.id, news)


async def _page(reader: Reader, state: JobState) -> dict[str, Any]:
    parts, size, more = [], 0, False
    async with aclosing(reader.parts(state)) as found:
        async for part in found:
            parts.append(part)
            size += part.end - part.offset
            if size >= _ANSWER_BYTES:
                more = True
                break
    return {"parts": to_dict(parts), "cursor": reader.cursor, "more": more}


def _last_id(request: Request) -> int:
    text = request.headers.get("last-event-id", "0")
    if not text.isdigit():
        raise BadInput(Problem("", "Last-Event-ID", "expected the id of an event of this stream"))
    return int(text)


def _stream(context: Context, job: JobId, news: Callable[[], News]) -> Response:
    if context.stopping:
        raise Stopping
    return StreamingResponse(_follow(context, job, news), media_type="text/event-stream", headers=_HEADERS)


async def _follow(context: Context, job: JobId, news: Callable[[], News]) -> AsyncIterator[str]:
    """News until the job has ended and all of it was told."""
    bell = asyncio.Event()
    with context.tail.listening(job, bell), context.logs.bells.listening(job, bell):
        await context.tail.begin()
        yield ": hello\n\n"
        while not context.stopping:
            bell.clear()
            # Looked at before the news is read: what came before the end is told before the end.
            state = context.controller.states[job]
            async for key, value in news():
                yield f"id: {key}\ndata: {json.dumps(value)}\n\n"
            if state.phase.ended:
                end = {"phase": str(state.phase), "exit_code": state.exit_code}
                yield f"event: end\ndata: {json.dumps(end)}\n\n"
                return
            if not await rung(bell, context.ping_s):
                yield ": still here\n\n"
