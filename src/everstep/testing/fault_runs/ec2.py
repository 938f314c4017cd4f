"""EC2's side of a run: the fake, the provider over boto3, and a boto3 client that only judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from everstep.model.ids import InstanceId
from everstep.ports import Provider
from everstep.providers.aws import AwsProvider, tags
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from everstep.testing.fault_runs.run import Bill, Seen
from everstep.testing.fault_runs.weather import Sure
from everstep.testing.faults import OrderedFaults
from everstep.testing.scripted_run import DEPLOYMENT
from everstep.testing.virtual import VirtualClock

REGION = "us-east-1"
WORLD = World(
    supplies={
        ("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)], spot_room=[(0.0, 4)]),
        ("us-east-1b", "g4dn.xlarge"): Supply([(0.0, 0.19)]),
    },
    on_demand_usd_per_h={"g4dn.xlarge": 0.526},
)
TIMING = Timing(notice_s=20.0, boot_s=4.0, shut_down_s=7.0, hidden_s=1.3)
_TROUBLE = ("throttle", "internal", "unavailable", "cut")
_MORE: dict[str, tuple[str, ...]] = {
    "RunInstances": ("stock_out", "quota", "spot_quota", "price", "permission"),
    "CreateVolume": ("quota", "permission"),
}
CALLS = (
    "RunInstances",
    "CreateVolume",
    "AttachVolume",
    "TerminateInstances",
    "DeleteVolume",
    "DescribeInstances",
    "DescribeVolumes",
    "DescribeSpotInstanceRequests",
    "DescribeSpotPriceHistory",
    "DescribeInstanceTypes",
    "DescribeInstanceTypeOfferings",
    "GetProducts",
    "CreatePlacementGroup",
    "DeletePlacementGroup",
    "DescribePlacementGroups",
)
"""Calls that a run makes."""


def sure_of(seed: int) -> Sure:
    """The fault that is certain in the run of a seed: in turn each typed error, each break before and after."""
    ways = [(kind, late) for kind in _TROUBLE for late in (False, True) if kind != "throttle" or not late]
    ways += [(kind, False) for kind in ("permission", "quota", "bad_parameter")]
    all_of_them = [(call, kind, late) for call in CALLS for kind, late in ways]
    all_of_them += [("RunInstances", kind, False) for kind in ("stock_out", "price", "spot_quota", "credentials")]
    call, kind, late = all_of_them[seed % len(all_of_them)]
    return Sure(call, kind, late, number=1 + seed // len(all_of_them) % 3)


class Ec2Vendor:
    """See ``Vendor``. Credentials are those of the environment, whatever they are."""

    name = "aws"

    def __init__(self) -> None:
        """See the class."""
        self.faults: OrderedFaults = OrderedFaults(())
        self._clients: list[Any] = []

    def kinds(self, call: str) -> Sequence[str]:
        """See ``Vendor.kinds``."""
        return (*_TROUBLE, *_MORE.get(call, ()))

    def start(self, clock: VirtualClock) -> None:
        """See ``Vendor.start``."""
        self._clock = clock
        self._fake = FakeEc2(WORLD, TIMING, now=clock.now)
        self.faults = self._fake.faults
        self._fake.start()

    def stop(self) -> None:
        """See ``Vendor.stop``."""
        self._fake.stop()

    def provider(self, rng: Random) -> Provider:
        """See ``Vendor.provider``."""
        return AwsProvider(
            (REGION,),
            ("g4dn.*",),
            endpoint_url=self._fake.url,
            notice_s=TIMING.notice_s,
            now=self._clock.now,
            rng=rng,
        )

    def machines(self) -> list[Seen]:
        """See ``Vendor.machines``."""
        with self._fake.server.lock:
            self._fake.cloud.settle()
            now = self._clock.now()
            machines = list(self._fake.cloud.machines.values())
            latest = {m.tags.get(tags.TOKEN): m.token for m in machines}
            return [
                Seen(
                    InstanceId(m.id),
                    m.tags.get(tags.TOKEN, ""),
                    m.zone,
                    # The call that marks one as taken back may be lost; the server goes on under another token then.
                    tags.VOID in m.tags or (not m.alive(now) and latest[m.tags.get(tags.TOKEN)] != m.token),
                    m.state(now) == "running",
                    not m.alive(now),
                    None if m.doom is None else m.doom[0],
                )
                for m in machines
            ]

    def disks(self) -> list[str]:
        """See ``Vendor.disks``."""
        with self._fake.server.lock:
            return [d.id for d in self._fake.cloud.disks.values() if not d.made_with]

    def take_back(self, instance: InstanceId, notice_s: float) -> None:
        """See ``Vendor.take_back``; only spot machines are."""
        with self._fake.server.lock:
            if self._fake.cloud.machines[instance].spot is None:
                return
        self._fake.interrupt(instance, notice_s=notice_s)

    def lose(self, instance: InstanceId) -> None:
        """See ``Vendor.lose``."""
        self._fake.lose(instance)

    def run_dry(self, zone: str, launches: int) -> None:
        """See ``Vendor.run_dry``."""
        self._fake.fail("RunInstances", "stock_out", times=launches, zone=zone)

    def left(self) -> set[str]:
        """See ``Vendor.left``."""
        import boto3

        client = boto3.session.Session().client("ec2", region_name=REGION, endpoint_url=self._fake.url)
        pages = client.get_paginator("describe_instances").paginate()
        machines = [m for page in pages for r in page["Reservations"] for m in r["Instances"]]
        found = {m["InstanceId"] for m in machines if m["State"]["Name"] != "terminated"}
        disks = [d for page in client.get_paginator("describe_volumes").paginate() for d in page["Volumes"]]
        found |= {d["VolumeId"] for d in disks if d["State"] not in ("deleting", "deleted")}
        requests = client.describe_spot_instance_requests()["SpotInstanceRequests"]
        found |= {r["SpotInstanceRequestId"] for r in requests if r["State"] in ("open", "active")}
        found |= {g["GroupName"] for g in client.describe_placement_groups()["PlacementGroups"]}
        client.close()
        return found

    def charges(self) -> Mapping[str, Bill]:
        """See ``Vendor.charges``."""
        rows = self._fake.meter(tag=(tags.DEPLOYMENT, DEPLOYMENT))
        return {r["resource"]: Bill(r["start"], r["end"], r["cost_usd"]) for r in rows}

    def trouble(self) -> list[str]:
        """See ``Vendor.trouble``."""
        return list(self._fake.server.crashes)
