"""The HTTP server around the application, set up for many small requests of agents that stay connected."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from everstep.server.connections import Connection
from everstep.server.listening import Tls

KEEP_ALIVE_S = 75
"""Longer than any heartbeat, so that an agent keeps its connection."""
_LAST_REQUESTS_S = 3
_LOOK_TICKS = 20
"""uvicorn ticks ten times a second."""


class QuietServer(uvicorn.Server):
    """Leaves signals to its owner: it is not the server's to die of them before the journal is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Closes connections on which nothing was asked for long; tells whether to stop."""
        if counter % _LOOK_TICKS == 0:
            since = time.monotonic() - self.config.timeout_keep_alive
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.close_if_quiet(since)
        return await super().on_tick(counter)


def serve(app: ASGIApp, tls: Tls | None = None) -> uvicorn.Server:
    """A server for ``app``: run it with ``await server.serve(sockets=[...])``, end it by ``server.should_exit =
    True``.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_REQUESTS_S,
        ssl_certfile=str(tls.certificate) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
    )
    return QuietServer(config)
