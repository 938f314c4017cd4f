"""Where bare moto is not like EC2: each test shows moto wrong and the fake right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from tests.testing.ec2.conftest import IMAGE, Time, client, code, described, launch, machine

MOTO_IMAGE = "ami-03cf127a"


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield client(f"http://{host}:{port}")
    server.stop()


def bare(zone: str = "us-east-1a", **more: Any) -> dict[str, Any]:
    return {**machine(zone, **more), "ImageId": MOTO_IMAGE}


def first(answer: dict[str, Any]) -> str:
    return str(answer["Instances"][0]["InstanceId"])


def test_a_repeated_token_is_the_same_machine(moto: Any, ec2: Any) -> None:
    assert first(moto.run_instances(**bare(ClientToken="t"))) != first(moto.run_instances(**bare(ClientToken="t")))
    again = machine(ClientToken="t")
    assert first(ec2.run_instances(**again)) == first(ec2.run_instances(**again))


def test_a_token_belongs_to_its_parameters(moto: Any, ec2: Any) -> None:
    moto.run_instances(**bare(ClientToken="u"))
    moto.run_instances(**bare("us-east-1b", ClientToken="u"))
    ec2.run_instances(**machine(ClientToken="u"))
    assert code(ec2.run_instances, **machine("us-east-1b", ClientToken="u")) == "IdempotentParameterMismatch"


def test_a_token_of_a_dead_machine_starts_nothing(ec2: Any, time: Time) -> None:
    dead = launch(ec2, time, ClientToken="v")
    ec2.terminate_instances(InstanceIds=[dead])
    assert code(ec2.run_instances, **machine(ClientToken="v")) == "IdempotentInstanceTerminated"


def test_a_disk_stays_in_its_zone(moto: Any, ec2: Any, time: Time) -> None:
    there = first(moto.run_instances(**bare("us-east-1a")))
    far = moto.create_volume(AvailabilityZone="us-east-1b", Size=8)["VolumeId"]
    moto.attach_volume(VolumeId=far, InstanceId=there, Device="/dev/sdf")
    here = launch(ec2, time)
    far = ec2.create_volume(AvailabilityZone="us-east-1b", Size=8)["VolumeId"]
    time.at += 5
    tried = code(ec2.attach_volume, VolumeId=far, InstanceId=here, Device="/dev/sdf")
    assert tried == "InvalidVolume.ZoneMismatch"


def test_a_disk_is_in_one_machine(ec2: Any, time: Time) -> None:
    one, two = launch(ec2, time), launch(ec2, time)
    disk = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    time.at += 5
    ec2.attach_volume(VolumeId=disk, InstanceId=one, Device="/dev/sdf")
    assert code(ec2.attach_volume, VolumeId=disk, InstanceId=two, Device="/dev/sdf") == "VolumeInUse"
    assert code(ec2.delete_volume, VolumeId=disk) == "VolumeInUse"


def test_spot_options_of_a_launch_template_count(moto: Any, ec2: Any, time: Time) -> None:
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}, "InstanceType": "g4dn.xlarge"}
    for one, image in ((moto, MOTO_IMAGE), (ec2, IMAGE)):
        one.create_launch_template(LaunchTemplateName="spotty", LaunchTemplateData={**spot, "ImageId": image})
    asked = {"LaunchTemplate": {"LaunchTemplateName": "spotty"}, "MinCount": 1, "MaxCount": 1}
    assert "InstanceLifecycle" not in described(moto, first(moto.run_instances(**asked)))
    made = first(ec2.run_instances(**asked))
    time.at += 2
    assert described(ec2, made)["InstanceLifecycle"] == "spot"


def test_placement_groups_are_there(moto: Any, ec2: Any) -> None:
    with pytest.raises(Exception, match=r"500|not been implemented|NotImplemented"):
        moto.create_placement_group(GroupName="g", Strategy="cluster")
    in_group = machine()
    in_group["Placement"] = {**in_group["Placement"], "GroupName": "g"}
    assert code(ec2.run_instances, **in_group) == "InvalidPlacementGroup.Unknown"
    ec2.create_placement_group(GroupName="g", Strategy="cluster")
    assert ec2.run_instances(**in_group)["Instances"][0]["Placement"]["GroupName"] == "g"


def test_placement_scores_are_there(moto: Any, ec2: Any) -> None:
    asked = {"InstanceTypes": ["g4dn.xlarge"], "TargetCapacity": 4, "SingleAvailabilityZone": True}
    with pytest.raises(Exception, match=r"500|not been implemented|NotImplemented"):
        moto.get_spot_placement_scores(**asked)
    scores = ec2.get_spot_placement_scores(**asked)["SpotPlacementScores"]
    names = {z["ZoneId"]: z["ZoneName"] for z in ec2.describe_availability_zones()["AvailabilityZones"]}
    found = [(names[s["AvailabilityZoneId"]], s["Score"]) for s in scores]
    assert found == [("us-east-1a", 10), ("us-east-1b", 5)]


def test_spot_prices_have_a_past(moto: Any, ec2: Any, time: Time) -> None:
    same = moto.describe_spot_price_history(InstanceTypes=["g4dn.xlarge"])["SpotPriceHistory"]
    assert {row["SpotPrice"] for row in same} == {"0.00001"}
    asked = {"InstanceTypes": ["g4dn.xlarge"], "AvailabilityZone": "us-east-1a"}
    assert [r["SpotPrice"] for r in ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]] == ["0.170000"]
    time.at += 700
    rows = ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]
    assert [r["SpotPrice"] for r in rows] == ["0.300000", "0.170000"]


def test_an_unknown_type_is_refused(moto: Any, ec2: Any) -> None:
    moto.run_instances(**bare(kind="z9.huge"))
    assert code(ec2.run_instances, **machine(kind="z9.huge")) == "InvalidParameterValue"
    assert code(ec2.run_instances, **machine("us-east-1a", "g5.xlarge")) == "Unsupported"


def test_a_new_machine_is_not_visible_at_once(moto: Any, ec2: Any, time: Time) -> None:
    assert described(moto, first(moto.run_instances(**bare())))["State"]["Name"] == "running"
    made = first(ec2.run_instances(**machine()))
    assert code(ec2.describe_instances, InstanceIds=[made]) == "InvalidInstanceID.NotFound"
    assert ec2.describe_instances()["Reservations"] == []
    assert code(ec2.terminate_instances, InstanceIds=[made]) == "InvalidInstanceID.NotFound"
    time.at += 2
    assert described(ec2, made)["State"]["Name"] == "pending"
    time.at += 10
    assert described(ec2, made)["State"]["Name"] == "running"


def test_capacity_ends(ec2: Any, time: Time) -> None:
    for _ in range(2):
        launch(ec2, time, **machine("us-east-1b", spot=True))
    assert code(ec2.run_instances, **machine("us-east-1b", spot=True)) == "InsufficientInstanceCapacity"
    launch(ec2, time, **machine("us-east-1b", "g5.xlarge"))
    assert code(ec2.run_instances, **machine("us-east-1b", "g5.xlarge")) == "InsufficientInstanceCapacity"


def test_a_bid_below_the_price_is_refused(moto: Any, ec2: Any) -> None:
    low = {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.01"}}}
    moto.run_instances(**bare(**low))
    assert code(ec2.run_instances, **machine(**low)) == "SpotMaxPriceTooLow"
