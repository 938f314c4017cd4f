"""A server on a machine that is leased for it: a fake EC2 whose machines boot, a real sshd on them, real processes."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pytest

from everstep.client import remote
from everstep.client.home import Home
from everstep.client.placing import hosted
from everstep.providers.aws.hosting import REPEATS
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from tests.cli.conftest import Cli
from tests.cli.leasing import Cloud, leased_from
from tests.cli.sshd import until

SECRET = "planted/SECRET+of/whoever/types/the/command"
KEY = "AKIAIOSFODNN7EXAMPLE"
ROLE_KEY = "ASIAROLEOFTHEMACHINE"
WORLD = World(
    supplies={
        ("us-east-1a", "m5.large"): Supply([(0.0, 0.04)]),
        ("us-east-1b", "t3.small"): Supply([(0.0, 0.01)]),
        ("us-east-1c", "t3.small"): Supply([(0.0, 0.01)]),
    },
    on_demand_usd_per_h={"m5.large": 0.096, "t3.small": 0.0208},
)
QUICK = Timing(notice_s=4.0, boot_s=0.3, shut_down_s=5.0, hidden_s=0.2)


class Ec2(Cloud):
    """A fake account, its machines and a client of the vendor's SDK."""

    logs = ("consoles/*", "machines/*/root/*.log")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fake = FakeEc2(WORLD, QUICK, access_keys=frozenset({KEY, ROLE_KEY}), machines=self.machines)
        self.certificate = folder / "identity.pem"
        self.certificate.write_bytes(self.fake.signer.certificate_pem)

    @cached_property
    def sdk(self) -> Any:
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": "any"}
        return boto3.client("ec2", "us-east-1", endpoint_url=self.fake.url, **keys)

    def config(self) -> str:
        aws = {
            "regions": ["us-east-1"],
            "types": ["m5.large"],
            "endpoint_url": self.fake.url,
            "identity_certificates": str(self.certificate),
            "notice_s": QUICK.notice_s,
            "look_s": 0.2,
        }
        return json.dumps({"providers": {"aws": aws}})

    def hosts(self) -> list[dict[str, Any]]:
        """Machines of servers that live."""
        found = self.sdk.describe_instances(Filters=[{"Name": "tag-key", "Values": ["everstep:server"]}])
        machines = [i for r in found["Reservations"] for i in r["Instances"]]
        return [m for m in machines if m["State"]["Name"] in ("pending", "running")]

    def rules(self) -> set[tuple[int, str]]:
        """Ports that are open to whom."""
        (group,) = self.groups()
        return {(p["FromPort"], r["CidrIp"]) for p in group["IpPermissions"] for r in p["IpRanges"]}

    def groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.sdk.describe_security_groups()["SecurityGroups"]
        return [g for g in found if g["GroupName"].startswith("everstep-server-")]


@pytest.fixture
def cloud(
    tmp_path: Path, leak_guard: str, home: Home, one_wheel: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ec2]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with leased_from(Ec2(tmp_path / "c"), home) as made:
        yield made


@pytest.mark.e2e
@pytest.mark.expensive(family="clouds end to end")
def test_up_run_reboot_lose_up_down_delete(cli: Cli, home: Home, cloud: Ec2, tmp_path: Path) -> None:
    bucket = f"file://{tmp_path / 'bucket'}"
    up = ("server", "up", "aws", "-y", "--allow", "0.0.0.0/0", "--profile", "everstep-server", "--backup", bucket)
    done = cli(*up)
    assert done.code == 0, done.err + cloud.console()
    # A t3.small by the fake's price list, 20 GiB at $0.08 a month, the address.
    usd_per_h = 0.0208 + 20 * 0.08 / 730 + 0.005
    assert "\n$0.0280/h until everstep server down, $20.43 a month (AWS price list, VPC page)\n" in done.err
    (host,) = cloud.hosts()
    assert (host["InstanceType"], host["Placement"]["AvailabilityZone"]) == ("t3.small", "us-east-1b")
    first = remote.find(home)
    assert first is not None
    assert (first.kind, first.host) == ("aws", host["InstanceId"])
    assert host["PublicIpAddress"] in first.url
    assert cloud.rules() == {(7443, "0.0.0.0/0")}, "ssh was open for the set-up only"
    assert {stat.S_IMODE(p.stat().st_mode) for p in hosted.folder_of(home).iterdir()} == {0o600}

    shown = json.loads(cli("server", "status", "-o", "json").out)
    assert {line["what"] for line in shown["remote"]["lines"]} == {"machine", "address", "disk"}
    assert shown["remote"]["usd_per_h"] == pytest.approx(usd_per_h, rel=1e-9)
    assert "so far" in cli("server", "status").out

    done = cli("run", "-y", "--", "echo it runs $EVERSTEP_JOB on a leased machine")
    assert (done.code, "on a leased machine" in done.out) == (0, True), done.err + cloud.console()
    job = json.loads(cli("jobs", "--all", "-o", "json").out)[0]["job"]
    asked = {path for name, _, path, _ in cloud.fake.metadata.asked if name == first.host}
    assert any("iam/security-credentials/everstep-server" in path for path in asked), "credentials of its role"
    spilled = [p for p in (tmp_path / "c" / "cloud").rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert not spilled

    # A reboot: the boot hook brings it back, same place, same pin.
    with cloud.lent_python():
        cloud.fake.reboot(first.host)
        until(lambda: cli("server", "status").code == 0, cloud.console)
    assert remote.find(home) == first

    # The machine is gone for good; the disk is not.
    cloud.fake.lose(first.host)
    until(lambda: not cloud.hosts(), cloud.console)
    assert cli("server", "status").code == 3
    done = cli(*up)
    assert done.code == 0, done.err + cloud.console()
    again = remote.find(home)
    assert again is not None
    assert again.host != first.host
    assert (again.deployment, again.fingerprint, again.token) == (first.deployment, first.fingerprint, first.token)
    assert job in cli("jobs", "--all").out

    alive = cli("run", "-y", "-d", "--", "sleep 600").out.strip()
    refused = cli("server", "down", "-y")
    assert (refused.code, "1 job lives" in refused.err) == (1, True), refused.err
    assert cli("cancel", alive).code == 0
    until(lambda: cli("server", "down", "-y").code == 0, cloud.console)
    assert (cloud.hosts(), cloud.groups(), remote.find(home)) == ([], [], None)
    (disk,) = cloud.fake.left()
    kept = cli("server", "status")
    assert (kept.code, "disk" in kept.out) == (3, True)
    assert cli("server", "down", "-y", "--delete").code == 0
    assert cloud.fake.left() == []
    assert not hosted.folder_of(home).exists()
    assert disk.startswith("vol-")


def test_it_is_refused_before_anything_is_leased(cli: Cli, home: Home, cloud: Ec2) -> None:
    done = cli("server", "up", "aws", "-y")
    assert (done.code, "--allow 0.0.0.0/0" in done.err, done.err.count("\n")) == (2, True, 1)
    done = cli("server", "up", "aws", "-y", "--allow", "10.0.0.0/99")
    assert (done.code, "--allow" in done.err) == (2, True)
    done = cli("server", "up", "aws", "-y", "--allow", "0.0.0.0/0", "--machine", "t9.huge")
    assert (done.code, "t9.huge" in done.err) == (1, True), done.err
    home.config_file.write_text("{}")
    done = cli("server", "up", "aws", "-y", "--allow", "0.0.0.0/0")
    assert (done.code, "--region" in done.err) == (2, True)
    assert not hosted.folder_of(home).exists()
    assert cloud.fake.left() == []


def test_where_nobody_can_be_asked_nothing_is_leased_nor_remembered(
    cli: Cli, home: Home, cloud: Ec2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = cli("server", "up", "aws", "--allow", "0.0.0.0/0")
    refusal = "everstep server up aws: asks before it spends, and there is no terminal to ask on; add -y"
    assert (done.code, done.err.splitlines()[-1]) == (2, refusal)
    assert cloud.fake.left() == []
    assert hosted.find(home) is None


def test_a_set_up_that_was_cut_off_is_undone_from_here(cli: Cli, home: Home, cloud: Ec2) -> None:
    """The launch happened, its answer was lost, and so was the patience of who typed it."""
    cloud.fake.fail("RunInstances", "cut", late=True, times=REPEATS)
    done = cli("server", "up", "aws", "-y", "--allow", "0.0.0.0/0")
    assert (done.code, "run_instances" in done.err) == (1, True), done.err
    until(lambda: len(cloud.hosts()) == 1, cloud.console)
    assert remote.find(home) is None
    done = cli("server", "status")
    assert (done.code, "everstep server down --delete" in done.out) == (3, True)
    assert cli("server", "down", "-y", "--delete").code == 0
    assert cloud.fake.left() == cloud.groups() == cloud.hosts() == []
