"""What ``everstep cloud sweep`` sees and ends on EC2, judged by a raw client of the vendor's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from everstep.model.errors import ProviderError, Unauthorized
from everstep.providers.aws import tags
from everstep.providers.aws.sweep import AwsSweeper
from everstep.providers.aws.user_data import boot_script
from everstep.providers.leftovers import CallsHome, Leftover, NotOurs, told
from everstep.testing.ec2 import FakeEc2, Supply, World
from tests.providers.aws.conftest import MakeFake, MakeProvider

TWO_REGIONS = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)]),
        ("us-west-2a", "m5.large"): Supply([(0.0, 0.05)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526, "m5.large": 0.096},
)
# By its public parameter: a list of all the images there are takes a second each time.
IMAGE = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
OURS = {tags.DEPLOYMENT: "d-1", tags.JOB: "j-1", tags.PRICE: "0.526"}
FOREIGN = {"team": "billing", "Name": "everstep:deployment"}


class Raw:
    """An account as somebody else sees it."""

    def __init__(self, fake: FakeEc2, region: str = "us-east-1") -> None:
        self.ec2 = boto3.client("ec2", region_name=region, endpoint_url=fake.url)
        self.zone = f"{region}a"

    def machine(self, marks: dict[str, str], kind: str = "g4dn.xlarge", **more: Any) -> str:
        listed = [{"Key": k, "Value": v} for k, v in marks.items()]
        marked = [{"ResourceType": r, "Tags": listed} for r in ("instance", "volume")]
        answer = self.ec2.run_instances(
            ImageId=IMAGE, InstanceType=kind, MinCount=1, MaxCount=1, TagSpecifications=marked, **more
        )
        return str(answer["Instances"][0]["InstanceId"])

    def disk(self, marks: dict[str, str]) -> str:
        marked = [{"ResourceType": "volume", "Tags": [{"Key": k, "Value": v} for k, v in marks.items()]}]
        answer = self.ec2.create_volume(AvailabilityZone=self.zone, Size=20, VolumeType="gp3", TagSpecifications=marked)
        return str(answer["VolumeId"])

    def group(self, name: str, marks: dict[str, str]) -> str:
        marked = [{"ResourceType": "placement-group", "Tags": [{"Key": k, "Value": v} for k, v in marks.items()]}]
        self.ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=marked)
        return name

    def address(self, marks: dict[str, str]) -> str:
        marked = [{"ResourceType": "elastic-ip", "Tags": [{"Key": k, "Value": v} for k, v in marks.items()]}]
        return str(self.ec2.allocate_address(Domain="vpc", TagSpecifications=marked)["AllocationId"])

    def left(self) -> set[str]:
        """Ids of everything that costs or is in the way."""
        machines = [
            i["InstanceId"]
            for r in self.ec2.describe_instances()["Reservations"]
            for i in r["Instances"]
            if i["State"]["Name"] in ("pending", "running", "stopped")
        ]
        disks = [v["VolumeId"] for v in self.ec2.describe_volumes()["Volumes"] if v["State"] == "available"]
        groups = [g["GroupName"] for g in self.ec2.describe_placement_groups()["PlacementGroups"]]
        return {*machines, *disks, *groups, *(a["AllocationId"] for a in self.ec2.describe_addresses()["Addresses"])}


@pytest.fixture
def fake(make_fake: MakeFake) -> Iterator[FakeEc2]:
    fake = make_fake(TWO_REGIONS, hidden_s=0.0, boot_s=0.0)
    yield fake
    assert fake.server.crashes == []


@pytest.fixture
def sweeper(fake: FakeEc2, make_provider: MakeProvider) -> AwsSweeper:
    return make_provider(fake).sweeper()


async def end_all(sweeper: AwsSweeper, things: tuple[Leftover, ...]) -> None:
    for thing in sorted(things, key=lambda t: ["instance", "volume", "address", "group"].index(t.kind)):
        await sweeper.end(thing)


async def test_ours_in_every_region_and_nothing_else(fake: FakeEc2, sweeper: AwsSweeper) -> None:
    here, there = Raw(fake), Raw(fake, "us-west-2")
    theirs = {here.machine(FOREIGN), here.disk(FOREIGN), here.group("theirs", FOREIGN), here.address(FOREIGN)}
    theirs_there = {there.machine({}, "m5.large")}
    group = here.group("ours", OURS)
    machine = here.machine(OURS, Placement={"GroupName": group})
    disk, address = here.disk({**OURS, tags.VOLUME: "v"}), here.address(OURS)
    here.ec2.attach_volume(VolumeId=disk, InstanceId=machine, Device="/dev/sdf")
    far = there.machine({**OURS, tags.DEPLOYMENT: "d-2"}, "m5.large")

    found = await sweeper.look([])

    assert found.unseen == ()
    by_id = {t.id: t for t in found.things}
    assert by_id.keys() == {group, machine, disk, address, far}
    assert (by_id[machine].deployment, by_id[machine].job, by_id[far].deployment) == ("d-1", "j-1", "d-2")
    assert (by_id[machine].what, by_id[machine].market, by_id[machine].zone) == (
        "g4dn.xlarge",
        "on_demand",
        "us-east-1a",
    )
    assert by_id[machine].price_usd_per_h == 0.526
    assert by_id[machine].cost_usd == pytest.approx(0.526 / 60)  # a minute at least
    assert by_id[disk].attached_to == machine
    assert by_id[disk].price_usd_per_h == pytest.approx(20 * 0.08 / 730)
    assert by_id[address].price_usd_per_h == 0.005
    assert {t.id for t in (await sweeper.look(["us-west-2"])).things} == {far}

    await end_all(sweeper, found.things)
    assert here.left() == theirs
    assert there.left() == theirs_there
    await end_all(sweeper, found.things)  # what is gone is no error


async def test_what_lost_our_tag_is_not_ended(fake: FakeEc2, sweeper: AwsSweeper) -> None:
    raw = Raw(fake)
    raw.machine(OURS), raw.disk(OURS)
    found = await sweeper.look(["us-east-1"])
    before = raw.left()
    for machine in fake.cloud.machines.values():
        machine.tags = {}
    for disk in fake.cloud.disks.values():
        disk.tags = {}
    for thing in found.things:
        with pytest.raises(NotOurs):
            await sweeper.end(thing)
    assert raw.left() == before


async def test_a_foreign_disk_does_not_go_with_our_machine(fake: FakeEc2, sweeper: AwsSweeper) -> None:
    raw = Raw(fake)
    machine, disk = raw.machine(OURS), raw.disk(FOREIGN)
    raw.ec2.attach_volume(VolumeId=disk, InstanceId=machine, Device="/dev/sdf")
    attachment = fake.cloud.disks[disk].attachment
    assert attachment is not None
    attachment.delete_on_termination = True  # as somebody set it by ModifyInstanceAttribute
    (thing,) = (await sweeper.look([])).things
    with pytest.raises(NotOurs, match=disk):
        await sweeper.end(thing)
    raw.ec2.detach_volume(VolumeId=disk)
    await sweeper.end(thing)
    assert raw.left() == {disk}


async def test_our_disk_in_a_foreign_machine_stays(fake: FakeEc2, sweeper: AwsSweeper) -> None:
    raw = Raw(fake)
    machine, disk = raw.machine(FOREIGN), raw.disk({**OURS, tags.VOLUME: "v"})
    raw.ec2.attach_volume(VolumeId=disk, InstanceId=machine, Device="/dev/sdf")
    (thing,) = (await sweeper.look([])).things
    assert thing.attached_to == machine
    with pytest.raises(ProviderError, match="VolumeInUse"):
        await sweeper.end(thing)
    assert raw.left() == {machine}
    assert fake.cloud.disks[disk].deleted_at is None


async def test_whom_a_machine_calls(fake: FakeEc2, sweeper: AwsSweeper) -> None:
    raw = Raw(fake)
    boot = {"EVERSTEP_SERVER": "https://10.0.0.1:8443", "EVERSTEP_CA_SHA256": "ab" * 32, "EVERSTEP_TOKEN": "one-time"}
    raw.machine(OURS, UserData=boot_script(boot))
    (thing,) = (await sweeper.look([])).things
    assert await sweeper.calls_home(thing) == CallsHome("https://10.0.0.1:8443", "ab" * 32)
    raw.machine({**OURS, tags.JOB: "j-2"}, UserData="#!/bin/sh\necho hello\n")
    (other,) = [t for t in (await sweeper.look([])).things if t.job == "j-2"]
    assert await sweeper.calls_home(other) is None
    assert told(boot_script({**boot, "EVERSTEP_SERVER": "http://it's"})) == CallsHome("http://it's", "ab" * 32)


async def test_what_is_not_permitted_is_said(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    allowed = {"ec2:DescribeInstances", "ec2:DescribeVolumes", "pricing:GetProducts", "ssm:GetParameters"}
    fake = make_fake(TWO_REGIONS, allowed=frozenset({*allowed, "ec2:RunInstances", "ec2:CreateTags"}), hidden_s=0.0)
    machine = Raw(fake).machine(OURS)
    found = await make_provider(fake).sweeper().look([])
    assert [t.id for t in found.things] == [machine]
    assert sorted(line.partition(":")[0] for line in found.unseen) == [
        "addresses in us-east-1",
        "placement groups in us-east-1",
        "regions other than us-east-1",
        "security groups in us-east-1",
    ]
    fake.fail("DescribeInstances", "permission", times=2)
    with pytest.raises(Unauthorized):
        await make_provider(fake).sweeper().look(["us-east-1"])
