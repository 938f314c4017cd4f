from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from botocore.loaders import create_loader

from everstep.model.ids import DeploymentId
from everstep.providers.aws import AwsProvider
from everstep.providers.aws.tags import DEPLOYMENT
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World

KEY = "AKIATESTTESTTESTTEST"
QUICK = Timing(notice_s=2.0, boot_s=0.1, shut_down_s=0.2, hidden_s=0.15)
WORLD = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)]),
        ("us-east-1b", "g4dn.xlarge"): Supply([(0.0, 0.19)], spot_room=[(0.0, 2)]),
        ("us-east-1a", "m5.large"): Supply([(0.0, 0.04)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "m5.large": 0.096},
)

MakeProvider = Callable[..., AwsProvider]
MakeFake = Callable[..., FakeEc2]


class MeteredAws(AwsProvider):
    """With the fake's own meter, so that the suite compares the two."""

    fake: FakeEc2

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        return self.fake.meter(tag=(DEPLOYMENT, deployment))


LOADER = create_loader()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """boto3's own chain finds these and nothing else."""
    # Half a second per client goes into reading the model of EC2: once is enough.
    monkeypatch.setattr("botocore.session.create_loader", lambda _: LOADER)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret-of-the-test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_fake() -> Iterator[MakeFake]:
    fakes: list[FakeEc2] = []

    def make(world: World = WORLD, **changes: Any) -> FakeEc2:
        timing = replace(QUICK, **{k: changes.pop(k) for k in list(changes) if k in Timing.__slots__})
        fake = FakeEc2(world, timing, access_keys=frozenset({KEY}), **changes)
        fake.start()
        fakes.append(fake)
        return fake

    yield make
    for fake in fakes:
        fake.stop()


@pytest.fixture
def fake(make_fake: MakeFake) -> FakeEc2:
    return make_fake()


@pytest.fixture
async def make_provider() -> AsyncIterator[MakeProvider]:
    made: list[AwsProvider] = []

    def make(fake: FakeEc2, *, regions: Sequence[str] = ("us-east-1",), **options: Any) -> AwsProvider:
        given: dict[str, Any] = {"types": ["g4dn.*", "m5.large"], "look_s": 0.05, "notice_s": QUICK.notice_s}
        provider = MeteredAws(regions, endpoint_url=fake.url, rng=Random(1), **{**given, **options})
        provider.fake = fake
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(fake: FakeEc2, make_provider: MakeProvider) -> AwsProvider:
    return make_provider(fake)
