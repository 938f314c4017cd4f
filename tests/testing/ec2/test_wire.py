from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.serialize import EC2Serializer
from hypothesis import given
from hypothesis import strategies as st

from everstep.testing.ec2 import filters, wire
from everstep.testing.ec2.wire import Refused
from tests.testing.ec2.conftest import machine

MEASURE = {"Action": "RunInstances", "Version": "2016-11-15", "MinCount": "1", "MaxCount": "1"}


def sent(name: str, parameters: dict[str, Any]) -> dict[str, str]:
    """The form that botocore itself makes of it."""
    body = EC2Serializer().serialize_to_request(parameters, wire.operation("ec2", name))["body"]
    return {key: str(value) for key, value in body.items()}


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9)
_LAUNCH = st.fixed_dictionaries(
    {"MinCount": st.integers(1, 9), "MaxCount": st.integers(1, 9)},
    optional={
        "ClientToken": _TEXT,
        "EbsOptimized": st.booleans(),
        "InstanceType": st.sampled_from(["p3.2xlarge", "g5.xlarge"]),
        "SecurityGroupIds": st.lists(_TEXT, min_size=1, max_size=12),
        "Placement": st.fixed_dictionaries({"AvailabilityZone": _TEXT}),
        "BlockDeviceMappings": st.lists(
            st.fixed_dictionaries(
                {"DeviceName": _TEXT, "Ebs": st.fixed_dictionaries({"VolumeSize": st.integers(1, 99)})}
            ),
            min_size=1,
            max_size=3,
        ),
        "TagSpecifications": st.just([{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]),
    },
)


@given(_LAUNCH)
def test_reads_back_what_botocore_writes(parameters: dict[str, Any]) -> None:
    assert wire.read("RunInstances", sent("RunInstances", parameters)) == parameters


def test_reads_instants() -> None:
    at = datetime(2030, 1, 31, 18, 0, tzinfo=UTC)
    assert wire.read("DescribeSpotPriceHistory", sent("DescribeSpotPriceHistory", {"StartTime": at})) == {
        "StartTime": at
    }


@pytest.mark.parametrize(
    ("form", "refusal"),
    [
        ({**MEASURE, "Instancetype": "p3.2xlarge"}, "UnknownParameter"),
        ({**MEASURE, "Placement.Zone": "a"}, "UnknownParameter"),
        ({**MEASURE, "InstanceType": "no.such"}, "InvalidParameterValue"),
        ({**MEASURE, "MinCount": "many"}, "InvalidParameterValue"),
        ({**MEASURE, "EbsOptimized": "yes"}, "InvalidParameterValue"),
        ({**MEASURE, "SecurityGroupId.2": "sg"}, "InvalidParameterValue"),
        ({**MEASURE, "SecurityGroupId": "sg"}, "InvalidParameterValue"),
        ({**MEASURE, "MinCount.1": "1"}, "MalformedQueryString"),
        ({"Action": "RunInstances", "MinCount": "1"}, "MissingParameter"),
    ],
)
def test_refuses_what_does_not_fit_the_model(form: dict[str, str], refusal: str) -> None:
    with pytest.raises(Refused) as caught:
        wire.read("RunInstances", form)
    assert caught.value.code == refusal


def test_an_operation_nobody_has_is_refused() -> None:
    with pytest.raises(Refused, match="RunMachines is not valid"):
        wire.read("RunMachines", {})


def test_a_launch_of_these_tests_fits() -> None:
    assert wire.read("RunInstances", sent("RunInstances", machine(spot=True)))["MinCount"] == 1


@pytest.mark.parametrize(("value", "passes"), [("a[1]", True), ("a*", True), ("a?1]", True), ("a1", False)])
def test_filters_know_stars_and_question_marks_alone(value: str, passes: bool) -> None:
    tagged = {"Tags": [{"Key": "name", "Value": "a[1]"}]}
    assert bool(filters.matching([tagged], [{"Name": "tag:name", "Values": [value]}], filters.VOLUME)) is passes
