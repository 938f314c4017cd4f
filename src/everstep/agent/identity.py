"""What the vendor says about this machine and signed: shown to the server when we join."""

from __future__ import annotations

from typing import Callable
from urllib.parse import quote

from everstep.agent.notices.ec2 import TOKEN_PATH
from everstep.agent.notices.kinds import MetadataDown, ask

_DOCUMENT_PATH = "/latest/dynamic/instance-identity/document"
_SIGNATURE_PATH = "/latest/dynamic/instance-identity/signature"
_GCP_PATH = "/computeMetadata/v1/instance/service-accounts/default/identity"
_TIMEOUT_S = 5.0


def proof(metadata: str, audience: str) -> dict[str, str]:
    """``JOIN_IDENTITY`` of this machine by its ``FLAVOUR=URL``; empty where nobody signs anything.

    Args:
        metadata: as in ``notices.watches``.
        audience: whom it is for, the server's URL; for flavours whose proof has one.

    Raises:
        MetadataDown: the service does not answer, or not in its own manner. Try again.
    """
    flavour, _, url = metadata.partition("=")
    ask_for = _FLAVOURS.get(flavour)
    return {} if ask_for is None else ask_for(url.rstrip("/"), audience)


def _aws(url: str, audience: str) -> dict[str, str]:
    """The identity document and its signature:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
    """
    url = url or "http://169.254.169.254"
    token = _told(url, TOKEN_PATH, "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token}
    # As it stands: the signature is one of these very bytes.
    return {
        "document": _told(url, _DOCUMENT_PATH, "GET", headers),
        "signature": _told(url, _SIGNATURE_PATH, "GET", headers),
    }


def _gcp(url: str, audience: str) -> dict[str, str]:
    """A token for our server:
    https://cloud.google.com/compute/docs/instances/verifying-instance-identity
    """
    url = url or "http://metadata.google.internal"
    path = f"{_GCP_PATH}?audience={quote(audience, safe='')}&format=full"
    return {"token": _told(url, path, "GET", {"Metadata-Flavor": "Google"}).strip()}


_FLAVOURS: dict[str, Callable[[str, str], dict[str, str]]] = {"aws": _aws, "gcp": _gcp}


def _told(url: str, path: str, method: str, headers: dict[str, str]) -> str:
    status, body, _ = ask(url, path, method=method, headers=headers, timeout_s=_TIMEOUT_S)
    if status != 200:
        raise MetadataDown(f"{url}{path.partition('?')[0]}: HTTP {status}")
    return body
