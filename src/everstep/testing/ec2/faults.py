"""The vendor misbehaves on command: errors before or after the effect, late answers, broken connections, throttling."""

from __future__ import annotations

from collections.abc import Callable

from everstep.testing.ec2.market import Bucket
from everstep.testing.faults import OrderedFaults

DOCUMENTED = {
    # https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html: bucket, refill per second. Its tables
    # change; only the figures of Describe were compared with the page, so look before you rely on the others.
    "RunInstances": (5.0, 2.0),
    "TerminateInstances": (100.0, 5.0),
    "Describe": (100.0, 20.0),
    "": (50.0, 5.0),
}
"""Requests by API: its own bucket each; ``Describe`` for all that only reads, ``""`` for the rest."""
CODES = {
    "stock_out": ("InsufficientInstanceCapacity", 500, "We currently do not have sufficient capacity."),
    "quota": ("VcpuLimitExceeded", 400, "You have requested more vCPU capacity than your current vCPU limit."),
    "spot_quota": ("MaxSpotInstanceCountExceeded", 400, "Max spot instance count exceeded"),
    "price": ("SpotMaxPriceTooLow", 400, "Your Spot request price is lower than the minimum required."),
    "throttle": ("RequestLimitExceeded", 503, "Request limit exceeded."),
    "permission": ("UnauthorizedOperation", 403, "You are not authorized to perform this operation."),
    "credentials": ("AuthFailure", 401, "AWS was not able to validate the provided access credentials"),
    "bad_parameter": ("InvalidParameterValue", 400, "Invalid value."),
    "internal": ("InternalError", 500, "An internal error has occurred"),
    "unavailable": ("Unavailable", 503, "The service is unavailable. Please try again shortly."),
    "cut": ("", 0, ""),
}
"""What can be asked for: the vendor's code, HTTP status and words. ``cut`` closes the connection without a word."""


class Faults(OrderedFaults):
    """Faults that were ordered, and the vendor's rates."""

    def __init__(self, *, throttle: bool, now: Callable[[], float]) -> None:
        """Args: throttle: at the documented rates."""
        super().__init__(CODES)
        self._throttle = throttle
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._now = now

    def throttled(self, region: str, operation: str) -> bool:
        """Whether the account is too fast."""
        if not self._throttle:
            return False
        reads = operation.startswith(("Describe", "Get"))
        key = operation if operation in DOCUMENTED else "Describe" if reads else ""
        bucket = self._buckets.setdefault((region, operation), Bucket(*DOCUMENTED[key]))
        return not bucket.take(self._now())
