"""URLs for Google Cloud Storage: there is no server to try them on; the signature is what its documentation asks for.

https://cloud.google.com/storage/docs/authentication/signatures
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from everstep.blobs import open_blobs

pytestmark = pytest.mark.xdist_group("s3")


async def test_urls_are_signed_by_the_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding

    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "private_key": private.decode(), "private_key_id": "1", "client_email": "a@b"}
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    blobs = open_blobs("gs://bucket/jobs")
    for method in ("GET", "PUT"):
        url = urlsplit(await blobs.presign("j-1/a b/ü", method=method, ttl_s=900) or "")
        told = dict(parse_qsl(url.query))
        assert (url.netloc, url.path) == ("storage.googleapis.com", "/bucket/jobs/j-1/a%20b/%C3%BC")
        assert (told["X-Goog-Expires"], told["X-Goog-SignedHeaders"]) == ("900", "host")
        query = "&".join(sorted(part for part in url.query.split("&") if not part.startswith("X-Goog-Signature=")))
        request = "\n".join([method, url.path, query, f"host:{url.netloc}\n", "host", "UNSIGNED-PAYLOAD"])
        scope = told["X-Goog-Credential"].partition("/")[2]
        digest = hashlib.sha256(request.encode()).hexdigest()
        to_sign = "\n".join(["GOOG4-RSA-SHA256", told["X-Goog-Date"], scope, digest])
        signature = bytes.fromhex(told["X-Goog-Signature"])
        key.public_key().verify(signature, to_sign.encode(), padding.PKCS1v15(), hashes.SHA256())
