"""What the parts of the agent share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from everstep.agent import atomic
from everstep.agent.clock import Clock
from everstep.agent.environment import Node
from everstep.agent.link import Session
from everstep.agent.logs import LogShipper, log_path
from everstep.agent.mailbox import Mailbox
from everstep.agent.outbox import Outbox
from everstep.agent.settings import Settings
from everstep.agent.supervisor import Supervisor

log = logging.getLogger(__name__)

_MOST_WARNINGS = 20


@dataclass(frozen=True)
class Context:
    """Shared parts.

    Threads may use ``new_session``, ``mailbox.post`` and ``outbox``; the rest is for the main thread.
    """

    settings: Settings
    node: Node
    clock: Clock
    mailbox: Mailbox
    outbox: Outbox
    supervisor: Supervisor
    shipper: LogShipper
    new_session: Callable[[], Session]
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Log, and tell the server with the next heartbeat."""
        log.warning("%s", text)
        if text not in self.warnings and len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(text)

    def log_path(self, attempt: int, rank: str) -> Path:
        """The log file of ``rank``, streamed to the server from now on."""
        path = log_path(self.settings.logs, attempt, rank)
        self.shipper.follow(attempt, rank, path)
        return path

    def keep(self, name: str, value: Any) -> None:
        """Remember ``value`` in the agent's state file ``name``; a full disk is a warning."""
        try:
            atomic.write_json(self.settings.state / name, value)
        except OSError as error:
            self.warn(f"cannot write {name}: {error.strerror or error}")


def shell(text: str) -> list[str]:
    """How the user's shell text is run."""
    return ["bash", "-c", text]
