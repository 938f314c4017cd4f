"""The application: agents on a bare fast path, users through FastAPI, nothing for those without a token."""

from __future__ import annotations

import json
import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.model.access import Actor
from everstep.model.errors import BadInput, EverstepError, NotFound, Problem
from everstep.server.agents import PREFIX, AgentApp
from everstep.server.context import Context
from everstep.server.problems import NoToken, Refused, describe
from everstep.server.routes import deployment, files, jobs, streams

log = logging.getLogger(__name__)


def make_app(context: Context) -> ASGIApp:
    """The whole HTTP side of a server.

    Args:
        context: the parts behind it. Call ``context.close()`` before the server is shut down, or followers keep it
        waiting.

    Returns:
        An ASGI application; it needs no lifespan.
    """
    return Front(AgentApp(context), Door(user_app(context), context))


def user_app(context: Context) -> FastAPI:
    """The user API without its door."""
    app = FastAPI(
        title="everstep", version=context.version, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    app.state.context = context
    for module in (deployment, jobs, streams, files):
        app.include_router(module.router)
    # Starlette looks handlers up by class, the most special one first.
    app.add_exception_handler(EverstepError, _refuse)
    app.add_exception_handler(Exception, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_parameters)
    app.add_exception_handler(HTTPException, _refuse_path)
    return app


class Front:
    """Sends each request to the agents' or to the users' side."""

    def __init__(self, agents: AgentApp, users: ASGIApp) -> None:
        self.counter = agents.counter
        self._agents = agents
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatches by path."""
        if scope["type"] == "http":
            await (self._agents if scope["path"].startswith(PREFIX) else self._users)(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})


class Door:
    """Lets in who holds the token, before anything of the request is read; turns surprises into one plain answer."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks the token and passes on."""
        started = False

        async def watched(message: dict[str, object]) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            self._check(Request(scope))
            scope["everstep.actor"] = Actor()
            await self._app(scope, receive, watched)  # type: ignore[arg-type]
        except Exception as error:
            if not isinstance(error, EverstepError):
                log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if not started:
                await _response(error)(scope, receive, send)

    def _check(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NoToken(
                "show the server's token: Authorization: Bearer ... (it is in the file 'token' of EVERSTEP_HOME)"
            )
        if not self._context.knows_token(token.strip()):
            raise NoToken("that is not the token of this server")


def _response(error: Exception) -> Response:
    status, body = describe(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    # A body that was turned away unread would have to be read to keep the connection.
    if status in (401, 413):
        headers = {**(headers or {}), "Connection": "close"}
    return JSONResponse(body, status_code=status, headers=headers)


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        log.info("refused %s %s: %s", request.method, request.url.path, json.dumps(type(error).__name__))
    return _response(error)


async def _refuse_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [Problem("", str(e["loc"][-1]), str(e["msg"])) for e in error.errors()]
    return _response(BadInput(*problems))


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _response(NotFound(f"there is no {request.url.path}"))
    return _response(Refused(error.status_code, "bad_input", f"{request.method} {request.url.path}: {error.detail}"))
