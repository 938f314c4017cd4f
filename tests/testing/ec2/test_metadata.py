"""The fake's metadata service, asked by the agent's own watch."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import pkcs7

from everstep.agent import notices
from everstep.agent.clock import Clock
from everstep.agent.notices import MetadataDown, Notice, NoticeWatcher
from everstep.agent.notices.kinds import ask
from everstep.testing.ec2 import FakeEc2
from tests.agent.conftest import until
from tests.testing.ec2.conftest import Time, launch, machine

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
REQUIRED = {"MetadataOptions": {"HttpTokens": "required"}}


@pytest.fixture
def spot(ec2: Any, time: Time) -> str:
    return launch(ec2, time, **machine(spot=True, **REQUIRED))


def watch_of(fake: FakeEc2, instance: str) -> notices.Watch:
    (watch,) = notices.watches(f"aws={fake.metadata.url(instance)}", Clock())
    return watch


def token_of(fake: FakeEc2, instance: str, ttl_s: int = 60) -> str:
    url = fake.metadata.url(instance)
    status, token, _ = ask(url, "/latest/api/token", method="PUT", headers={TTL: str(ttl_s)})
    assert status == 200
    return token


def told(fake: FakeEc2, instance: str, path: str) -> str:
    status, body, _ = ask(fake.metadata.url(instance), path, headers={TOKEN: token_of(fake, instance)})
    assert status == 200, path
    return body


def test_the_agent_hears_what_is_announced(fake: FakeEc2, spot: str, time: Time) -> None:
    watch = watch_of(fake, spot)
    assert watch.poll() == []
    fake.recommend_rebalance(spot)
    assert watch.poll() == [Notice("rebalance", None)]
    fake.schedule_maintenance(spot, at=time.at + 900)
    assert watch.poll() == [Notice("maintenance", time.at + 900), Notice("rebalance", None)]
    deadline = fake.interrupt(spot)
    assert watch.poll()[0] == Notice("terminate", deadline)
    assert deadline == time.at + 120


def test_the_agent_hears_it_once_over_lost_tokens(fake: FakeEc2, spot: str) -> None:
    found: list[Notice] = []
    watch = watch_of(fake, spot)
    watch.interval_s = 0.01
    watcher = NoticeWatcher([watch], found.append)
    watcher.start()
    try:
        until(lambda: len(fake.metadata.asked) > 6, "some polls")
        fake.metadata.forget_tokens()
        deadline = fake.interrupt(spot)
        until(lambda: found, "the notice")
        asked = len(fake.metadata.asked)
        until(lambda: len(fake.metadata.asked) > asked + 9, "more polls")
    finally:
        watcher.stop()
    assert found == [Notice("terminate", deadline)]


def test_the_notice_of_one_machine_is_not_that_of_another(fake: FakeEc2, ec2: Any, spot: str, time: Time) -> None:
    other = launch(ec2, time, **machine(spot=True, **REQUIRED))
    fake.interrupt(spot)
    assert watch_of(fake, other).poll() == []
    url = fake.metadata.url(other)
    assert ask(url, "/latest/meta-data/instance-id", headers={TOKEN: token_of(fake, spot)})[0] == 401


def test_tokens_are_demanded_and_run_out(fake: FakeEc2, spot: str, time: Time) -> None:
    url = fake.metadata.url(spot)
    assert ask(url, "/latest/meta-data/instance-id")[0] == 401
    token = token_of(fake, spot, 10)
    assert ask(url, "/latest/meta-data/instance-id", headers={TOKEN: token})[:2] == (200, spot)
    time.at += 10
    assert ask(url, "/latest/meta-data/instance-id", headers={TOKEN: token})[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 400), ({TTL: "0"}, 400), ({TTL: "21601"}, 400), ({TTL: "60", "X-Forwarded-For": "10.0.0.1"}, 403)],
)
def test_tokens_that_are_not_given(fake: FakeEc2, spot: str, headers: dict[str, str], status: int) -> None:
    assert ask(fake.metadata.url(spot), "/latest/api/token", method="PUT", headers=headers)[0] == status


def test_a_machine_that_is_gone_answers_nothing(fake: FakeEc2, ec2: Any, spot: str, time: Time) -> None:
    ec2.terminate_instances(InstanceIds=[spot])
    time.at += 31
    with pytest.raises(MetadataDown, match="HTTP 404"):
        watch_of(fake, spot).poll()


def test_the_identity_document_is_signed(fake: FakeEc2, spot: str) -> None:
    document = told(fake, spot, "/latest/dynamic/instance-identity/document")
    about = json.loads(document)
    assert (about["instanceId"], about["region"], about["availabilityZone"]) == (spot, "us-east-1", "us-east-1a")
    key = x509.load_pem_x509_certificate(fake.signer.certificate_pem).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    signature = base64.b64decode(told(fake, spot, "/latest/dynamic/instance-identity/signature"))
    key.verify(signature, document.encode(), padding.PKCS1v15(), hashes.SHA256())
    with pytest.raises(InvalidSignature):
        key.verify(signature, document.replace(spot, "i-0").encode(), padding.PKCS1v15(), hashes.SHA256())
    pkcs = base64.b64decode(told(fake, spot, "/latest/dynamic/instance-identity/rsa2048"))
    assert document.encode() in pkcs
    assert pkcs7.load_der_pkcs7_certificates(pkcs)[0].public_key() == key


def test_user_data_and_places(fake: FakeEc2, ec2: Any, time: Time) -> None:
    made = launch(ec2, time, **machine(UserData="#!/bin/sh\necho hello\n", **REQUIRED))
    assert told(fake, made, "/latest/user-data") == "#!/bin/sh\necho hello\n"
    assert told(fake, made, "/latest/meta-data/placement/availability-zone") == "us-east-1a"
    assert told(fake, made, "/latest/meta-data/instance-life-cycle") == "on-demand"
