"""A server's own machine on Compute Engine: a standard one, a disk that outlives it, a firewall rule.

Everything has a name made of the host's id, so that a repeat finds it, and the label ``everstep-server``. What it
costs: cores, memory and disk by the billing catalog, and the external address
(https://cloud.google.com/vpc/network-pricing#ipaddress: "in use on standard VM instances: $0.005 per hour").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from everstep.model.errors import BadInput, BadRequest, Problem, Throttled
from everstep.model.offers import MachineType
from everstep.providers import boot_script, host_script
from everstep.providers.gcp import errors, naming, pricing
from everstep.providers.gcp.calls import Calls, Json
from everstep.providers.gcp.errors import GONE, IN_USE, THERE, code_of
from everstep.providers.gcp.market import instant, region_of
from everstep.providers.gcp.settings import CPU_IMAGE
from everstep.providers.gcp.startup import LIMIT_BYTES
from everstep.providers.hosting import Host, Rates, Standing

DEVICE = "everstep-server"
DISK_TYPE = "pd-balanced"
ADDRESS_USD_PER_H = 0.005
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
"""What its account may do is a matter of its roles: https://docs.cloud.google.com/compute/docs/access/
service-accounts#scopes_best_practice."""
_SHARED_CORES = {"e2-micro": 0.25, "e2-small": 0.5, "e2-medium": 1.0}
"""Fractions of a core that are billed: https://docs.cloud.google.com/compute/docs/general-purpose-machines, "E2
shared-core machine types"."""
_UP = ("PROVISIONING", "STAGING", "RUNNING", "REPAIRING")
_GOING = ("STOPPING", "PENDING_STOP", "DEPROVISIONING")
# google-auth on a test machine finds the machine's account at a metadata server that is not metadata.google.internal.
_HERE = r"""
GCE_METADATA_HOST="${EVERSTEP_METADATA#*=http://}"
GCE_METADATA_IP="$GCE_METADATA_HOST"
export GCE_METADATA_HOST GCE_METADATA_IP
more=" HOME=$HOME GCE_METADATA_HOST=$GCE_METADATA_HOST GCE_METADATA_IP=$GCE_METADATA_HOST"
"""


class GcpHosting:
    """Implements ``Hosting``.

    Args:
        project: whose it is.
        region: where.
        network: of the machine; default: the network ``default``.
        subnetworks: by region; needed where the network makes none by itself.
        endpoint_url: where to call instead of Google, for fakes.
        credentials: of google-auth; default: the vendor's own chain.
        look_s: between two looks at something that changes.
        patience_s: how long anything may take.
    """

    kind = "gcp"

    def __init__(
        self,
        project: str,
        region: str,
        *,
        network: str = "global/networks/default",
        subnetworks: Mapping[str, str] | None = None,
        endpoint_url: str | None = None,
        credentials: Any = None,
        look_s: float = 2.0,
        patience_s: float = 600.0,
    ) -> None:
        if find_spec("google.cloud.compute_v1") is None:
            fix = "pip install 'everstep[gcp]'"
            raise BadInput(Problem("provider", "gcp", "needs google-cloud-compute, which is not installed", fix))
        self.calls = Calls(project, endpoint_url=endpoint_url, credentials=credentials, look_s=look_s)
        self._region = region
        self._network = network
        self._subnetworks = dict(subnetworks or {})
        self._look_s = look_s
        self._patience_s = patience_s

    async def zone_for(self, machine: str) -> str:
        """See ``Hosting``: the first in order."""
        rows = await self.calls.everything("machine_types", "machineTypes", filter=f'name = "{machine}"')
        zones = sorted(naming.last(row["zone"]) for row in rows if row["name"] == machine)
        here = [zone for zone in zones if region_of(zone) == self._region]
        if not here:
            raise BadRequest(f"no zone of {self._region} has machines of type {machine!r}")
        return here[0]

    async def rates(self, host: Host) -> Rates:
        """See ``Hosting``."""
        kind = await self.calls.call("machine_types", "get", zone=host.zone, machine_type=host.machine)
        cores = _SHARED_CORES.get(host.machine, float(kind["guestCpus"]))
        machine = MachineType(host.machine, "", 0, cores, kind["memoryMb"] / 1024.0)
        rates = await pricing.rates(self.calls, [self._region])
        usd = rates.machine_usd_per_h(self._region, machine, spot=False)
        disk = rates.disks.get((self._region, DISK_TYPE), 0.0) * host.disk_gib
        return Rates(usd or 0.0, disk, ADDRESS_USD_PER_H, "billing catalog, VPC page")

    async def look(self, host: Host) -> Standing:
        """See ``Hosting``."""
        machine = await self.calls.one("instances", zone=host.zone, instance=host.name)
        disk = await self.calls.one("disks", zone=host.zone, disk=_disk_name(host))
        found: dict[str, Any] = {
            "disk": "" if disk is None else _disk_name(host),
            "disk_since": 0.0 if disk is None else instant(disk.get("creationTimestamp", "")) or 0.0,
            "generation": host.generation,
        }
        if machine is None or machine["status"] in _GOING:
            return Standing(**found)
        accesses = [a for i in machine.get("networkInterfaces", []) for a in i.get("accessConfigs", [])]
        return Standing(
            machine=host.name,
            state=machine["status"],
            address=next((a["natIP"] for a in accesses if a.get("natIP")), ""),
            machine_since=instant(machine.get("lastStartTimestamp", "") or machine["creationTimestamp"]) or 0.0,
            **found,
        )

    async def ensure(self, host: Host) -> Standing:
        """See ``Hosting``."""
        if region_of(host.zone) != self._region:
            raise BadRequest(f"zone {host.zone!r} is not in {self._region}")
        there = await self.look(host)
        if not there.disk:
            await self._make("disks", "insert", ("disk_resource", self._disk(host)), zone=host.zone)
        deadline = time.monotonic() + self._patience_s
        while True:
            there = await self.look(host)
            if there.state == "RUNNING" and there.address:
                return there
            if there.state and there.state not in _UP:
                text = f"{host.name} is {there.state}"
                raise BadRequest(f"{text}; start it (gcloud compute instances start), or end it: everstep server down")
            if not there.state:
                try:
                    resource = ("instance_resource", self._machine(host))
                    await self._make("instances", "insert", resource, zone=host.zone)
                except BadRequest as error:
                    if code_of(error) not in IN_USE:  # the machine before it takes a moment to let go
                        raise
            if time.monotonic() > deadline:
                raise BadRequest(f"{host.name} does not run with an external address after {self._patience_s:.0f} s")
            await asyncio.sleep(self._look_s)

    async def let_in(self, host: Host, ports: Sequence[int]) -> None:
        """See ``Hosting``. The rule names the machine by its network tag."""
        rule: Json = {
            "name": host.name,
            "description": "everstep server: who may call it",
            "network": self._network,
            "direction": "INGRESS",
            "sourceRanges": list(host.allow),
            "targetTags": [host.name],
            "allowed": [{"IPProtocol": "tcp", "ports": [str(port) for port in ports]}],
        }
        if await self.calls.one("firewalls", firewall=host.name) is None:
            await self._make("firewalls", "insert", ("firewall_resource", rule))
        else:
            await self._make("firewalls", "patch", ("firewall_resource", rule), firewall=host.name)

    async def remove(self, host: Host, *, disk: bool) -> None:
        """See ``Hosting``. The machine first: it holds the disk."""
        await self._delete("instances", zone=host.zone, instance=host.name)
        await self._delete("firewalls", firewall=host.name)
        if disk:
            await self._delete("disks", zone=host.zone, disk=_disk_name(host))

    def close(self) -> None:
        """See ``Hosting``."""
        self.calls.close()

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _disk(self, host: Host) -> Json:
        return {
            "name": _disk_name(host),
            "description": "journal of an everstep server",
            "type": f"zones/{host.zone}/diskTypes/{DISK_TYPE}",
            "labels": {naming.SERVER: host.id},
            "sizeGb": str(host.disk_gib),
        }

    def _machine(self, host: Host) -> Json:
        zone = f"zones/{host.zone}"
        script = host_script.script(
            host,
            first=["#!/bin/sh"],
            mount=boot_script.mounted(f"google-{DEVICE}"),
            here=_HERE,
            limit=("Compute Engine", LIMIT_BYTES),
        )
        subnetwork = self._subnetworks.get(self._region)
        made: Json = {
            "name": host.name,
            "description": "an everstep server",
            "machineType": f"{zone}/machineTypes/{host.machine}",
            "labels": {naming.SERVER: host.id},
            "tags": {"items": [host.name]},
            # After a host error the vendor starts it again, and the script the server.
            "scheduling": {"automaticRestart": True, "onHostMaintenance": "MIGRATE"},
            "networkInterfaces": [
                {
                    **({"subnetwork": subnetwork} if subnetwork else {"network": self._network}),
                    "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
                }
            ],
            "metadata": {"items": [{"key": "startup-script", "value": script}]},
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {
                        "sourceImage": host.image or CPU_IMAGE,
                        "diskType": f"{zone}/diskTypes/{DISK_TYPE}",
                        "labels": {naming.SERVER: host.id},
                    },
                },
                {
                    "source": f"{zone}/disks/{_disk_name(host)}",
                    "autoDelete": False,
                    "deviceName": DEVICE,
                    "mode": "READ_WRITE",
                },
            ],
        }
        if host.role:
            made["serviceAccounts"] = [{"email": host.role, "scopes": _SCOPES}]
        return made

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _make(self, service: str, method: str, body: tuple[str, Json], **where: Any) -> None:
        """Without a request id: the name is what makes a repeat harmless."""
        try:
            await self._done(await self.calls.call(service, method, body, **where))
        except BadRequest as error:
            if code_of(error) not in THERE:
                raise

    async def _delete(self, service: str, **where: Any) -> None:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                await self._done(await self.calls.call(service, "delete", **where))
                return
            except BadRequest as error:
                if code_of(error) in GONE:
                    return
                if code_of(error) not in IN_USE or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(self._look_s)

    async def _done(self, operation: Json) -> None:
        """Returns once it is done. Raises the typed error that it holds."""
        zone = naming.last(operation.get("zone", ""))
        where: dict[str, Any] = {"zone": zone} if zone else {}
        service = "zone_operations" if zone else "global_operations"
        deadline = time.monotonic() + self._patience_s
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise Throttled(f"{operation['name']} is not done after {self._patience_s:.0f} s")
            await asyncio.sleep(self._look_s)
            operation = await self.calls.call(service, "get", operation=operation["name"], **where)
        failure = errors.failed(operation)
        if failure is not None:
            raise failure


def _disk_name(host: Host) -> str:
    return f"{host.name}-data"
