"""Errors are meanings: each says what happened in the words of this project, and has one documented reaction."""

from __future__ import annotations

from dataclasses import dataclass


class EverstepError(Exception):
    """Root of every error that everstep raises on purpose. Its text is one clear line for the user."""


class UnlistedTransition(EverstepError):
    """An event that the transition table does not list for the phase.

    Raised in tests and in the simulator; live, the event is journalled as rejected and the job is quarantined.
    """


class HandshakeMismatch(EverstepError):
    """The peer speaks no version of the handshake that we speak."""


class NotAuthorized(EverstepError):
    """The actor may not do this to that resource (HTTP 403)."""


class NotFound(EverstepError):
    """There is no such job, instance or object (HTTP 404)."""


class Conflict(EverstepError):
    """The request does not fit the present state, for example cancelling a job that has ended (HTTP 409)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in what the user gave us.

    Attributes:
        where: file and line, ``task.yaml:12``, or ``--env`` for the command line.
        key: dotted path of the key, ``resources.accelerators``; empty when there is none.
        message: what is wrong and what was expected.
        fix: what to write instead, for example the nearest valid key; may be empty.
    """

    where: str
    key: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        """One line: ``task.yaml:12: resources.acelerators: unknown key; did you mean 'accelerators'?``."""
        parts = [p for p in (self.where, self.key) if p]
        text = ": ".join([*parts, self.message])
        return f"{text}; {self.fix}" if self.fix else text


class BadInput(EverstepError):
    """What the user gave us is wrong; nothing was changed. The CLI prints it and exits with 2, the API answers 422."""

    def __init__(self, *problems: Problem) -> None:
        """Collects one problem or several, so that a user mends a file in one go."""
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


# --- Providers -------------------------------------------------------------------------------------------------------


class ProviderError(EverstepError):
    """A cloud said no. ``kind`` is the word used in the journal."""

    kind = "provider_error"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Args: message: the vendor's own words; retry_after_s: how long the vendor asks us to wait, if it said."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoCapacity(ProviderError):
    """The pool has no such machine now. Reaction: the pool cools down, another offer is chosen."""

    kind = "no_capacity"


class QuotaExceeded(ProviderError):
    """The account may not hold more of these.

    Reaction: the pool is out until capacity of ours is given back, the user is told.
    """

    kind = "quota_exceeded"


class PriceAboveMax(ProviderError):
    """The spot price is above the job's maximum. Reaction: as NoCapacity, with the price shown."""

    kind = "price_above_max"


class BadRequest(ProviderError):
    """The vendor refuses the parameters; repeating cannot help. Reaction: the job fails with the vendor's words."""

    kind = "bad_request"


class Throttled(ProviderError):
    """Too many calls. Reaction: the same call, same token, after a pause with jitter."""

    kind = "throttled"


class Unauthorized(ProviderError):
    """Credentials are missing or too weak. Reaction: the provider is out, every job that needs it shows why."""

    kind = "unauthorized"


class Unreachable(ProviderError):
    """No answer, or a broken one: the effect may or may not have happened.

    Reaction: the same call, same token, after a pause.
    """

    kind = "unreachable"


PROVIDER_ERRORS: dict[str, type[ProviderError]] = {
    e.kind: e for e in (NoCapacity, QuotaExceeded, PriceAboveMax, BadRequest, Throttled, Unauthorized, Unreachable)
}
"""Every typed provider error by its ``kind``."""


# --- Store -----------------------------------------------------------------------------------------------------------


class StaleFence(EverstepError):
    """Another holder has the lease now: this process must stop writing at once."""


class VersionConflict(EverstepError):
    """The stream has moved on since it was read; nothing of the batch was written."""


class LeaseHeld(EverstepError):
    """Somebody else holds the lease and it has not run out."""


class StoreError(EverstepError):
    """The journal could not be read or written; nothing of a refused batch is visible. Reaction: pause, try again."""


class StoreFull(StoreError):
    """No space is left for the journal; nothing of the batch was written. Reaction: pause, tell the user, try again."""


class StoreUnusable(StoreError):
    """The journal is damaged, not ours, or of a newer everstep; repeating cannot help.

    Reaction: stop with this line.
    """


class StoreClosed(StoreError):
    """The store was closed by this process; nothing more is read or written through it."""
