from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from tests import vendors

START = 1_900_000_000.0
WORLD = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17), (START + 600, 0.30)]),
        ("us-east-1b", "g4dn.xlarge"): Supply([(0.0, 0.19)], spot_room=[(0.0, 2), (START + 900, 1)]),
        ("us-east-1b", "g5.xlarge"): Supply([(0.0, 0.95)], on_demand_room=1),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "g5.xlarge": 1.006},
)
IMAGE = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
MakeFake = Callable[..., FakeEc2]


class Time:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> float:
        return self.at


def client(url: str, *, region: str = "us-east-1", service: str = "ec2") -> Any:
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=10)
    keys = {"aws_access_key_id": vendors.AWS_KEY, "aws_secret_access_key": "any"}
    return boto3.Session().client(service, region, endpoint_url=url, config=config, **keys)


def code(call: Callable[..., Any], **parameters: Any) -> str:
    """The vendor's code of the refusal."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


def machine(zone: str = "us-east-1a", kind: str = "g4dn.xlarge", *, spot: bool = False, **more: Any) -> dict[str, Any]:
    """Parameters of a launch."""
    market = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    placed = {"Placement": {"AvailabilityZone": zone}}
    return {"ImageId": IMAGE, "InstanceType": kind, "MinCount": 1, "MaxCount": 1, **placed, **market, **more}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.hide_real_ones(monkeypatch, tmp_path)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def make_fake(time: Time) -> Iterator[MakeFake]:
    with vendors.fakes(partial(FakeEc2, now=time), WORLD, Timing()) as make:
        yield make


@pytest.fixture
def fake(make_fake: MakeFake) -> FakeEc2:
    return make_fake()


@pytest.fixture
def ec2(fake: FakeEc2) -> Any:
    return client(fake.url)


def launch(ec2: Any, time: Time, **parameters: Any) -> str:
    """Starts a machine and waits until it runs."""
    made = ec2.run_instances(**{**machine(), **parameters})["Instances"][0]["InstanceId"]
    time.at += 11
    return str(made)


def described(ec2: Any, instance: str) -> dict[str, Any]:
    (reservation,) = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    found: dict[str, Any] = reservation["Instances"][0]
    return found
