"""The way from a command to the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.client.api import Client


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


def tell_slow(text: str) -> None:
    """Says to whoever sits at a terminal what a command waits for; pipes and logs get results and errors alone."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
