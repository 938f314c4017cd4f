"""What EC2 says when it says no, and what that means to us.

The codes are those of https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (EC2) and
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/CommonErrors.html (all services, also the price list).
Whatever is not listed is a BadRequest if the vendor calls it the client's fault (HTTP 4xx), else Unreachable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.model.errors import (
    BadRequest,
    NoCapacity,
    PriceAboveMax,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unreachable,
)

MEANINGS: Mapping[str, type[ProviderError]] = {
    # The pool has none now.
    "InsufficientInstanceCapacity": NoCapacity,
    "InsufficientHostCapacity": NoCapacity,
    "InsufficientCapacity": NoCapacity,
    "InsufficientReservedInstanceCapacity": NoCapacity,
    "InsufficientVolumeCapacity": NoCapacity,
    "InsufficientAddressCapacity": NoCapacity,
    "InsufficientFreeAddressesInSubnet": NoCapacity,
    "UnfulfillableCapacity": NoCapacity,
    # "Your requested instance type is not supported in your requested Availability Zone": another pool may have it.
    "Unsupported": NoCapacity,
    # The account may not hold more.
    "InstanceLimitExceeded": QuotaExceeded,
    "VcpuLimitExceeded": QuotaExceeded,
    "MaxSpotInstanceCountExceeded": QuotaExceeded,
    "VolumeLimitExceeded": QuotaExceeded,
    "MaxIOPSLimitExceeded": QuotaExceeded,
    "NetworkInterfaceLimitExceeded": QuotaExceeded,
    "PrivateIpAddressLimitExceeded": QuotaExceeded,
    "AttachmentLimitExceeded": QuotaExceeded,
    "ResourceLimitExceeded": QuotaExceeded,
    # The market is dearer than our maximum.
    "SpotMaxPriceTooLow": PriceAboveMax,
    # Too fast.
    "RequestLimitExceeded": Throttled,
    "EC2ThrottledException": Throttled,
    "Throttling": Throttled,
    "ThrottlingException": Throttled,
    "ThrottledException": Throttled,
    "RequestThrottled": Throttled,
    "RequestThrottledException": Throttled,
    "TooManyRequestsException": Throttled,
    "BandwidthLimitExceeded": Throttled,
    "SlowDown": Throttled,
    "PriorRequestNotComplete": Throttled,
    # "The same client token ... while a previous request is still being processed".
    "ConcurrentIdempotentRequest": Throttled,
    # Who we are, and what we may.
    "AuthFailure": Unauthorized,
    "AccessDenied": Unauthorized,
    "AccessDeniedException": Unauthorized,
    "UnauthorizedOperation": Unauthorized,
    "Blocked": Unauthorized,
    "ExpiredToken": Unauthorized,
    "ExpiredTokenException": Unauthorized,
    "IncompleteSignature": Unauthorized,
    "InvalidClientTokenId": Unauthorized,
    "InvalidSignatureException": Unauthorized,
    "MissingAuthenticationToken": Unauthorized,
    "NotAuthorized": Unauthorized,
    "OptInRequired": Unauthorized,
    "PendingVerification": Unauthorized,
    "RequestExpired": Unauthorized,
    "SignatureDoesNotMatch": Unauthorized,
    "UnrecognizedClientException": Unauthorized,
    # The vendor's own trouble: the effect may have happened.
    "InternalError": Unreachable,
    "InternalFailure": Unreachable,
    "InternalServerError": Unreachable,
    "RequestTimeout": Unreachable,
    "ServerInternal": Unreachable,
    "ServiceUnavailable": Unreachable,
    "Unavailable": Unreachable,
}
"""Vendor's code to meaning."""

GONE = (
    "InvalidInstanceID.NotFound",
    "InvalidInstanceID.Malformed",
    "InvalidVolume.NotFound",
    "InvalidVolumeID.Malformed",
)
"""There is no such thing (any more, or not yet: EC2 is eventually consistent)."""


def code_of(error: BaseException) -> str:
    """The vendor's code behind one of our errors, empty if it has none."""
    response = getattr(error.__cause__, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def meaning_of(error: Exception, action: str) -> ProviderError:
    """The typed error of what boto3 raised. Its text is the vendor's code and words.

    Args:
        error: what was raised.
        action: the call, for the text: ``RunInstances in us-east-1``.
    """
    from botocore import exceptions as vendor

    if isinstance(error, vendor.ClientError):
        return _answered(error.response, action)
    credentials = (
        vendor.NoCredentialsError,
        vendor.PartialCredentialsError,
        vendor.CredentialRetrievalError,
        vendor.NoAuthTokenError,
        vendor.ProfileNotFound,
        vendor.SSOError,
        vendor.TokenRetrievalError,
    )
    if isinstance(error, credentials):
        return Unauthorized(f"{action}: {error}; see 'Credentials' in docs/aws.md")
    if isinstance(error, vendor.ParamValidationError | vendor.NoRegionError | vendor.InvalidRegionError):
        return BadRequest(f"{action}: {error}")
    # Broken connections, time-outs, answers that cannot be read: nobody knows what happened.
    return Unreachable(f"{action}: {error}")


def _answered(response: Mapping[str, Any], action: str) -> ProviderError:
    fault = response.get("Error", {})
    about = response.get("ResponseMetadata", {})
    code = str(fault.get("Code", ""))
    kind = MEANINGS.get(code)
    if kind is None:
        kind = BadRequest if 400 <= int(about.get("HTTPStatusCode", 500)) < 500 else Unreachable
    after = str(about.get("HTTPHeaders", {}).get("retry-after", ""))
    return kind(
        f"{action}: {code}: {fault.get('Message', '')}", retry_after_s=float(after) if after.isdigit() else None
    )
