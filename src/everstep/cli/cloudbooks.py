"""Does anybody know it? What is found in a cloud account, held against the books of servers, for ``cloud sweep``.

A thing is a stray if its deployment's server says that it does not know it, or does not answer any more where its
machines call it. Where nobody can be asked, it is a stray for whoever names its deployment.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from everstep.agent.pin import PinnedConnection
from everstep.client.home import Home, UnsafeFile
from everstep.model.errors import EverstepError, NotFound
from everstep.providers.leftovers import CallsHome, Leftover, Sweeper

if TYPE_CHECKING:
    from everstep.client.api import Client

_ANSWER_S = 5.0
_ASKED = 3
"""So many machines of a deployment are asked whom they call: a server that moved left old ones behind."""


class Standing(StrEnum):
    """How a thing stands."""

    STRAY = "stray"
    BOOKED = "in the books"
    SERVED = "its server answers"
    SERVER = "a server"
    UNKNOWN = "nobody to ask"


@dataclass(frozen=True, slots=True)
class Judged:
    """A thing and how it stands: ``why`` in words."""

    thing: Leftover
    standing: Standing
    why: str


@dataclass(slots=True)
class Books:
    """What the server of this home knows.

    Attributes:
        deployment: of this home, empty if there never was a server; ``answers``: whether its server does.
        unknown: ids that the server says it does not know.
        jobs: what it says of each job that things name; None = it has no such job.
        trouble: why it does not answer.
    """

    deployment: str = ""
    answers: bool = False
    unknown: frozenset[str] = frozenset()
    jobs: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""

    def judged(self, thing: Leftover) -> tuple[Standing, str]:
        """How a thing of this deployment stands, while its server answers."""
        if thing.id in self.unknown:
            return Standing.STRAY, "not in the server's books"
        if not thing.job:
            return Standing.BOOKED, "the server does not call it unknown"
        job = self.jobs.get(thing.job)
        if job is None:
            return Standing.STRAY, f"the server has no job {thing.job}"
        if not job.ended:
            return Standing.BOOKED, f"job {thing.job} is {job.phase}"
        if any(v.volume == thing.id and v.deleted_at is None for v in job.volumes):
            return Standing.BOOKED, f"kept for job {thing.job}, which {job.phase}"
        return Standing.STRAY, f"job {thing.job} has ended ({job.phase})"


def read_books(home: Home, things: Sequence[Leftover]) -> Books:
    """Asks the server of this home, if there is one, about the jobs that things of its deployment name."""
    from everstep.client.api import Client

    own = _own_deployment(home)
    try:
        with Client(home=home, timeout_s=30.0) as client:
            own = client.health().deployment or own
            unknown = frozenset(u.id for u in client.unknown())
            named = sorted({t.job for t in things if t.deployment == own and t.job})
            return Books(own, True, unknown, {job: _job(client, job) for job in named})
    except EverstepError as error:
        return Books(own, trouble=str(error))


async def judged(sweeper: Sweeper, things: Sequence[Leftover], books: Books, named: str) -> list[Judged]:
    """How each thing stands. ``named``: the deployment that the user says is over, empty for none."""
    voices: dict[str, tuple[Standing, str]] = {}
    for deployment in sorted({t.deployment for t in things}):
        if not (books.answers and deployment == books.deployment):
            voices[deployment] = await _voice(sweeper, deployment, things, books, named)
    found = []
    for thing in things:
        standing, why = voices[thing.deployment] if thing.deployment in voices else books.judged(thing)
        if thing.is_server:
            standing, why = Standing.SERVER, "everstep server down ends it"
        found.append(Judged(thing, standing, why))
    return found


async def _voice(
    sweeper: Sweeper, deployment: str, things: Sequence[Leftover], books: Books, named: str
) -> tuple[Standing, str]:
    """How everything of a deployment stands whose books cannot be read."""
    mine = [t for t in things if t.deployment == deployment]
    if not deployment:
        return Standing.UNKNOWN, "its tags do not say whose it is"
    machines = sorted((t for t in mine if t.kind == "instance"), key=lambda t: -(t.since or 0.0))
    silent = ""
    for machine in machines[:_ASKED]:
        home = await sweeper.calls_home(machine)
        if home is not None and home.url != silent:
            if answers(home):
                return Standing.SERVED, f"its server answers at {home.url}"
            silent = home.url
    if named == deployment:
        return Standing.STRAY, "you named its deployment"
    if silent:
        return Standing.STRAY, f"its server does not answer at {silent}"
    if deployment == books.deployment:
        return Standing.STRAY, "its server, that of this home, does not answer"
    return Standing.UNKNOWN, f"no server to ask; if it is over: --deployment {deployment}"


def answers(home: CallsHome) -> bool:
    """Whether the server is there: whoever shows the pinned certificate, or, without one, speaks HTTP there."""
    split = urlsplit(home.url)
    connection: http.client.HTTPConnection
    try:
        if not split.hostname:
            return False
        if split.scheme == "https" and home.fingerprint:
            connection = PinnedConnection(split.hostname, split.port, fingerprint=home.fingerprint, timeout_s=_ANSWER_S)
        elif split.scheme == "https":
            connection = http.client.HTTPSConnection(split.hostname, split.port, timeout=_ANSWER_S)
        else:
            connection = http.client.HTTPConnection(split.hostname, split.port, timeout=_ANSWER_S)
        with closing(connection):
            connection.request("GET", "/api/v1/health")
            connection.getresponse()
            return True
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _own_deployment(home: Home) -> str:
    """The deployment that this home belongs to, as its files say."""
    from everstep.client import remote

    with suppress(UnsafeFile):
        elsewhere = remote.find(home)
        if elsewhere is not None and elsewhere.deployment:
            return elsewhere.deployment
    with suppress(OSError):
        return home.deployment_file.read_text().strip()
    return ""


def _job(client: Client, job: str) -> Any:
    try:
        return client.status(job)
    except NotFound:
        return None
