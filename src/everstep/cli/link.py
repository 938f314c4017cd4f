"""The way from a command to the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import PlanView
    from everstep.model.task import Task


def connected() -> Client:
    """A client of the running server, to be used as a context manager; connects on first use.

    A job is named by its id, the beginning of it, or its name where only one job has it: the server sorts that out.
    """
    from everstep.client.api import Client

    return Client()


def started() -> Client:
    """As ``connected``, after starting a server in the background if none runs."""
    from everstep.client.api import Client

    return Client.ensure(on_slow=tell_slow)


def plan(task: Task) -> PlanView:
    """What would be done with a task now; where no server runs, none is started for it."""
    from everstep.client import launcher, remote
    from everstep.client.home import default_home

    home = default_home()
    if remote.find(home) is not None or launcher.is_running(home):
        with started() as client:
            return client.plan(task)
    from everstep.server.alone import plan_alone

    return plan_alone(home, task)


def tell_slow(text: str) -> None:
    """Says to whoever sits at a terminal what a command waits for; pipes and logs get results and errors alone."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
