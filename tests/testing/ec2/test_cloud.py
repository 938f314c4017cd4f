from __future__ import annotations

from dataclasses import replace
from typing import Any

import botocore.exceptions
import pytest

from everstep.testing.ec2 import FakeEc2
from tests.testing.ec2.conftest import START, WORLD, MakeFake, Time, client, code, described, launch, machine


def request_of(ec2: Any, instance: str) -> dict[str, Any]:
    filters = [{"Name": "instance-id", "Values": [instance]}]
    (found,) = ec2.describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
    request: dict[str, Any] = found
    return request


def test_a_spot_machine_is_warned_two_minutes_before_it_goes(fake: FakeEc2, ec2: Any, time: Time) -> None:
    spot = launch(ec2, time, **machine(spot=True))
    assert request_of(ec2, spot)["Status"]["Code"] == "fulfilled"
    assert fake.interrupt(spot) == time.at + 120
    assert request_of(ec2, spot)["Status"]["Code"] == "marked-for-termination"
    time.at += 119
    assert described(ec2, spot)["State"]["Name"] == "running"
    time.at += 1
    gone = described(ec2, spot)
    assert (gone["State"]["Name"], gone["StateReason"]["Code"]) == ("shutting-down", "Server.SpotInstanceTermination")
    time.at += 30
    assert described(ec2, spot)["State"]["Name"] == "terminated"
    status = request_of(ec2, spot)["Status"]
    assert (status["Code"], status["UpdateTime"].timestamp()) == ("instance-terminated-no-capacity", time.at - 30)


def test_less_room_takes_the_oldest_back(ec2: Any, time: Time) -> None:
    first = launch(ec2, time, **machine("us-east-1b", spot=True))
    second = launch(ec2, time, **machine("us-east-1b", spot=True))
    time.at = START + 901
    assert request_of(ec2, first)["Status"]["Code"] == "marked-for-termination"
    assert request_of(ec2, second)["Status"]["Code"] == "fulfilled"


def test_a_price_above_the_bid_takes_it_back(ec2: Any, time: Time) -> None:
    bid = {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.2"}}}
    low, high = launch(ec2, time, **machine(**bid)), launch(ec2, time, **machine(spot=True))
    time.at = START + 601
    assert request_of(ec2, low)["Status"]["Code"] == "marked-for-termination"
    assert request_of(ec2, high)["Status"]["Code"] == "fulfilled"
    time.at += 120
    assert request_of(ec2, low)["Status"]["Code"] == "instance-terminated-by-price"


def test_the_owner_who_is_faster_ended_it(fake: FakeEc2, ec2: Any, time: Time) -> None:
    spot = launch(ec2, time, **machine(spot=True))
    fake.interrupt(spot)
    ec2.terminate_instances(InstanceIds=[spot])
    time.at += 500
    gone = described(ec2, spot)
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert "GMT" in gone["StateTransitionReason"]
    assert request_of(ec2, spot)["Status"]["Code"] == "instance-terminated-by-user"


def test_a_disk_outlives_its_machine_and_the_own_disk_does_not(fake: FakeEc2, ec2: Any, time: Time) -> None:
    one = launch(ec2, time)
    disk = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    time.at += 5
    ec2.attach_volume(VolumeId=disk, InstanceId=one, Device="/dev/sdf")
    ec2.terminate_instances(InstanceIds=[one])
    assert code(ec2.delete_volume, VolumeId=disk) == "VolumeInUse"
    time.at += 31
    (left,) = [v for v in ec2.describe_volumes()["Volumes"] if v["State"] == "available"]
    assert (left["VolumeId"], fake.left()) == (disk, [disk])
    ec2.delete_volume(VolumeId=disk)
    assert fake.left() == []
    assert code(ec2.delete_volume, VolumeId=disk) == "InvalidVolume.NotFound"


def test_an_ended_machine_is_forgotten_after_an_hour(ec2: Any, time: Time) -> None:
    one = launch(ec2, time)
    ec2.terminate_instances(InstanceIds=[one])
    time.at += 3600
    assert len(ec2.describe_instances()["Reservations"]) == 1
    time.at += 40
    assert ec2.describe_instances()["Reservations"] == []


@pytest.mark.parametrize(
    ("lived_s", "reclaimed", "hours"),
    [(10, False, 60 / 3600), (7200, False, 2.0), (3599, True, 0.0), (3700, True, 3700 / 3600)],
)
def test_the_meter_follows_the_billing_pages(
    fake: FakeEc2, ec2: Any, time: Time, lived_s: int, reclaimed: bool, hours: float
) -> None:
    begun = time.at
    spot = launch(ec2, time, **machine(spot=True))
    if reclaimed:
        time.at = begun + lived_s - 120
        fake.interrupt(spot)
        time.at = begun + lived_s
    else:
        time.at = max(begun + lived_s, begun + 2)
        ec2.terminate_instances(InstanceIds=[spot])
    (charge,) = [c for c in fake.meter() if c["kind"] == "compute"]
    assert (charge["end"] - charge["start"], charge["reclaimed"]) == (max(lived_s, 2), reclaimed)
    assert charge["cost_usd"] == pytest.approx(hours * 0.17)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"spot_vcpus": 7}, "MaxSpotInstanceCountExceeded"),
        ({"on_demand_vcpus": 7}, "VcpuLimitExceeded"),
    ],
)
def test_quotas_count_cpus(make_fake: MakeFake, time: Time, change: dict[str, int], refusal: str) -> None:
    spot = "spot_vcpus" in change
    ec2 = client(make_fake(replace(WORLD, **change)).url)  # type: ignore[arg-type]
    launch(ec2, time, **machine(spot=spot))
    assert code(ec2.run_instances, **machine(spot=spot)) == refusal
    launch(ec2, time, **machine(spot=not spot))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"ImageId": "ami-00000000"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "resolve:ssm:/mine"}, "InvalidParameterValue"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"SecurityGroupIds": ["sg-00000000"]}, "InvalidGroup.NotFound"),
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"UserData": "x" * 17_000}, "InvalidParameterValue"),
        ({"MinCount": 2}, "InvalidParameterValue"),
        ({"ClientToken": "t" * 65}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "spot-instances-request"}]}, "InvalidParameterCombination"),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x", "Value": "y"}]}]},
            "InvalidParameterValue",
        ),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_launches_that_ec2_would_not_do(ec2: Any, fake: FakeEc2, change: dict[str, Any], refusal: str) -> None:
    assert code(ec2.run_instances, **{**machine(), **change}) == refusal
    assert fake.left() == []


# --- faults ----------------------------------------------------------------------------------------------------------


def test_faults_come_as_ordered(fake: FakeEc2, ec2: Any) -> None:
    fake.fail("RunInstances", "stock_out", zone="us-east-1b")
    ec2.run_instances(**machine("us-east-1a"))
    assert code(ec2.run_instances, **machine("us-east-1b")) == "InsufficientInstanceCapacity"
    ec2.run_instances(**machine("us-east-1b"))
    fake.fail("", "throttle", times=2)
    assert [code(ec2.describe_volumes), code(ec2.describe_vpcs)] == ["RequestLimitExceeded"] * 2
    ec2.describe_volumes()
    with pytest.raises(ValueError, match="unknown fault 'rain'"):
        fake.fail("", "rain")


def test_a_late_fault_comes_after_the_effect(fake: FakeEc2, ec2: Any) -> None:
    fake.fail("RunInstances", "internal", late=True)
    assert code(ec2.run_instances, **machine()) == "InternalError"
    assert len(fake.cloud.machines) == 1
    fake.fail("RunInstances", "cut", late=True)
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        ec2.run_instances(**machine())
    assert len(fake.cloud.machines) == 2


def test_throttled_at_the_documented_rate(make_fake: MakeFake, time: Time) -> None:
    fake = make_fake(throttle=True)
    ec2 = client(fake.url)
    for _ in range(5):
        ec2.run_instances(**machine())
    assert code(ec2.run_instances, **machine()) == "RequestLimitExceeded"
    ec2.describe_volumes()  # each API has its own bucket
    time.at += 1
    ec2.run_instances(**machine())
    ec2.run_instances(**machine())
    assert code(ec2.run_instances, **machine()) == "RequestLimitExceeded"


def test_only_known_callers_are_served(make_fake: MakeFake) -> None:
    assert code(client(make_fake(access_keys=frozenset({"AKIAOTHER"})).url).describe_vpcs) == "AuthFailure"


def test_what_is_not_played_is_refused(ec2: Any) -> None:
    assert code(ec2.stop_instances, InstanceIds=["i-00000000"]) == "UnsupportedOperation"
    with_filter = {"Filters": [{"Name": "no-such-filter", "Values": ["x"]}]}
    assert code(ec2.describe_instances, **with_filter) == "InvalidParameterValue"


def test_pages(ec2: Any, time: Time) -> None:
    for _ in range(7):
        launch(ec2, time)
    pages = list(ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
    assert [len(p["Reservations"]) for p in pages] == [5, 2]
    assert code(ec2.describe_instances, MaxResults=5, InstanceIds=["i-00000000"]) == "InvalidParameterCombination"
