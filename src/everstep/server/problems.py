"""Errors as the API shows them: a status and one JSON shape."""

from __future__ import annotations

import errno
from typing import Any

from everstep.control.agents import NotYet
from everstep.model.errors import (
    BadInput,
    Conflict,
    EverstepError,
    HandshakeMismatch,
    NotAuthorized,
    NotFound,
    ProviderError,
)

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class Refused(EverstepError):
    """A request that is turned away before its meaning is looked at.

    Attributes:
        status: HTTP status.
        kind: word of the API's error shape.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class NoToken(Refused):
    """The request carries no token, or not the right one."""

    def __init__(self, message: str) -> None:
        super().__init__(401, "not_authorized", message)


class TooLarge(Refused):
    """The body is larger than allowed."""

    def __init__(self, limit: int, what: str) -> None:
        super().__init__(413, "bad_input", f"{what} is larger than {limit / 2**20:.0f} MiB")


class DiskFull(Refused):
    """The server's disk is full; nothing was kept."""

    def __init__(self, where: str) -> None:
        super().__init__(
            507,
            "unavailable",
            f"the server's disk is full (no room below {where}); nothing was stored, free some space and try again",
        )


class Stopping(Refused):
    """The server is going down."""

    def __init__(self) -> None:
        super().__init__(503, "unavailable", "the server is stopping; jobs and machines go on")


_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (BadInput, 422, "bad_input"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (NotAuthorized, 403, "not_authorized"),
    (HandshakeMismatch, 426, "conflict"),
    (NotYet, 503, "unavailable"),
    (ProviderError, 503, "unavailable"),
    (EverstepError, 500, "internal"),
)


def disk_trouble(error: OSError, where: str) -> Exception:
    """What to raise for an error of the file system: ``DiskFull`` if it is that, else the error itself."""
    return DiskFull(where) if error.errno in DISK_ERRORS else error


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for an error.

    What nobody foresaw shows its type only: its text might hold anything, a secret included.
    """
    if isinstance(error, Refused):
        return error.status, _body(error.kind, str(error))
    for kind_of_error, status, kind in _STATUS:
        if isinstance(error, kind_of_error):
            body = _body(kind, str(error))
            if isinstance(error, BadInput):
                body["error"]["problems"] = [
                    {"where": p.where, "key": p.key, "message": p.message, "fix": p.fix} for p in error.problems
                ]
            return status, body
    return 500, _body("internal", f"the server failed ({type(error).__name__}); its log says more")


def _body(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message, "problems": []}}
