"""Who may do what. One seam, asked by everything that changes or shows a resource; today it knows one policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

DEFAULT_PROJECT = "default"
DEFAULT_USER = "default"
DEFAULT_GROUP = "default"


class Verb(StrEnum):
    """What an actor wants to do."""

    SUBMIT = "submit"
    READ = "read"
    CONTROL = "control"
    EXEC = "exec"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks."""

    user: str = DEFAULT_USER
    groups: tuple[str, ...] = (DEFAULT_GROUP,)


@dataclass(frozen=True, slots=True)
class Resource:
    """What is asked about: a job (with its id) or the deployment (empty id), in a project."""

    project: str = DEFAULT_PROJECT
    owner: str = DEFAULT_USER
    job: str = ""


class Authorize(Protocol):
    """The seam."""

    def __call__(self, actor: Actor, verb: Verb, resource: Resource) -> bool:
        """Whether ``actor`` may do ``verb`` to ``resource``."""
        ...


def token_holder_may_all(actor: Actor, verb: Verb, resource: Resource) -> bool:
    """The policy of a single-user installation: whoever holds the server's token may do everything."""
    return True
