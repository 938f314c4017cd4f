"""Everything of ours in a project of Google Cloud, of every deployment and in every region, and its end.

Found by the labels ``everstep-deployment`` and ``everstep-server``, whatever their values: instances, disks and
addresses; by their names, since they have no labels: placement policies of gangs and firewall rules of servers. A disk
that goes with its machine is part of it. Names are used again here, so before anything is ended it is looked at once
more: its label and age must still be those that were listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from everstep.model.errors import BadRequest, ProviderError, Throttled
from everstep.model.offers import Market
from everstep.providers.gcp import disks as volumes
from everstep.providers.gcp import naming, pricing
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.errors import GONE, IN_USE, code_of
from everstep.providers.gcp.market import BILLING, instant, region_of
from everstep.providers.leftovers import CallsHome, Found, Leftover, NotOurs, told

IDLE_ADDRESS_USD_PER_H = 0.01
USED_ADDRESS_USD_PER_H = 0.005
"""Of a static external IPv4 address: https://cloud.google.com/vpc/network-pricing#ipaddress; of one that a spot machine
uses it is less."""
_MARKS = (naming.DEPLOYMENT, naming.SERVER)
_OURS = " OR ".join(f"(labels.{mark}:*)" for mark in _MARKS)
_RUNS = ("PENDING", "PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
_PATIENCE_S = 300.0


class GcpSweeper:
    """See ``leftovers.Sweeper``. Five calls for the whole project; what is not permitted is said, and left out."""

    def __init__(self, calls: Calls, *, look_s: float, now: Callable[[], float]) -> None:
        """Args: look_s: between two looks at something that changes; now: UTC seconds."""
        self._calls = calls
        self._look_s = look_s
        self._now = now

    async def look(self, regions: Sequence[str]) -> Found:
        """See ``Sweeper.look``."""
        unseen: list[str] = []

        async def part(what: str, asked: Awaitable[list[Json]]) -> list[Json]:
            try:
                return await asked
            except ProviderError as error:
                unseen.append(f"{what}: {error}")
                return []

        # The first is not optional: credentials that cannot even list instances sweep nothing.
        machines = await self._calls.everything("instances", "instances", filter=_OURS)
        calls, groups_of_all = self._calls, naming.filter_of_groups()
        disks, addresses, groups, rules = await asyncio.gather(
            part("disks", calls.everything("disks", "disks", filter=_OURS)),
            part("addresses", calls.everything("addresses", "addresses", filter=_OURS)),
            part("placement policies", calls.everything("resource_policies", "resourcePolicies", filter=groups_of_all)),
            part("firewall rules", calls.listed("firewalls", filter=naming.filter_of_firewalls())),
        )
        found = [self._machine(m) for m in machines]
        prices = await self._disk_prices(disks)
        found += [t for d in disks if (t := self._disk(d, prices)) is not None]
        found += [_address(a) for a in addresses]
        found += [_group(g, machines) for g in groups if _is_ours(g) and g.get("status") != "DELETING"]
        found += [_firewall(r) for r in rules if _is_ours(r)]
        return Found(tuple(t for t in found if not regions or t.region in regions), tuple(unseen))

    async def calls_home(self, machine: Leftover) -> CallsHome | None:
        """See ``Sweeper.calls_home``: by its startup script."""
        described = await self._calls.one("instances", zone=machine.zone, instance=machine.id)
        items = {} if described is None else described.get("metadata", {}).get("items", [])
        return next((told(i.get("value", "")) for i in items if i.get("key") == "startup-script"), None)

    async def end(self, thing: Leftover) -> None:
        """See ``Sweeper.end``."""
        region, name = thing.region, thing.id
        match thing.kind:
            case "instance":
                await self._end_instance(thing)
            case "volume":
                await self._end_disk(thing)
            case "group":
                await self._until_gone(thing, "resource_policies", region=region, resource_policy=name)
            case "firewall":
                await self._until_gone(thing, "firewalls", firewall=name)
            case _:
                await self._until_gone(thing, "addresses", region=region, address=name)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _disk_prices(self, disks: Iterable[Json]) -> dict[tuple[str, str], float]:
        """USD per GiB and hour, by region and type; without those that are not to be had."""
        regions = {region_of(naming.last(d["zone"])) for d in disks if "zone" in d}
        if not regions:
            return {}
        try:
            return (await pricing.rates(self._calls, regions)).disks
        except ProviderError:
            return {}

    def _machine(self, machine: Json) -> Leftover:
        labels, scheduling = naming.of(machine), machine.get("scheduling", {})
        spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible", False)
        market = Market.SPOT if spot else Market.ON_DEMAND
        since = instant(machine.get("lastStartTimestamp", "")) or instant(machine.get("creationTimestamp", ""))
        price = naming.price_of(labels)
        runs = machine["status"] in _RUNS and price > 0 and since is not None
        lived_s = max(self._now() - (since or 0.0), 0.0)
        return Leftover(
            kind="instance",
            id=machine["name"],
            zone=naming.last(machine["zone"]),
            what=naming.last(machine["machineType"]),
            market=str(market),
            state=machine["status"].lower(),
            since=since,
            price_usd_per_h=price if runs else None,
            cost_usd=BILLING[market].cost_usd(lived_s, price, reclaimed=False) if runs else None,
            region=region_of(naming.last(machine["zone"])),
            **_marks(labels),
        )

    def _disk(self, disk: Json, prices: dict[tuple[str, str], float]) -> Leftover | None:
        labels = naming.of(disk)
        users = [naming.last(u) for u in disk.get("users", [])]
        if (naming.VOLUME not in labels and users) or disk.get("status") == "DELETING" or "zone" not in disk:
            return None  # goes with its machine, or is going
        zone, kind, size_gib = naming.last(disk["zone"]), naming.last(disk["type"]), float(disk["sizeGb"])
        since = instant(disk.get("creationTimestamp", ""))
        usd = prices.get((region_of(zone), kind))
        hours = None if since is None else max(self._now() - since, 0.0) / 3600.0
        return Leftover(
            kind="volume",
            id=volumes.id_of(disk),
            region=region_of(zone),
            zone=zone,
            what=f"{size_gib:g} GiB {kind}",
            state=str(disk.get("status", "")).lower(),
            since=since,
            price_usd_per_h=None if usd is None else usd * size_gib,
            cost_usd=None if usd is None or hours is None else usd * size_gib * hours,
            attached_to=users[0] if users else "",
            **_marks(labels),
        )

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _end_instance(self, thing: Leftover) -> None:
        machine = await self._calls.one("instances", zone=thing.zone, instance=thing.id)
        if machine is None:
            return
        _check(thing, machine)
        for disk in machine.get("disks", []):
            name = naming.last(disk.get("source", ""))
            if disk.get("autoDelete") and name:
                described = await self._calls.one("disks", zone=thing.zone, disk=name)
                if described is not None and not _is_ours(described):
                    raise NotOurs(f"{thing.id} would take {name} along, which is not ours: detach it first")
        try:
            await self._calls.done(await self._calls.call("instances", "delete", zone=thing.zone, instance=thing.id))
        except BadRequest as error:
            if code_of(error) not in GONE:
                raise

    async def _end_disk(self, thing: Leftover) -> None:
        name, number = volumes.parted(thing.id)
        deadline = self._now() + _PATIENCE_S
        while True:
            disk = await self._calls.one("disks", zone=thing.zone, disk=name)
            if disk is None or disk["id"] != number:
                return
            _check(thing, disk)
            try:
                await self._calls.done(await self._calls.call("disks", "delete", zone=thing.zone, disk=name))
                return
            except BadRequest as error:
                if code_of(error) in GONE:
                    return
                if code_of(error) not in IN_USE or not await self._is_going(thing, disk):
                    raise
                if self._now() > deadline:
                    raise Throttled(f"{name} is still attached: {error}", retry_after_s=60.0) from error
            await asyncio.sleep(self._look_s)

    async def _is_going(self, thing: Leftover, disk: Json) -> bool:
        """Whether whoever has the disk is on the way out."""
        users = [naming.last(u) for u in disk.get("users", [])]
        machines = [await self._calls.one("instances", zone=thing.zone, instance=u) for u in users]
        return all(m is None or m["status"] not in _RUNS for m in machines)

    async def _until_gone(self, thing: Leftover, service: str, **where: Any) -> None:
        """Asks until it is let go of: machines that end hold on to their address and their group for a while."""
        deadline = self._now() + _PATIENCE_S
        asked = False
        while True:
            described = await self._calls.one(service, **where)
            if described is None:
                return
            _check(thing, described)
            if not asked:
                try:
                    await self._calls.call(service, "delete", **where)
                    asked = True
                except BadRequest as error:
                    if code_of(error) not in IN_USE:
                        raise
            if self._now() > deadline:
                raise Throttled(f"{thing.kind} {thing.id} is still there", retry_after_s=60.0)
            await asyncio.sleep(self._look_s)


def _address(address: Json) -> Leftover:
    users = [naming.last(u) for u in address.get("users", [])]
    return Leftover(
        kind="address",
        id=address["name"],
        region=naming.last(address.get("region", "")),
        what=address.get("address", ""),
        state="in use" if users else "idle",
        since=instant(address.get("creationTimestamp", "")),
        price_usd_per_h=USED_ADDRESS_USD_PER_H if users else IDLE_ADDRESS_USD_PER_H,
        attached_to=users[0] if users else "",
        **_marks(naming.of(address)),
    )


def _group(policy: Json, machines: Iterable[Json]) -> Leftover:
    users = [m["name"] for m in machines if policy["name"] in map(naming.last, m.get("resourcePolicies", []))]
    return Leftover(
        kind="group",
        id=policy["name"],
        region=naming.last(policy["region"]),
        what="compact placement policy",
        state="in use" if users else "idle",
        since=instant(policy.get("creationTimestamp", "")),
        price_usd_per_h=0.0,
        cost_usd=0.0,
        **_marks(naming.group_labels(policy)),
    )


def _firewall(rule: Json) -> Leftover:
    return Leftover(
        kind="firewall",
        id=rule["name"],
        region="global",
        what="firewall rule",
        since=instant(rule.get("creationTimestamp", "")),
        price_usd_per_h=0.0,
        cost_usd=0.0,
        **_marks(naming.firewall_labels(rule)),
    )


def _marks(labels: dict[str, str]) -> dict[str, Any]:
    return {
        "deployment": labels.get(naming.DEPLOYMENT, ""),
        "job": labels.get(naming.JOB, ""),
        "is_server": naming.SERVER in labels,
    }


def _check(thing: Leftover, described: Json) -> None:
    """Raises NotOurs unless it still carries the label that it was listed for, and is as old."""
    if not _is_ours(described) or _labels(described).get(naming.DEPLOYMENT, "") != thing.deployment:
        raise NotOurs(f"{thing.id} does not carry the labels any more that it was found by")
    made = instant(described.get("lastStartTimestamp", "")) or instant(described.get("creationTimestamp", ""))
    if made is not None and thing.since is not None and made > thing.since + 1.0:
        raise NotOurs(f"{thing.id} is another one than a moment ago: look again")


def _is_ours(described: Json) -> bool:
    return not _labels(described).keys().isdisjoint(_MARKS)


def _labels(described: Json) -> dict[str, str]:
    """Of what has labels, those; of a placement policy or a firewall rule what is known in their place."""
    return naming.of(described) or naming.group_labels(described) or naming.firewall_labels(described)
