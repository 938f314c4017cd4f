"""Is a machine who it says? EC2 signs a document about each; AWS publishes the certificates that verify it.

The agent shows the document and its base64 signature, RSA (PKCS #1 v1.5) over SHA-256
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-signature.html). Together with the one-time token this
means: whoever joins is (or controls) the very machine that the launch answered with; user data that leaked is not
enough. The key has 1,024 bits, which is AWS's choice for this signature; it is a second lock, not the only one.

The certificates are those of the page https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/regions-certs.html, tab RSA.
Certificates of these two keys differ by region in number and date only, so one of each is kept; the dates are not
looked at, since the key is what was published. Regions that are opt-in have keys of their own: the option
``identity_certificates`` names a file with more.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.model.errors import BadInput, NotAuthorized, Problem
from everstep.model.ids import InstanceId
from everstep.model.offers import Offer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

PUBLISHED = b"""\
Commercial regions that need no opt-in, here as of us-west-2
-----BEGIN CERTIFICATE-----
MIIDITCCAoqgAwIBAgIUFx8PxCkbHwpD31bOyCtyz3GclbgwDQYJKoZIhvcNAQEL
BQAwXDELMAkGA1UEBhMCVVMxGTAXBgNVBAgTEFdhc2hpbmd0b24gU3RhdGUxEDAO
BgNVBAcTB1NlYXR0bGUxIDAeBgNVBAoTF0FtYXpvbiBXZWIgU2VydmljZXMgTExD
MB4XDTI0MDQyOTE3MjM1OVoXDTI5MDQyODE3MjM1OVowXDELMAkGA1UEBhMCVVMx
GTAXBgNVBAgTEFdhc2hpbmd0b24gU3RhdGUxEDAOBgNVBAcTB1NlYXR0bGUxIDAe
BgNVBAoTF0FtYXpvbiBXZWIgU2VydmljZXMgTExDMIGfMA0GCSqGSIb3DQEBAQUA
A4GNADCBiQKBgQCHvRjf/0kStpJ248khtIaN8qkDN3tkw4VjvA9nvPl2anJO+eIB
UqPfQG09kZlwpWpmyO8bGB2RWqWxCwuB/dcnIob6w420k9WY5C0IIGtDRNauN3ku
vGXkw3HEnF0EjYr0pcyWUvByWY4KswZV42X7Y7XSS13hOIcL6NLA+H94/QIDAQAB
o4HfMIHcMAsGA1UdDwQEAwIHgDAdBgNVHQ4EFgQUJdbMCBXKtvCcWdwUUizvtUF2
UTgwgZkGA1UdIwSBkTCBjoAUJdbMCBXKtvCcWdwUUizvtUF2UTihYKReMFwxCzAJ
BgNVBAYTAlVTMRkwFwYDVQQIExBXYXNoaW5ndG9uIFN0YXRlMRAwDgYDVQQHEwdT
ZWF0dGxlMSAwHgYDVQQKExdBbWF6b24gV2ViIFNlcnZpY2VzIExMQ4IUFx8PxCkb
HwpD31bOyCtyz3GclbgwEgYDVR0TAQH/BAgwBgEB/wIBADANBgkqhkiG9w0BAQsF
AAOBgQBzOl+9Xy1+UsbUBI95HO9mbbdnuX+aMJXgG9uFZNjgNEbMcvx+h8P9IMko
z7PzFdheQQ1NLjsHH9mSR1SyC4m9ja6BsejH5nLBWyCdjfdP3muZM4O5+r7vUa1O
dWU+hP/T7DUrPAIVMOE7mpYa+WPWJrN6BlRwQkKQ7twm9kDalA==
-----END CERTIFICATE-----
AWS GovCloud (US), here as of us-gov-west-1
-----BEGIN CERTIFICATE-----
MIIDITCCAoqgAwIBAgIUe5wGF3jfb7lUHzvDxmM/ktGCLwwwDQYJKoZIhvcNAQEL
BQAwXDELMAkGA1UEBhMCVVMxGTAXBgNVBAgTEFdhc2hpbmd0b24gU3RhdGUxEDAO
BgNVBAcTB1NlYXR0bGUxIDAeBgNVBAoTF0FtYXpvbiBXZWIgU2VydmljZXMgTExD
MB4XDTI0MDUwNzE3MzAzMloXDTI5MDUwNjE3MzAzMlowXDELMAkGA1UEBhMCVVMx
GTAXBgNVBAgTEFdhc2hpbmd0b24gU3RhdGUxEDAOBgNVBAcTB1NlYXR0bGUxIDAe
BgNVBAoTF0FtYXpvbiBXZWIgU2VydmljZXMgTExDMIGfMA0GCSqGSIb3DQEBAQUA
A4GNADCBiQKBgQCpohwYUVPH9I7Vbkb3WMe/JB0Y/bmfVj3VpcK445YBRO9K80al
esjgBc2tAX4KYg4Lht4EBKccLHTzaNi51YEGX1aLNrSmxhz1+WtzNLNUsyY3zD9z
vwX/3k1+JB2dRA+m+Cpwx4mjzZyAeQtHtegVaAytkmqtxQrSCexBxvqRqQIDAQAB
o4HfMIHcMAsGA1UdDwQEAwIHgDAdBgNVHQ4EFgQU1ZXneBYnPvYXkHVlVjg7918V
gE8wgZkGA1UdIwSBkTCBjoAU1ZXneBYnPvYXkHVlVjg7918VgE+hYKReMFwxCzAJ
BgNVBAYTAlVTMRkwFwYDVQQIExBXYXNoaW5ndG9uIFN0YXRlMRAwDgYDVQQHEwdT
ZWF0dGxlMSAwHgYDVQQKExdBbWF6b24gV2ViIFNlcnZpY2VzIExMQ4IUe5wGF3jf
b7lUHzvDxmM/ktGCLwwwEgYDVR0TAQH/BAgwBgEB/wIBADANBgkqhkiG9w0BAQsF
AAOBgQCbTdpx1Iob9SwUReY4exMnlwQlmkTLyA8tYGWzchCJOJJEPfsW0ryy1A0H
YIuvyUty3rJdp9ib8h3GZR71BkZnNddHhy06kPs4p8ewF8+d8OWtOJQcI+ZnFfG4
KyM4rUsBrljpG2aOCm12iACEyrvgJJrS8VZwUDZS6mZEnn/lhA==
-----END CERTIFICATE-----
"""


_PUBLISHED_FOR = frozenset(
    f"{part}-{number}"
    for part, numbers in {
        "ap-northeast": "123",
        "ap-south": "1",
        "ap-southeast": "12",
        "ca-central": "1",
        "eu-central": "1",
        "eu-north": "1",
        "eu-west": "123",
        "sa-east": "1",
        "us-east": "12",
        "us-gov-east": "1",
        "us-gov-west": "1",
        "us-west": "12",
    }.items()
    for number in numbers
)


class IdentityCheck:
    """Checks proofs against AWS's keys and those of a file.

    Args:
        certificates: file with more certificates, PEM; None = AWS's own above.

    Raises:
        BadInput: the file has none, or the package that verifies signatures is not installed.
    """

    def __init__(self, certificates: str | Path | None) -> None:
        self._file = None if certificates is None else Path(certificates).expanduser()
        self._keys = self._read()

    def covers(self, region: str) -> bool:
        """Whether machines of a region can be checked, as far as can be told: what a file covers, it does not say."""
        return self._file is not None or region in _PUBLISHED_FOR

    def check(self, instance: InstanceId, offer: Offer, proof: Mapping[str, str]) -> None:
        """Returns if AWS says that the proof's machine is ``instance`` in the region of ``offer``.

        Raises:
            NotAuthorized: it does not; says why.
        """
        text, signature = proof.get("document", ""), proof.get("signature", "")
        if not text or not signature:
            raise NotAuthorized(f"{instance} shows no identity document of EC2 with its signature")
        if not any(_signed(key, text, signature) for key in self._keys):
            fix = "if its region is opt-in, see identity_certificates in docs/aws.md"
            raise NotAuthorized(f"the identity document of {instance} is signed by no key of AWS that is known ({fix})")
        try:
            document: dict[str, Any] = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise NotAuthorized(f"the identity document of {instance} is not JSON") from None
        wanted = {"instanceId": str(instance), "region": offer.region, "availabilityZone": offer.zone}
        for name, value in wanted.items():
            if document.get(name) != value:
                raise NotAuthorized(f"this is the identity of another machine: {name} is not {value}")

    def _read(self) -> list[RSAPublicKey]:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        except ImportError:
            fix = "pip install 'everstep[aws]'"
            raise BadInput(Problem("provider", "aws", "needs cryptography, which is not installed", fix)) from None
        try:
            pem = PUBLISHED + (b"" if self._file is None else self._file.read_bytes())
            keys = [c.public_key() for c in x509.load_pem_x509_certificates(pem)]
            if self._file is not None and not x509.load_pem_x509_certificates(self._file.read_bytes()):
                raise ValueError("no certificate in it")
        except (OSError, ValueError) as error:
            raise BadInput(Problem("config.yaml", "providers.aws.identity_certificates", str(error))) from None
        return [k for k in keys if isinstance(k, RSAPublicKey)]


def _signed(key: RSAPublicKey, text: str, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    try:
        key.verify(base64.b64decode(signature), text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True
