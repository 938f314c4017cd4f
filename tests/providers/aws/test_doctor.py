from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.providers.aws.doctor import Finding, examine
from tests.providers.aws.conftest import MakeFake, MakeProvider
from tests.providers.aws.test_policy import actions


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
