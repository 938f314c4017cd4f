from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from everstep.model.offers import Market
from everstep.providers.aws.doctor import Finding, examine
from everstep.providers.aws.quotas import Quota, quota_of
from tests.providers.aws.conftest import WORLD, MakeFake, MakeProvider
from tests.providers.aws.test_policy import ROOT, actions


def ill(findings: list[Finding]) -> list[str]:
    return [f.what for f in findings if not f.ok]


async def test_all_is_well_and_nothing_is_made(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(allowed=frozenset(actions()))
    findings = await examine(make_provider(fake))
    assert ill(findings) == []
    assert {"credentials, us-east-1", "clock", "permission RunInstances, us-east-1", "type g4dn.*"} <= {
        f.what for f in findings
    }
    assert fake.cloud.machines == fake.cloud.disks == {}


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("ec2:DescribeInstanceTypes", "permission DescribeInstanceTypes, us-east-1"),
        ("ec2:RunInstances", "permission RunInstances, us-east-1"),
        ("ssm:GetParameters", "permission RunInstances, us-east-1"),
        ("ec2:CreateVolume", "permission CreateVolume, us-east-1"),
        ("ec2:DescribeSpotPriceHistory", "permission DescribeSpotPriceHistory, us-east-1"),
        ("pricing:GetProducts", "offers"),
    ],
)
async def test_a_missing_permission_is_named(
    make_fake: MakeFake, make_provider: MakeProvider, missing: str, what: str
) -> None:
    findings = await examine(make_provider(make_fake(allowed=frozenset(actions() - {missing}))))
    assert ill(findings) == [what]
    (finding,) = [f for f in findings if not f.ok]
    assert missing in finding.found
    assert "docs/aws-iam-policy.json" in finding.fix


async def test_wrong_credentials_wrong_types_wrong_clock(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake()
    fake.fail("DescribeInstanceTypes", "credentials")
    assert ill(await examine(make_provider(fake))) == ["credentials, us-east-1"]
    assert ill(await examine(make_provider(fake, types=["g4dn.*", "q1.*"]))) == ["type q1.*"]
    assert ill(await examine(make_provider(fake, now=lambda: time.time() + 400))) == ["clock"]
    fake.fail("DescribeInstanceTypes", "cut", times=9)
    assert ill(await examine(make_provider(fake))) == ["network, us-east-1"]


async def test_quotas_of_families_and_markets(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake(replace(WORLD, spot_vcpus=8, on_demand_vcpus=2))
    found = {f.what: f for f in await examine(make_provider(fake))}
    spot, on_demand = found["quota G and VT, spot, us-east-1"], found["quota G and VT, on demand, us-east-1"]
    assert (spot.ok, spot.found) == (True, "8 vCPUs; g4dn.xlarge has 4")
    assert (on_demand.ok, on_demand.found) == (False, "2 vCPUs; g4dn.xlarge has 4")
    assert on_demand.fix == (
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA "
        "--desired-value 4 --region us-east-1"
    )
    assert found["quota Standard, on demand, us-east-1"].ok, "m5.large has 2"


@pytest.mark.parametrize(
    ("machine_type", "family"),
    [
        ("g4dn.xlarge", "G and VT"),
        ("p5.48xlarge", "P"),
        ("m5.large", "Standard"),
        ("trn1.2xlarge", "Trn"),
        ("inf2.xlarge", "Inf"),
        ("i3en.large", "Standard"),
        ("dl1.24xlarge", "DL"),
        ("u-6tb1.metal", ""),
    ],
)
def test_which_quota_a_type_counts_against(machine_type: str, family: str) -> None:
    quota = quota_of(machine_type, Market.SPOT)
    assert (quota.family if quota else "") == family


def test_codes_are_those_of_the_vendor() -> None:
    assert quota_of("g5.xlarge", Market.SPOT) == Quota("G and VT", Market.SPOT, "L-3819A6DF")
    assert quota_of("c5.xlarge", Market.ON_DEMAND) == Quota("Standard", Market.ON_DEMAND, "L-1216C47A")


async def test_networks_that_keep_machines_in_or_apart(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    fake = make_fake()
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=fake.url)
    assert [f.ok for f in await examine(make_provider(fake)) if f.what == "network, us-east-1"] == [True]
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="closed", Description="closed", VpcId=vpc)["GroupId"]
    closed = make_provider(fake, security_groups={"us-east-1": [group]}, subnets={"us-east-1a": "subnet-00000000"})
    (broken,) = [f for f in await examine(closed) if not f.ok]
    assert "InvalidSubnetID.NotFound" in broken.found
    apart = make_provider(fake, security_groups={"us-east-1": [group]})
    (finding,) = [f for f in await examine(apart) if not f.ok]
    assert finding.fix == (
        f"aws ec2 authorize-security-group-ingress --region us-east-1 --group-id {group} "
        f"--protocol all --source-group {group}"
    )
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    assert ill(await examine(apart)) == []
    away = next(s for s in ec2.describe_subnets()["Subnets"] if s["AvailabilityZone"] == "us-east-1b")["SubnetId"]
    assert ill(await examine(make_provider(fake, subnets={"us-east-1a": away}))) == ["subnet, us-east-1a"]


async def test_what_may_not_be_looked_at_is_said(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    findings = await examine(make_provider(make_fake(allowed=frozenset(actions()))))
    unseen = {f.what: f for f in findings if "not looked at" in f.found}
    assert unseen.keys() == {"quotas, us-east-1", "network, us-east-1"}
    person = json.loads((ROOT / "docs" / "aws-iam-policy-person.json").read_text())
    more = {action for statement in person["Statement"] for action in statement["Action"]}
    assert "docs/aws-iam-policy-person.json" in unseen["network, us-east-1"].fix
    findings = await examine(make_provider(make_fake(allowed=frozenset(actions() | more))))
    assert not any("not looked at" in f.found for f in findings)


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from everstep.cli.main import main; raise SystemExit(main())", "doctor", *words]
    env = {"EVERSTEP_HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true", "PATH": "/usr/bin:/bin", "HOME": str(home)}
    env |= {"AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST", "AWS_SECRET_ACCESS_KEY": "planted-secret-of-the-test"}
    return subprocess.run(program, capture_output=True, text=True, env=env, check=False, timeout=120)


def test_the_command(make_fake: MakeFake, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    told = run(home, "aws")
    assert (told.returncode, "is not configured; see docs/aws.md" in told.stderr) == (2, True)
    fake = make_fake(allowed=frozenset(actions() - {"ec2:CreateVolume"}))
    aws = {"regions": ["us-east-1"], "types": ["g4dn.*"], "endpoint_url": fake.url}
    (home / "config.yaml").write_text(json.dumps({"providers": {"aws": aws}}))
    told = run(home, "aws", "-o", "json")
    assert told.returncode == 1, told.stderr
    assert [f["what"] for f in json.loads(told.stdout) if not f["ok"]] == ["permission CreateVolume, us-east-1"]
    assert "planted-secret" not in told.stdout + told.stderr
