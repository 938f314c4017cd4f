"""What Compute Engine says when it says no, and what that means to us.

There are two languages: reasons in refused requests (``rateLimitExceeded``; https://docs.cloud.google.com/compute/docs/
troubleshooting/troubleshooting-rate-limits and https://cloud.google.com/apis/design/errors) and codes inside operations
that were accepted (``ZONE_RESOURCE_POOL_EXHAUSTED``; https://docs.cloud.google.com/compute/docs/troubleshooting/
troubleshooting-vm-creation). One table holds both. Whatever is not listed goes by its HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.model.errors import (
    BadRequest,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unreachable,
)

MEANINGS: Mapping[str, type[ProviderError]] = {
    # The zone has none now.
    "ZONE_RESOURCE_POOL_EXHAUSTED": NoCapacity,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": NoCapacity,
    "REGION_RESOURCE_POOL_EXHAUSTED": NoCapacity,
    "RESOURCE_POOL_EXHAUSTED": NoCapacity,
    "RESOURCES_EXHAUSTED": NoCapacity,
    "STOCKOUT": NoCapacity,
    "VM_MIN_COUNT_NOT_REACHED": NoCapacity,
    "insufficientCapacity": NoCapacity,
    "IP_SPACE_EXHAUSTED": NoCapacity,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": NoCapacity,
    # The project may not hold more.
    "QUOTA_EXCEEDED": QuotaExceeded,
    "LIMIT_EXCEEDED": QuotaExceeded,
    "RESOURCE_LIMIT_EXCEEDED": QuotaExceeded,
    "quotaExceeded": QuotaExceeded,
    "limitExceeded": QuotaExceeded,
    # Too fast, or too early.
    "rateLimitExceeded": Throttled,
    "userRateLimitExceeded": Throttled,
    "dailyLimitExceeded": Throttled,
    "concurrentLimitExceeded": Throttled,
    "RATE_LIMIT_EXCEEDED": Throttled,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Throttled,
    "OPERATION_RATE_LIMIT_EXCEEDED": Throttled,
    "resourceNotReady": Throttled,
    "RESOURCE_NOT_READY": Throttled,
    # Who we are, and what we may.
    "accessNotConfigured": Unauthorized,
    "accountDisabled": Unauthorized,
    "authError": Unauthorized,
    "billingNotEnabled": Unauthorized,
    "expired": Unauthorized,
    "forbidden": Unauthorized,
    "insufficientPermissions": Unauthorized,
    "required": Unauthorized,
    "PERMISSIONS_ERROR": Unauthorized,
    "SERVICE_DISABLED": Unauthorized,
    # The vendor's own trouble: the effect may have happened.
    "backendError": Unreachable,
    "internalError": Unreachable,
    "INTERNAL_ERROR": Unreachable,
    "SERVICE_UNAVAILABLE": Unreachable,
    # What we asked for cannot be.
    "alreadyExists": BadRequest,
    "badRequest": BadRequest,
    "conditionNotMet": BadRequest,
    "invalid": BadRequest,
    "notFound": BadRequest,
    "resourceInUseByAnotherResource": BadRequest,
    "CONDITION_NOT_MET": BadRequest,
    "RESOURCE_ALREADY_EXISTS": BadRequest,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": BadRequest,
    "RESOURCE_NOT_FOUND": BadRequest,
    "UNSUPPORTED_OPERATION": BadRequest,
}
"""Vendor's reason or code to meaning. ``required`` with status 400 is a missing field, and so a BadRequest."""

TOO_FEW = "VM_MIN_COUNT_NOT_REACHED"
"""Of a call that makes many machines: it could not make enough of them, whatever the reason."""
IN_USE = ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")
THERE = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
GONE = ("notFound", "RESOURCE_NOT_FOUND")


class Said(Exception):
    """The vendor's own code, as the cause of a typed error."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def code_of(error: BaseException) -> str:
    """The vendor's code behind one of our errors, empty if it has none."""
    return error.__cause__.code if isinstance(error.__cause__, Said) else ""


def meaning_of(error: Exception, action: str) -> tuple[ProviderError, Said]:
    """The typed error of what the client raised, and its cause. Its text is the vendor's reason and words.

    Args:
        error: what was raised.
        action: the call, for the text: ``instances.insert in us-central1-a``.
    """
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth import exceptions as auth
    from google.protobuf.json_format import ParseError

    if isinstance(error, GoogleAPICallError):
        status = int(error.code or 500)
        listed = [e for e in error.errors or [] if isinstance(e, dict)]
        reason = str(listed[0].get("reason", "")) if listed else str(error.reason or "")
        return _typed(reason, status, f"{action}: {reason or status}: {error.message}", error)
    if isinstance(error, auth.TransportError):
        return _typed("", 503, f"{action}: {error}", error)
    if isinstance(error, auth.GoogleAuthError):
        text = f"{action}: {error}; see 'Credentials' in docs/gcp.md"
        return Unauthorized(text), _said("authError", error)
    if isinstance(error, ParseError | TypeError):
        return BadRequest(f"{action}: {error}"), _said("badRequest", error)
    # Broken connections, time-outs, answers that cannot be read: nobody knows what happened.
    return Unreachable(f"{action}: {error}"), _said("", error)


def refused(status: int, text: str, body: Any, action: str) -> tuple[ProviderError, Said]:
    """The typed error of an answer of REST, for calls that no client of the vendor makes."""
    fault = body.get("error", {}) if isinstance(body, dict) else {}
    reason = next((str(e.get("reason", "")) for e in fault.get("errors", [])), "")
    return _typed(reason, status, f"{action}: {reason or status}: {fault.get('message', text[:200])}", None)


def failed(operation: Mapping[str, Any]) -> ProviderError | None:
    """The typed error inside an operation that is done, with its cause; None if it went well.

    Of several the first decides that has a meaning: a stock-out comes with general remarks. That a call made too few
    machines is told beside the reason, and decides only if there is no other.
    """
    errors = operation.get("error", {}).get("errors", [])
    if not errors:
        return None
    known = [e for e in errors if e.get("code") in MEANINGS]
    told = min(known, key=lambda e: e["code"] == TOO_FEW, default=errors[0])
    code, status = str(told.get("code", "")), int(operation.get("httpErrorStatusCode", 400))
    where = str(operation.get("zone") or operation.get("region") or "").rpartition("/")[2]
    action = f"{operation.get('operationType', 'operation')} in {where or 'the project'}"
    error, said = _typed(code, status, f"{action}: {code}: {told.get('message', '')}", None)
    error.__cause__ = said
    return error


def _typed(code: str, status: int, text: str, error: Exception | None) -> tuple[ProviderError, Said]:
    kind = MEANINGS.get(code)
    if kind is None or (code == "required" and status != 401):
        kind = _by_status(status)
    return kind(text), _said(code, error)


def _by_status(status: int) -> type[ProviderError]:
    if status in (401, 403):
        return Unauthorized
    if status == 429:
        return Throttled
    return BadRequest if 400 <= status < 500 else Unreachable


def _said(code: str, error: Exception | None) -> Said:
    said = Said(code)
    said.__cause__ = error
    return said
