"""Installations on the fake EC2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3

from everstep.client.results import LineView
from everstep.providers.aws import AwsProvider
from everstep.testing.booting import Machines
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from tests.e2e.clouds import Cloud, CloudRig

SECRET = "planted/SECRET+of/the/test/0123456789abcd"
"""The cloud's secret key of the server. Nothing but the server's own environment may ever hold it."""
KEY = "AKIAIOSFODNN7EXAMPLE"
WORLD = World(
    supplies={
        ("us-east-1a", "m5.large"): Supply([(0.0, 0.04)]),
        ("us-east-1b", "m5.large"): Supply([(0.0, 0.05)]),
        ("us-east-1c", "m5.large"): Supply([(0.0, 0.06)]),
    },
    on_demand_usd_per_h={"m5.large": 0.096},
)
QUICK = Timing(notice_s=4.0, boot_s=0.3, shut_down_s=2.0, hidden_s=0.2)


class Ec2(Cloud):
    """A fake account.

    Args:
        folder: of the whole rig.
        world, timing: of the fake.
    """

    provider = "aws"

    def __init__(self, folder: Path, *, world: World = WORLD, timing: Timing = QUICK) -> None:
        self.machines = Machines(folder / self.provider)
        self.fake = FakeEc2(world, timing, access_keys=frozenset({KEY}), machines=self.machines)
        self.fake.start()
        self._certificate = folder / "identity.pem"
        self._certificate.write_bytes(self.fake.signer.certificate_pem)
        self.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": "any"}
        self.sdk = boto3.client("ec2", "us-east-1", endpoint_url=self.fake.url, **keys)

    def settings(self) -> dict[str, Any]:
        return {
            "regions": ["us-east-1"],
            "types": ["m5.large"],
            "endpoint_url": self.fake.url,
            "identity_certificates": str(self._certificate),
            "notice_s": self.fake.cloud.timing.notice_s,
            "look_s": 0.2,
        }

    def instance(self, name: str) -> dict[str, Any]:
        """As the vendor's SDK sees a machine."""
        (reservation,) = self.sdk.describe_instances(InstanceIds=[name])["Reservations"]
        found: dict[str, Any] = reservation["Instances"][0]
        return found

    def zone(self, machine: str) -> str:
        return str(self.instance(machine)["Placement"]["AvailabilityZone"])

    def alive(self) -> list[dict[str, Any]]:
        found = [
            {"kind": "instance", "id": i["InstanceId"], "token": i.get("ClientToken", "")}
            for r in self.sdk.describe_instances()["Reservations"]
            for i in r["Instances"]
            if i["State"]["Name"] != "terminated"
        ]
        found += [{"kind": "volume", "id": v["VolumeId"], "token": ""} for v in self.sdk.describe_volumes()["Volumes"]]
        groups = self.sdk.describe_placement_groups()["PlacementGroups"]
        addresses = self.sdk.describe_addresses()["Addresses"]
        found += [{"kind": "group", "id": g["GroupName"], "token": ""} for g in groups]
        return found + [{"kind": "address", "id": a["AllocationId"], "token": ""} for a in addresses]

    def preempt(self, machine: str, *, notice_s: float | None = None) -> None:
        self.fake.interrupt(machine, notice_s=notice_s)

    def dry(self, zone: str) -> None:
        for operation in ("RunInstances", "CreateVolume"):
            self.fake.fail(operation, "stock_out", times=10_000, zone=zone)

    def meter(self) -> list[dict[str, Any]]:
        rows = self.fake.meter()
        for row in rows:  # a disk that came with its machine is called as in the bill
            disk = self.fake.cloud.disks.get(row["resource"])
            if disk is not None and disk.made_with:
                row["resource"] = f"{disk.made_with}/boot"
        return rows

    def patience_s(self, line: LineView) -> tuple[float, float]:
        """EC2 tells no end for disks, nor for lost machines on demand."""
        machine = self.fake.cloud.machines.get(line.instance or "")
        if machine is not None and machine.spot is None and machine.reason_code == "Server.InternalError":
            return 1e-3, AwsProvider.poll_s + 5.0
        return 1e-3, 1e-3 if line.kind == "compute" else self.fake.cloud.timing.shut_down_s + 1.0


class Ec2Rig(CloudRig):
    """One installation on one fake account; arguments as of ``Ec2`` and ``CloudRig``."""

    def __init__(self, folder: Path, *, world: World = WORLD, timing: Timing = QUICK, **settings: Any) -> None:
        folder.mkdir(parents=True)
        self.ec2 = Ec2(folder, world=world, timing=timing)
        self.fake, self.machines = self.ec2.fake, self.ec2.machines
        super().__init__(folder, [self.ec2], **settings)
