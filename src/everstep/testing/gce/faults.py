"""The vendor misbehaves on command: errors before or after the effect, inside operations, late answers, rates."""

from __future__ import annotations

from collections.abc import Callable

from everstep.testing.faults import OrderedFaults

REQUESTS_PER_MINUTE = 1500
"""https://docs.cloud.google.com/compute/api-quota: 1,500 a minute by default for each group of methods in a project and
region, refilled at the start of the next minute. The groups here are coarser than the page's: what reads, what lists,
what changes things, what asks for operations."""
CODES = {
    "stock_out": ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 0, "does not have enough resources available"),
    "stock_out_plain": ("ZONE_RESOURCE_POOL_EXHAUSTED", 0, "does not have enough resources available"),
    "quota": ("QUOTA_EXCEEDED", 0, "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 0.0 in region us-central1."),
    "too_few": ("VM_MIN_COUNT_NOT_REACHED", 0, "Requested minimum count of 3 VMs could not be created."),
    "internal_later": ("INTERNAL_ERROR", 0, "Internal error. Please try again or contact Google Support."),
    "quota_at_once": ("quotaExceeded", 403, "Quota 'CPUS' exceeded.  Limit: 8.0 in region us-central1."),
    "no_capacity_at_once": ("insufficientCapacity", 503, "There is not enough capacity in the zone"),
    "throttle": ("rateLimitExceeded", 403, "Rate Limit Exceeded"),
    "throttle_429": (
        "rateLimitExceeded",
        429,
        "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'",
    ),
    "permission": ("forbidden", 403, "Required 'compute.instances.create' permission for 'projects/p'"),
    "credentials": ("authError", 401, "Invalid Credentials"),
    "disabled": (
        "accessNotConfigured",
        403,
        "Compute Engine API has not been used in project 1 before or it is disabled.",
    ),
    "bad_parameter": ("invalid", 400, "Invalid value for field 'resource.machineType'"),
    "internal": ("internalError", 500, "Internal Error"),
    "unavailable": ("backendError", 503, "Internal error. Please try again or contact Google Support."),
    "cut": ("", 0, ""),
}
"""What can be asked for: the vendor's code, HTTP status and words. Status 0: in the operation of a request that is
accepted; ``cut`` closes the connection without a word."""


def in_operation(kind: str) -> bool:
    """Whether a fault is told by the operation."""
    return kind not in ("", "cut") and CODES[kind][1] == 0


class Faults(OrderedFaults):
    """Faults that were ordered, and the vendor's rates."""

    def __init__(self, *, throttle: bool, now: Callable[[], float]) -> None:
        """Args: throttle: at the documented rates."""
        super().__init__(CODES)
        self._throttle = throttle
        self._used: dict[tuple[str, str], tuple[int, int]] = {}
        self._now = now

    def throttled(self, region: str, method: str) -> bool:
        """Whether the project is too fast."""
        if not self._throttle:
            return False
        _, collection, verb = [*method.rsplit(".", 2), ""][:3]
        group = "operations" if "Operations" in collection else "lists" if verb.endswith(("list", "List")) else verb
        group = group if group in ("operations", "lists", "get") else "changes"
        minute = int(self._now() // 60)
        at, used = self._used.get((region, group), (minute, 0))
        used = used + 1 if at == minute else 1
        self._used[region, group] = (minute, used)
        return used > REQUESTS_PER_MINUTE
