from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1", reason="needs the extra gcp: pip install 'everstep[gcp]'")
pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from google.oauth2.credentials import Credentials

from everstep.model.errors import BadRequest, NoCapacity, ProviderError, QuotaExceeded, Unauthorized, Unreachable
from everstep.model.ids import DeploymentId
from everstep.providers.gcp import GcpProvider
from everstep.providers.gcp.naming import DEPLOYMENT
from everstep.testing.gce import FakeGce, Rate, Supply, Timing, World
from everstep.testing.gce.market import KINDS
from tests.vendors import fakes

TOKEN = "planted-secret-of-the-test"
QUICK = Timing(notice_s=1.0, stop_s=0.2, provision_s=0.05, stage_s=0.05, operation_s=0.05, hidden_s=0.15, repair_s=0.3)
T4 = "n1-standard-8+nvidia-tesla-t4:1"
WORLD = World(
    supplies={
        ("us-central1-a", T4): Supply(),
        ("us-central1-b", T4): Supply(spot_room=[(0.0, 2)]),
        ("us-central1-a", "e2-standard-4"): Supply(),
        ("us-central1-a", "g2-standard-8"): Supply(),
    },
    kinds=KINDS,
    rates={
        ("", "N1 core"): Rate(0.032, [(0.0, 0.007)]),
        ("", "N1 ram"): Rate(0.004, [(0.0, 0.001)]),
        ("", "E2 core"): Rate(0.022, [(0.0, 0.006)]),
        ("", "E2 ram"): Rate(0.003, [(0.0, 0.001)]),
        ("", "G2 core"): Rate(0.025, [(0.0, 0.010)]),
        ("", "G2 ram"): Rate(0.003, [(0.0, 0.001)]),
        ("", "nvidia-tesla-t4"): Rate(0.35, [(0.0, 0.14)]),
        ("", "nvidia-l4"): Rate(0.56, [(0.0, 0.22)]),
    },
)
# What the faults of a launch mean, of one machine and of many; each kind of launch has some of its own besides.
MEANINGS: list[tuple[str, type[ProviderError]]] = [
    ("stock_out", NoCapacity),
    ("quota", QuotaExceeded),
    ("quota_at_once", QuotaExceeded),
    ("internal_later", Unreachable),
    ("permission", Unauthorized),
    ("disabled", Unauthorized),
    ("credentials", Unauthorized),
    ("bad_parameter", BadRequest),
    ("internal", Unreachable),
    ("unavailable", Unreachable),
    ("cut", Unreachable),
]

MakeProvider = Callable[..., GcpProvider]
MakeFake = Callable[..., FakeGce]


class MeteredGcp(GcpProvider):
    """With the fake's own meter, so that the suite compares the two."""

    fake: FakeGce

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        return self.fake.meter(label=(DEPLOYMENT, deployment))


@pytest.fixture
def make_fake() -> Iterator[MakeFake]:
    with fakes(partial(FakeGce, tokens=frozenset({TOKEN})), WORLD, QUICK) as make:
        yield make


@pytest.fixture
def fake(make_fake: MakeFake) -> FakeGce:
    return make_fake()


@pytest.fixture
async def make_provider() -> AsyncIterator[MakeProvider]:
    made: list[GcpProvider] = []

    def make(fake: FakeGce, *, regions: Sequence[str] = ("us-central1",), **options: Any) -> GcpProvider:
        given: dict[str, Any] = {
            "types": ["n1-standard-8+T4:1", "e2-*", "g2-standard-8"],
            "look_s": 0.05,
            "notice_s": QUICK.notice_s,
            "credentials": Credentials(token=TOKEN),
        }
        merged = {**given, **options}
        provider = MeteredGcp(
            fake.project, regions, merged.pop("types"), endpoint_url=fake.url, rng=Random(1), **merged
        )
        provider.fake = fake
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.close()


@pytest.fixture
def provider(fake: FakeGce, make_provider: MakeProvider) -> GcpProvider:
    return make_provider(fake)
