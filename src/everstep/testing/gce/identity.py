"""Identity tokens of machines, signed with a key of the fake's own instead of Google's.

https://docs.cloud.google.com/compute/docs/instances/verifying-instance-identity: a JWT (RS256) with ``aud`` as asked,
``sub`` the number of the service account, an hour of life; with ``format=full`` it says which machine has it. Whoever
checks them needs the certificates that Google publishes at https://www.googleapis.com/oauth2/v1/certs: the fake has
its own at ``/oauth2/v1/certs``.
"""

from __future__ import annotations

import base64
import functools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from everstep.testing.gce.books import Machine, Project

_KEY_BITS = 2048
_LIFE_S = 3600
_SKEW_S = 300
ISSUER = "https://accounts.google.com"


class Signer:
    """A key, made anew for each fake, when it is first asked for.

    Attributes:
        issued: every token that was signed.
    """

    key_id = "fake-key-1"

    def __init__(self) -> None:
        self.issued: list[str] = []

    @functools.cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)

    @functools.cached_property
    def _certificate(self) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federated-signon.system.fake.example")])
        today = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=3650))
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def private_key_pem(self) -> str:
        """The key itself, for service accounts of the fake."""
        none = serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none).decode()

    def certificates(self) -> dict[str, str]:
        """Certificates by the key's id, PEM, as Google publishes them."""
        return {self.key_id: self._certificate}

    def token(self, claims: dict[str, Any]) -> str:
        """A signed JWT."""
        header = {"alg": "RS256", "kid": self.key_id, "typ": "JWT"}
        signed = ".".join(_part(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.issued.append(f"{signed}.{_part(signature)}")
        return self.issued[-1]

    def is_own(self, token: str, now: float) -> bool:
        """Whether it is what a client makes of our service account's key instead of asking for a token: a JWT that the
        key signed and whose time has come (https://developers.google.com/identity/protocols/oauth2/service-account
        #jwt-auth).
        """
        signed, _, signature = token.rpartition(".")
        try:
            _, claims = (json.loads(_whole(part)) for part in signed.split("."))
            self._key.public_key().verify(_whole(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            return bool(claims["iat"] - _SKEW_S <= now < claims["exp"])
        except (ValueError, LookupError, TypeError, InvalidSignature):
            return False


def claims_of(machine: Machine, project: Project, audience: str, now: float, *, full: bool) -> dict[str, Any]:
    """What the token of a machine says."""
    account = f"{project.number}-compute@developer.gserviceaccount.com"
    claims: dict[str, Any] = {
        "aud": audience,
        "azp": str(project.number),
        "sub": str(project.number),
        "email": account,
        "email_verified": True,
        "iss": ISSUER,
        "iat": int(now),
        "exp": int(now) + _LIFE_S,
    }
    if full:
        claims["google"] = {
            "compute_engine": {
                "project_id": project.id,
                "project_number": project.number,
                "zone": machine.zone,
                "instance_id": str(machine.id),
                "instance_name": machine.name,
                "instance_creation_timestamp": int(machine.inserted_at),
            }
        }
    return claims


def _whole(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
