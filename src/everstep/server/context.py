"""What the routes work with, and the one place where a request becomes somebody who may do something."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from everstep.client.results import ProviderHealth
from everstep.model.access import DEFAULT_PROJECT, Actor, Authorize, Resource, Verb, token_holder_may_all
from everstep.model.errors import BadInput, Conflict, NotAuthorized, NotFound, Problem
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import InstanceState, JobState
from everstep.ports import Clock, Store
from everstep.server.agentfile import AgentFiles
from everstep.server.bucketfiles import BucketFiles
from everstep.server.buckets import Buckets
from everstep.server.execs import ExecBook
from everstep.server.files import Files
from everstep.server.live import LiveController, LiveDesk
from everstep.server.logarchive import LogArchive
from everstep.server.logs import LogBook, LogKey
from everstep.server.problems import TooLarge
from everstep.server.reach import Reach
from everstep.server.secrets import SecretFiles
from everstep.server.submissions import Submissions
from everstep.server.tail import Tail
from everstep.server.views import Views

JSON_BYTES = 4 << 20
"""Largest JSON body of the user API."""
_SHORTEST = 3
"""Characters of the beginning of an id that names a job; all ids begin with the same two."""


async def _no_providers() -> Sequence[ProviderHealth]:
    return ()


@dataclass(slots=True)
class Context:
    """The parts behind the API.

    Attributes:
        token: bearer token of the user API.
        authorize: the seam of ``model.access``.
        reach: whose machines can call this server.
        agents: what machines fetch at boot; None = nothing.
        buckets: where mirrors lie that machines reach by signed URLs.
        bucket_files: folders and outputs that they reach by such URLs; None = all go through this server.
        log_archive: where logs go once they do not grow any more; None = they stay here.
        providers_health: asked by ``health``.
        backup: asked by ``health``.
        on_stop: called when a user asks the server to stop.
        ping_s: pause between signs of life on a silent event stream.
        stopping: set when the server goes down; streams and long polls then end.
    """

    controller: LiveController
    desk: LiveDesk
    store: Store
    clock: Clock
    views: Views
    files: Files
    logs: LogBook
    execs: ExecBook
    secrets: SecretFiles
    submissions: Submissions
    tail: Tail
    token: str
    version: str
    pid: int
    started_at: float
    authorize: Authorize = token_holder_may_all
    reach: Reach = field(default_factory=Reach)
    agents: AgentFiles | None = None
    buckets: Buckets = field(default_factory=lambda: Buckets({}))
    bucket_files: BucketFiles | None = None
    log_archive: LogArchive | None = None
    providers_health: Callable[[], Awaitable[Sequence[ProviderHealth]]] = _no_providers
    backup: Callable[[], str] = lambda: ""
    on_stop: Callable[[], None] = lambda: None
    ping_s: float = 15.0
    stopping: bool = False
    polls: set[asyncio.Task[Any]] = field(default_factory=set)

    def close(self) -> None:
        """Ends all streams and long polls; new ones end at once."""
        self.stopping = True
        self.tail.close()
        self.logs.bells.ring_all()
        for poll in list(self.polls):
            poll.cancel()

    async def read_log(self, job: JobId, key: LogKey, offset: int, limit: int) -> tuple[int, bytes]:
        """As ``LogBook.read``, wherever the bytes are. Raises BucketTrouble, BucketRefuses."""
        if self.log_archive is None:
            return self.logs.read(job, key, offset, limit)
        return await self.log_archive.read(job, key, offset, limit)

    def knows_token(self, given: str) -> bool:
        """Whether it is the token; takes the same time however wrong it is."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def allow(self, actor: Actor, verb: Verb, state: JobState | None = None, *, project: str = DEFAULT_PROJECT) -> None:
        """Raises NotAuthorized unless ``actor`` may do ``verb`` to the job, or to the deployment."""
        resource = Resource(project) if state is None else Resource(state.project, state.user, state.id)
        if not self.authorize(actor, verb, resource):
            what = f"job {state.id}" if state is not None else f"project '{project}'"
            raise NotAuthorized(f"{actor.user} may not {verb} {what}")

    def may(self, actor: Actor, verb: Verb, state: JobState) -> bool:
        """Whether ``actor`` may do ``verb`` to the job."""
        return self.authorize(actor, verb, Resource(state.project, state.user, state.id))

    async def find(self, actor: Actor, verb: Verb, name: str) -> JobState:
        """The job called so: by id, by a beginning of an id that only one has, or by a task name that only one has.

        Raises:
            NotFound: there is none that the actor may read. Conflict: several. NotAuthorized: not allowed to ``verb``.
        """
        states = self.controller.states
        ids = [JobId(name)] if name in states else [j for j in states if len(name) >= _SHORTEST and j.startswith(name)]
        if not ids:
            ids = [JobId(view.job) async for view in self.views.all(self.clock.now()) if view.name == name]
        found = [s for s in map(states.__getitem__, ids) if self.may(actor, Verb.READ, s)]
        if not found:
            short = f"; the beginning of an id needs {_SHORTEST} characters" if len(name) < _SHORTEST else ""
            raise NotFound(f"there is no job '{name}'{short}")
        if len(found) > 1:
            newest = [s.id for s in sorted(found, key=lambda s: s.submitted_at, reverse=True)[:5]]
            raise Conflict(f"{len(found)} jobs are called '{name}': say which by its id ({', '.join(newest)})")
        self.allow(actor, verb, found[0])
        return found[0]

    def whose(self, job: JobId, instance: InstanceId) -> tuple[JobState, InstanceState]:
        """The job that a credential was given out for, and the machine in it.

        A machine that is gone may still have logs or outputs to send: they are of this job, whatever it does now.
        Raises NotFound.
        """
        state = self.controller.states.get(job)
        machine = state.by_instance(instance) if state is not None else None
        if state is None or machine is None:
            raise NotFound(f"no job has the machine {instance}")
        return state, machine


def context_of(request: Request) -> Context:
    """The parts, in a route."""
    context: Context = request.app.state.context
    return context


def actor_of(request: Request) -> Actor:
    """Who asks. There is one token today, so there is one user."""
    actor: Actor = request.scope["everstep.actor"]
    return actor


async def json_object(request: Request, *, limit: int = JSON_BYTES) -> dict[str, Any]:
    """The JSON object in the body; an empty body counts as ``{}``. Raises BadInput, TooLarge."""
    import json

    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) > limit:
            raise TooLarge(limit, "the request")
    if not held:
        return {}
    try:
        value = json.loads(held)
    except (ValueError, RecursionError):
        raise BadInput(Problem("", "body", "the request is not JSON")) from None
    if not isinstance(value, dict):
        raise BadInput(Problem("", "body", "the request is not a JSON object"))
    return value


def text_field(value: dict[str, Any], key: str, *, default: str | None = None) -> str:
    """A text of a JSON body. Raises BadInput when it is missing without a default, or is no text."""
    found = value.get(key, default)
    if not isinstance(found, str):
        raise BadInput(Problem("", key, "expected a text" if key in value else "is missing"))
    return found


def text_map(value: dict[str, Any], key: str) -> dict[str, str]:
    """A mapping of texts of a JSON body; missing = empty. The error never shows a value."""
    found = value.get(key) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BadInput(Problem("", key, "expected a mapping of names to texts"))
    return found
