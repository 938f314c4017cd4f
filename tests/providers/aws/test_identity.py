"""Who may join: the machine that EC2 signs for, and no other."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent import identity as agent_identity
from everstep.agent.notices import MetadataDown
from everstep.model.errors import BadInput, NotAuthorized
from everstep.model.ids import InstanceId
from everstep.model.offers import MachineType, Market, Offer
from everstep.providers.aws.identity import PUBLISHED, IdentityCheck
from everstep.testing.ec2.identity import Signer
from tests.providers.aws.conftest import MakeFake
from tests.testing.ec2.conftest import client, machine

ME = InstanceId("i-0123456789abcdef0")
OFFER = Offer("aws", "us-east-1", "us-east-1a", MachineType("m5.large"), Market.SPOT, 0.04, 0.096, 0.0, "test")
DOCUMENT = {"instanceId": str(ME), "region": "us-east-1", "availabilityZone": "us-east-1a", "version": "2017-09-30"}
SIGNER = Signer()


def signed(document: Any) -> dict[str, str]:
    text = document if isinstance(document, str) else json.dumps(document)
    return {"document": text, "signature": SIGNER.signature(text)}


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> IdentityCheck:
    file = tmp_path_factory.mktemp("keys") / "more.pem"
    file.write_bytes(SIGNER.certificate_pem)
    return IdentityCheck(file)


def test_a_machine_shows_what_the_vendor_signed(check: IdentityCheck, make_fake: MakeFake, tmp_path: Path) -> None:
    fake = make_fake(boot_s=0.0, hidden_s=0.0)
    launch = {**machine(kind="m5.large"), "MetadataOptions": {"HttpTokens": "required"}}
    made = client(fake.url).run_instances(**launch)["Instances"][0]["InstanceId"]
    proof = agent_identity.proof(f"aws={fake.metadata.url(made)}", "https://server")
    (tmp_path / "fake.pem").write_bytes(fake.signer.certificate_pem)
    its_own = IdentityCheck(str(tmp_path / "fake.pem"))
    its_own.check(InstanceId(made), OFFER, proof)
    with pytest.raises(NotAuthorized, match="another machine: instanceId"):
        its_own.check(ME, OFFER, proof)
    with pytest.raises(NotAuthorized, match="no key of AWS"):
        check.check(InstanceId(made), OFFER, proof)  # another account's fake, another key
    with pytest.raises(MetadataDown, match="HTTP 404"):
        agent_identity.proof(f"aws={fake.metadata.url('i-0')}", "https://server")
    assert agent_identity.proof("local=http://127.0.0.1:1/i-0", "https://server") == {}


def test_only_what_was_signed_counts(check: IdentityCheck) -> None:
    good = signed(DOCUMENT)
    check.check(ME, OFFER, good)
    stolen = good | {"document": good["document"].replace(str(ME), "i-0fedcba9876543210")}
    with pytest.raises(NotAuthorized, match="no key of AWS"):
        check.check(InstanceId("i-0fedcba9876543210"), OFFER, stolen)
    with pytest.raises(NotAuthorized, match="no key of AWS"):
        check.check(ME, OFFER, good | {"document": good["document"] + " "})
    for missing in ({}, {"document": good["document"]}, {"signature": good["signature"]}):
        with pytest.raises(NotAuthorized, match="shows no identity document"):
            check.check(ME, OFFER, missing)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"instanceId": "i-0"}, "instanceId"), ({"region": "eu-west-1"}, "region"), ({"availabilityZone": None}, "avail")],
)
def test_a_machine_elsewhere_is_another_machine(check: IdentityCheck, change: dict[str, Any], named: str) -> None:
    with pytest.raises(NotAuthorized, match=f"another machine: {named}"):
        check.check(ME, OFFER, signed(DOCUMENT | change))
    with pytest.raises(NotAuthorized, match="another machine: availabilityZone"):
        check.check(ME, replace(OFFER, zone="us-east-1b"), signed(DOCUMENT))


@pytest.mark.parametrize("text", ["", "[]", "7", '"i-0"', "{", "[" * 5000, '{"instanceId": ["i-0"]}'])
def test_signed_nonsense_is_refused_in_words(check: IdentityCheck, text: str) -> None:
    with pytest.raises(NotAuthorized):
        check.check(ME, OFFER, signed(text))


@given(document=st.text(max_size=40), signature=st.text(max_size=40))
def test_anything_else_is_refused_in_words(check: IdentityCheck, document: str, signature: str) -> None:
    with pytest.raises(NotAuthorized):
        check.check(ME, OFFER, {"document": document, "signature": signature})


def test_the_shipped_certificates_are_whole() -> None:
    """Each is signed by its own key, so not a digit of it is wrong; whose it is, only AWS's page can tell."""
    certificates = x509.load_pem_x509_certificates(PUBLISHED)
    keys = []
    for certificate in certificates:
        key = certificate.public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        assert certificate.signature_hash_algorithm is not None
        signature = (certificate.signature, certificate.tbs_certificate_bytes)
        key.verify(*signature, padding.PKCS1v15(), certificate.signature_hash_algorithm)
        assert certificate.subject.rfc4514_string().startswith("O=Amazon Web Services LLC")
        keys.append(key.public_numbers().n)
    assert len(set(keys)) == len(keys) == 2
    shipped = IdentityCheck(None)
    with pytest.raises(NotAuthorized, match="no key of AWS"):
        shipped.check(ME, OFFER, signed(DOCUMENT))
    assert shipped.covers("us-east-1")
    assert not shipped.covers("af-south-1"), "a region with a key of its own, as doctor says"


def test_a_file_without_certificates_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    torn = SIGNER.certificate_pem[:200] + base64.b64encode(b"x") + SIGNER.certificate_pem[200:]
    (tmp_path / "torn.pem").write_bytes(torn)
    for name in ("missing.pem", "empty.pem", "torn.pem"):
        with pytest.raises(BadInput, match="identity_certificates"):
            IdentityCheck(tmp_path / name)
