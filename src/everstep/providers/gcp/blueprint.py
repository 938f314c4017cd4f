"""What a machine is to be like, in the words of REST: ``Instance`` for one, ``InstanceProperties`` for many.

The first names types by partial URLs, the second by their bare names, as templates of instances do. What differs among
machines that one call makes is in a table that all of them have (see ``naming.table``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.model import handshake as hs
from everstep.model.errors import BadRequest
from everstep.model.offers import Market
from everstep.ports import LaunchRequest
from everstep.providers.gcp import naming
from everstep.providers.gcp.accelerators import parted, vendors_name
from everstep.providers.gcp.calls import Json
from everstep.providers.gcp.market import region_of
from everstep.providers.gcp.settings import Settings
from everstep.providers.gcp.startup import DEVICE, boot_script

_SCOPES = ["https://www.googleapis.com/auth/logging.write", "https://www.googleapis.com/auth/monitoring.write"]
"""What a machine's own account may do, where it has one: write logs. It needs the account for its identity token."""


class Blueprint:
    """Machines as the settings want them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def instance(self, request: LaunchRequest, name: str, *, disk: str | None, group: str) -> Json:
        """``Instance``. Raises BadRequest for a boot script that cannot be.

        Args:
            disk: name of the disk that is kept; None = the machine has none.
            group: placement policy, ``regions/R/resourcePolicies/NAME``; empty = none.
        """
        zone = f"zones/{request.offer.zone}"
        boots_from_volume = disk is not None and self._settings.keep == "boot_disk"
        volume = "" if request.volume is None else "boot" if boots_from_volume else "data"
        resource = self._machine(request, zone=f"{zone}/", group=group)
        resource |= {
            "name": name,
            "description": f"everstep {request.job} {request.launch_no}",
            "labels": naming.of_launch(request),
            "metadata": _metadata({"startup-script": _script(request.user_data, volume=volume)}),
        }
        kept = {"source": f"{zone}/disks/{disk}", "autoDelete": False, "deviceName": DEVICE, "mode": "READ_WRITE"}
        if boots_from_volume:
            resource["disks"] = [{**kept, "boot": True}]
            return resource
        resource["disks"] = [self._own_disk(request, f"{zone}/", naming.of_own_disk(request))]
        if disk is not None:
            resource["disks"].append(kept)
        return resource

    def properties(self, named: Mapping[str, LaunchRequest], *, group: str) -> Json:
        """``InstanceProperties`` of machines that are alike (see ``bulk.alike``). Raises BadRequest.

        Args:
            named: by the names of the machines.
            group: as above.
        """
        first = next(iter(named.values()))
        shared = {key: value for key, value in first.user_data.items() if key != hs.BOOT_TOKEN}
        return self._machine(first, zone="", group=naming.last(group)) | {
            "description": f"everstep {first.job}",
            "labels": naming.of_many(first),
            "metadata": _metadata(
                {"startup-script": _script(shared, one_of_many=True), naming.TABLE: naming.table(named)}
            ),
            "disks": [self._own_disk(first, "", naming.of_own_disks(first))],
        }

    def _machine(self, request: LaunchRequest, *, zone: str, group: str) -> dict[str, Any]:
        """What both have. Args: zone: in front of the names of types, ``zones/Z/``; empty = bare names."""
        kind, attached = parted(request.offer.machine.name)
        resource: dict[str, Any] = {
            "machineType": f"{zone}machineTypes/{kind}" if zone else kind,
            "scheduling": self._scheduling(request, group),
            "networkInterfaces": [self._interface(region_of(request.offer.zone))],
            "serviceAccounts": [{"email": self._settings.service_account, "scopes": _SCOPES}],
        }
        if group:
            resource["resourcePolicies"] = [group]
        if attached is not None:
            name = vendors_name(attached[0])
            link = f"{zone}acceleratorTypes/{name}" if zone else name
            resource["guestAccelerators"] = [{"acceleratorType": link, "acceleratorCount": attached[1]}]
        return resource

    def _own_disk(self, request: LaunchRequest, zone: str, labels: Mapping[str, str]) -> Json:
        settings = self._settings
        own_gib = settings.boot_disk_gib if request.disk_gib is None else request.disk_gib
        make = {
            "sourceImage": settings.gpu_image if request.offer.machine.accelerator else settings.cpu_image,
            "diskType": f"{zone}diskTypes/{settings.disk_type}" if zone else settings.disk_type,
            "diskSizeGb": str(max(int(-(-own_gib // 1)), 1)),
            "labels": dict(labels),
        }
        return {"boot": True, "autoDelete": True, "initializeParams": make}

    def _scheduling(self, request: LaunchRequest, group: str) -> Json:
        # Nobody restarts it but us: a machine that comes back by itself after a host error has lost its processes.
        scheduling: Json = {"automaticRestart": False, "onHostMaintenance": "TERMINATE"}
        if request.offer.market is not Market.SPOT:
            if not request.offer.machine.accelerator and not group:  # what is placed cannot be moved
                scheduling["onHostMaintenance"] = "MIGRATE"
        elif self._settings.legacy_preemptible:
            scheduling["preemptible"] = True
        else:
            # A stopped machine would go on costing its disk: what is preempted is deleted by the vendor itself.
            scheduling |= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
        return scheduling

    def _interface(self, region: str) -> Json:
        subnetwork = self._settings.subnetworks.get(region)
        interface: Json = {"subnetwork": subnetwork} if subnetwork else {"network": self._settings.network}
        if self._settings.external_address:
            interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        return interface


def _metadata(items: Mapping[str, str]) -> Json:
    return {"items": [{"key": key, "value": value} for key, value in items.items()]}


def _script(boot: Mapping[str, str], *, volume: str = "", one_of_many: bool = False) -> str:
    try:
        return boot_script(boot, volume=volume, one_of_many=one_of_many)
    except ValueError as error:
        raise BadRequest(str(error)) from error
