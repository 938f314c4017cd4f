"""Compute Engine's side of a run: the fake, the provider over Google's client, and a REST client that only judges."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from everstep.model.ids import InstanceId
from everstep.ports import Provider
from everstep.providers.gcp import GcpProvider, naming
from everstep.testing.fault_runs.run import Bill, Seen
from everstep.testing.fault_runs.weather import Sure
from everstep.testing.faults import OrderedFaults
from everstep.testing.gce import FakeGce, Supply, Timing, World
from everstep.testing.gce.market import KINDS, SMALL_WORLD
from everstep.testing.scripted_run import DEPLOYMENT
from everstep.testing.virtual import VirtualClock

REGION = "us-central1"
_POOL = "g2-standard-8"
"""Of a series that is placed: its gangs have placement policies."""
_TOKEN = "fault-runs"
WORLD = World(
    supplies={("us-central1-a", _POOL): Supply(spot_room=[(0.0, 4)]), ("us-central1-b", _POOL): Supply()},
    kinds=KINDS,
    rates=SMALL_WORLD.rates,
)
TIMING = Timing(notice_s=15.0, stop_s=7.0, provision_s=1.5, stage_s=3.0, operation_s=1.7, hidden_s=1.3)
INSERT = "compute.instances.insert"
BULK = "compute.instances.bulkInsert"
"""How a gang is launched whose machines have no disks that outlive them."""
_TROUBLE = ("throttle", "throttle_429", "internal", "unavailable", "cut")
_MORE: dict[str, tuple[str, ...]] = {
    INSERT: ("stock_out", "stock_out_plain", "quota", "quota_at_once", "internal_later", "permission"),
    BULK: ("stock_out", "too_few", "no_capacity_at_once", "quota", "quota_at_once", "internal_later", "permission"),
    "compute.disks.insert": ("quota", "internal_later", "permission"),
    "compute.instances.delete": ("internal_later",),
    "compute.disks.delete": ("internal_later",),
    "compute.resourcePolicies.insert": ("quota", "internal_later", "permission"),
    "compute.resourcePolicies.delete": ("internal_later", "permission"),
}
CALLS = (
    INSERT,
    "compute.instances.delete",
    "compute.disks.insert",
    "compute.disks.delete",
    "compute.instances.get",
    "compute.disks.get",
    "compute.instances.aggregatedList",
    "compute.disks.aggregatedList",
    "compute.resourcePolicies.insert",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.aggregatedList",
    "compute.regionOperations.get",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "compute.globalOperations.aggregatedList",
    "compute.machineTypes.aggregatedList",
    "cloudbilling.services.skus.list",
)
"""Calls that a run makes."""
GANG_CALLS = (BULK,)
"""Calls that a run of gangs makes, and no other."""


def sure_of(seed: int) -> Sure:
    """The fault that is certain in the run of a seed: in turn each typed error, each break before and after."""
    return _one_of(seed, CALLS, INSERT)


def sure_of_gangs(seed: int) -> Sure:
    """The same of a run of gangs."""
    return _one_of(seed, GANG_CALLS, BULK)


def _one_of(seed: int, calls: Sequence[str], launch: str) -> Sure:
    ways = [(kind, late) for kind in _TROUBLE for late in (False, True) if "throttle" not in kind or not late]
    ways += [(kind, False) for kind in ("permission", "quota_at_once", "bad_parameter")]
    all_of_them = [(call, kind, late) for call in calls for kind, late in ways]
    all_of_them += [(call, kind, False) for call in calls for kind in _MORE.get(call, ())]
    all_of_them += [(launch, kind, False) for kind in ("credentials", "disabled")]
    call, kind, late = all_of_them[seed % len(all_of_them)]
    return Sure(call, kind, late, number=1 + seed // len(all_of_them) % 3)


class GceVendor:
    """See ``Vendor``."""

    name = "gcp"

    def __init__(self) -> None:
        """See the class."""
        self.faults: OrderedFaults = OrderedFaults(())

    def kinds(self, call: str) -> Sequence[str]:
        """See ``Vendor.kinds``."""
        return (*_TROUBLE, *_MORE.get(call, ()))

    def start(self, clock: VirtualClock) -> None:
        """See ``Vendor.start``."""
        self._clock = clock
        self._fake = FakeGce(WORLD, TIMING, tokens=frozenset({_TOKEN}), now=clock.now)
        self.faults = self._fake.faults
        self._fake.start()

    def stop(self) -> None:
        """See ``Vendor.stop``."""
        self._fake.stop()

    def provider(self, rng: Random) -> Provider:
        """See ``Vendor.provider``."""
        from google.oauth2.credentials import Credentials

        make: Any = Credentials
        return GcpProvider(
            self._fake.project,
            (REGION,),
            (_POOL,),
            endpoint_url=self._fake.url,
            credentials=make(token=_TOKEN),
            notice_s=TIMING.notice_s,
            now=self._clock.now,
            rng=rng,
        )

    def machines(self) -> list[Seen]:
        """See ``Vendor.machines``."""
        with self._fake.server.lock:
            self._fake.cloud.settle()
            now = self._clock.now()
            marks = {o.request_id for o in self._fake.cloud.operations.values() if o.kind == "delete"}
            return [
                Seen(
                    InstanceId(m.name),
                    naming.of(m.described(self._fake.cloud.project, now)).get(naming.TOKEN, ""),
                    m.zone,
                    # It never was, or it was taken back before anybody was told.
                    m.fails_at is not None or naming.request_id(m.name, "taken back") in marks,
                    m.status(now) == "RUNNING",
                    not m.holds(now),
                    m.stopped_at if m.preempted_at is not None and m.preempted_at <= now else None,
                )
                for m in self._fake.cloud.machines.values()
            ]

    def disks(self) -> list[str]:
        """See ``Vendor.disks``."""
        with self._fake.server.lock:
            kept = [d for d in self._fake.cloud.disks.values() if naming.VOLUME in d.labels]
            return [f"{d.name}.{d.id}" for d in kept]

    def take_back(self, instance: InstanceId, notice_s: float) -> None:
        """See ``Vendor.take_back``; only spot machines are, and their notice is always as long.

        The vendor does not tell when a machine stopped that it deletes; everstep bills until the notice is over.
        """
        if self._fake.machine(instance).spot:
            self._fake.preempt(instance)

    def lose(self, instance: InstanceId) -> None:
        """See ``Vendor.lose``."""
        self._fake.lose(instance)

    def run_dry(self, zone: str, launches: int) -> None:
        """See ``Vendor.run_dry``."""
        for call in (INSERT, BULK):
            self._fake.fail(call, "stock_out", times=launches, zone=zone)

    def left(self) -> set[str]:
        """See ``Vendor.left``."""
        machines = self._listed("aggregated/instances", "instances")
        disks = self._listed("aggregated/disks", "disks")
        found = {m["name"] for m in machines}
        found |= {f"{d['name']}.{d['id']}" for d in disks if not d.get("users")}
        found |= {p["name"] for p in self._listed("aggregated/resourcePolicies", "resourcePolicies")}
        return found

    def charges(self) -> Mapping[str, Bill]:
        """See ``Vendor.charges``."""
        rows = self._fake.meter(label=(naming.DEPLOYMENT, DEPLOYMENT))
        found = {}
        for row in rows:
            kind, _, name = row["resource"].rpartition("/")
            found[f"{name}.{row['id']}" if kind else name] = Bill(row["start"], row["end"], row["cost_usd"])
        return found

    def trouble(self) -> list[str]:
        """See ``Vendor.trouble``."""
        return list(self._fake.server.crashes)

    def _listed(self, path: str, plural: str) -> list[dict[str, Any]]:
        url = f"{self._fake.url}/compute/v1/projects/{self._fake.project}/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=30) as answer:
            scopes = json.load(answer)["items"]
        return [thing for scope in scopes.values() for thing in scope.get(plural, [])]
