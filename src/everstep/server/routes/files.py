"""Uploads and outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse

from everstep.model.access import Verb
from everstep.model.errors import NotFound
from everstep.server.context import actor_of, context_of
from everstep.server.files import UPLOAD_BYTES
from everstep.server.problems import Refused, TooLarge

router = APIRouter()
_PATIENCE_BYTES = 1 << 30
_BYTES = "application/octet-stream"


@router.post("/api/v1/uploads")
async def upload(request: Request, sha256: str = "") -> Any:
    """Keeps a packed folder."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.SUBMIT)
    promised = request.headers.get("content-length", "")
    try:
        try:
            if promised.isdigit() and int(promised) > UPLOAD_BYTES:
                raise TooLarge(UPLOAD_BYTES, "the upload")
            return {"digest": await context.files.store_upload(request.stream(), digest=sha256)}
        except Refused:
            await _hear_out(request)
            raise
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is there to read it


async def _hear_out(request: Request) -> None:
    """Who is still sending would not hear a refusal: a connection closed on unread data takes the answer with it."""
    heard = 0
    async for piece in request.stream():
        heard += len(piece)
        if heard > _PATIENCE_BYTES:
            return


@router.head("/api/v1/uploads/{digest}")
async def has_upload(request: Request, digest: str) -> Response:
    """200 if an archive is held, else 404."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.SUBMIT)
    if context.files.upload(digest) is None:
        raise NotFound("no such archive")
    return Response()


@router.get("/api/v1/jobs/{job}/outputs")
async def outputs(request: Request, job: str) -> Any:
    """Files of a job that came home."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.READ, job)
    found = {f.path: f.bytes for f in context.files.outputs(state.id)}
    if context.bucket_files is not None:
        found |= {f.path: f.bytes for f in context.bucket_files.outputs(state.id)}
    return {
        "folder": str(context.files.folder_of(state.id)),
        "outputs": [{"path": path, "bytes": found[path]} for path in sorted(found)],
    }


@router.get("/api/v1/jobs/{job}/outputs/{path:path}")
async def output(request: Request, job: str, path: str) -> Response:
    """One of them."""
    context = context_of(request)
    state = await context.find(actor_of(request), Verb.READ, job)
    listed = context.bucket_files.find(state.id, path) if context.bucket_files is not None else None
    if context.bucket_files is not None and listed is not None:
        pieces = context.bucket_files.read(listed)
        first = await anext(pieces)  # what the bucket says against it is said before the answer has begun
        headers = {"Content-Length": str(listed.bytes)}
        return StreamingResponse(_with(first, pieces), media_type=_BYTES, headers=headers)
    return FileResponse(context.files.output(state.id, path), media_type=_BYTES)


async def _with(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in others:
        yield piece
