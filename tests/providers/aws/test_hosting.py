"""A server's own machine on the fake EC2: leased once, found again, ended whole, and nobody's stray."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.model.errors import Unauthorized
from everstep.model.ids import DeploymentId
from everstep.providers.aws.hosting import REPEATS, AwsHosting
from everstep.providers.hosting import Host
from everstep.testing.ec2 import FakeEc2
from tests.providers.aws.conftest import MakeFake, MakeProvider

ROOT = Path(__file__).resolve().parents[3]
HOST = Host(
    id="0123456789ab",
    machine="m5.large",
    zone="us-east-1a",
    disk_gib=20,
    port=7443,
    allow=("203.0.113.0/24", "2001:db8::/32"),
    login="ssh-ed25519 AAAA everstep",
    host_key="-----BEGIN OPENSSH PRIVATE KEY-----",
    role="everstep-server",
)


def actions() -> set[str]:
    policy = json.loads((ROOT / "docs" / "aws-server-policy.json").read_text())
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def hosting(fake: FakeEc2) -> AwsHosting:
    return AwsHosting("us-east-1", endpoint_url=fake.url, look_s=0.02, patience_s=60.0)


async def life(fake: FakeEc2) -> None:
    cloud = hosting(fake)
    try:
        assert await cloud.zone_for("m5.large") == "us-east-1a"
        rates = await cloud.rates(HOST)
        assert (rates.machine, rates.address) == (0.096, 0.005)
        there = await cloud.ensure(HOST)
        assert (there.state, bool(there.address), bool(there.disk)) == ("running", True, True)
        await cloud.let_in(HOST, (7443, 7422))
        await cloud.let_in(HOST, (7443,))
        await cloud.remove(HOST, disk=False)
        assert fake.left() == [there.disk]
        await cloud.remove(HOST, disk=True)
        assert fake.left() == []
    finally:
        cloud.close()


async def test_the_policy_on_the_page_is_enough(make_fake: MakeFake) -> None:
    await life(make_fake(allowed=frozenset(actions())))


@pytest.mark.parametrize("action", sorted(actions() - {"ec2:DescribeSubnets"}))  # that one: with subnets of one's own
async def test_nothing_in_it_is_idle(make_fake: MakeFake, action: str) -> None:
    with pytest.raises(Unauthorized):
        await life(make_fake(allowed=frozenset(actions() - {action})))


async def test_the_same_again_is_the_same_machine_and_a_lost_one_is_followed_by_another(fake: FakeEc2) -> None:
    cloud = hosting(fake)
    fake.fail("RunInstances", "cut", late=True, times=REPEATS - 1)
    first = await cloud.ensure(HOST)
    assert await cloud.ensure(HOST) == first
    assert len(fake.cloud.machines) == 1
    fake.lose(first.machine)
    second = await cloud.ensure(HOST)
    assert second.machine != first.machine
    assert (second.disk, second.generation) == (first.disk, 1)
    assert await cloud.ensure(replace(HOST, generation=1)) == second
    await cloud.remove(HOST, disk=True)
    cloud.close()
    assert fake.left() == []


async def test_who_may_call(fake: FakeEc2) -> None:
    import boto3

    cloud = hosting(fake)
    await cloud.ensure(HOST)
    sdk: Any = boto3.client("ec2", "us-east-1", endpoint_url=fake.url)

    def rules() -> set[tuple[int, str]]:
        (group,) = sdk.describe_security_groups(Filters=[{"Name": "group-name", "Values": [HOST.name]}])[
            "SecurityGroups"
        ]
        four = {(p["FromPort"], r["CidrIp"]) for p in group["IpPermissions"] for r in p["IpRanges"]}
        return four | {(p["FromPort"], r["CidrIpv6"]) for p in group["IpPermissions"] for r in p["Ipv6Ranges"]}

    four, six = HOST.allow
    await cloud.let_in(HOST, (7443, 7422))
    assert rules() == {(7443, four), (7422, four), (7443, six), (7422, six)}
    await cloud.let_in(HOST, (7443, 7422))
    await cloud.let_in(replace(HOST, allow=("198.51.100.7/32",)), (7443,))
    assert rules() == {(7443, "198.51.100.7/32")}
    await cloud.remove(HOST, disk=True)
    cloud.close()


async def test_no_deployment_takes_it_for_its_own(fake: FakeEc2, make_provider: MakeProvider) -> None:
    cloud = hosting(fake)
    there = await cloud.ensure(HOST)
    provider = make_provider(fake)
    assert list(await provider.resources(DeploymentId(HOST.id))) == []
    assert there.machine in fake.left()
    await cloud.remove(HOST, disk=True)
    cloud.close()
