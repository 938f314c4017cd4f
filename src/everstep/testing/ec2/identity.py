"""Instance identity documents, signed with a key of the fake's own instead of AWS's.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html: ``document`` is JSON;
``signature`` is the base64 of an RSA (PKCS #1 v1.5) signature of its SHA-256; ``rsa2048`` is a PKCS #7 structure that
holds the document, base64 without header lines. Whoever checks them needs the certificate: ``Signer.certificate_pem``.
"""

from __future__ import annotations

import base64
import functools
import json
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from everstep.testing.ec2.books import Machine

_KEY_BITS = 2048
_LINE = 64


class Signer:
    """A key and its self-signed certificate, made anew for each fake, when they are first asked for."""

    @functools.cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)

    @functools.cached_property
    def _certificate(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Fake Web Services LLC")])
        today = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=3650))
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate_pem(self) -> bytes:
        """What verifies the signatures, as AWS publishes one per region."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def signature(self, document: str) -> str:
        """As at ``/latest/dynamic/instance-identity/signature``."""
        signed = self._key.sign(document.encode(), padding.PKCS1v15(), hashes.SHA256())
        return _lines(signed)

    def rsa2048(self, document: str) -> str:
        """As at ``/latest/dynamic/instance-identity/rsa2048``."""
        builder = pkcs7.PKCS7SignatureBuilder().set_data(document.encode())
        builder = builder.add_signer(self._certificate, self._key, hashes.SHA256())
        options = [pkcs7.PKCS7Options.Binary, pkcs7.PKCS7Options.NoAttributes]
        return _lines(builder.sign(serialization.Encoding.DER, options))


def document_of(machine: Machine, account: str) -> str:
    """The identity document of a machine."""
    pending = datetime.fromtimestamp(int(machine.launched_at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(
        {
            "accountId": account,
            "architecture": "x86_64",
            "availabilityZone": machine.zone,
            "billingProducts": None,
            "devpayProductCodes": None,
            "marketplaceProductCodes": None,
            "imageId": machine.image,
            "instanceId": machine.id,
            "instanceType": machine.kind,
            "kernelId": None,
            "pendingTime": pending,
            "privateIp": machine.address,
            "ramdiskId": None,
            "region": machine.region,
            "version": "2017-09-30",
        },
        indent=2,
    )


def _lines(data: bytes) -> str:
    text = base64.b64encode(data).decode()
    return "\n".join(text[i : i + _LINE] for i in range(0, len(text), _LINE))
