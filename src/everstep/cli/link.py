"""The way from a command to the server."""

from __future__ import annotations

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

    return Client.ensure()
