"""Which permissions a call needs.

``instances.insert`` and ``bulkInsert`` need one for each thing that they say (https://docs.cloud.google.com/compute/docs/instances/
create-start-instance, "Required permissions"); the others need the one of their name
(https://docs.cloud.google.com/compute/docs/access/iam-permissions).
"""

from __future__ import annotations

from everstep.testing.gce.discovery import Called

_OF = {
    "compute.instances.aggregatedList": ["compute.instances.list"],
    "compute.addresses.aggregatedList": ["compute.addresses.list"],
    "compute.disks.aggregatedList": ["compute.disks.list"],
    "compute.machineTypes.aggregatedList": ["compute.machineTypes.list"],
    "compute.acceleratorTypes.aggregatedList": ["compute.acceleratorTypes.list"],
    "compute.resourcePolicies.aggregatedList": ["compute.resourcePolicies.list"],
    "compute.globalOperations.aggregatedList": ["compute.globalOperations.list"],
    "compute.zoneOperations.wait": ["compute.zoneOperations.get"],
    "compute.instances.attachDisk": ["compute.instances.attachDisk", "compute.disks.use"],
    "compute.images.getFromFamily": [],
    # Public prices: any caller whose project has the API switched on.
    "cloudbilling.services.skus.list": [],
    "cloudresourcemanager.projects.testIamPermissions": [],
    "compute.advice.capacityHistory": ["compute.advice.capacityHistory"],
}


def needed(called: Called) -> list[str]:
    """Names of permissions, ``compute.instances.create``."""
    body = called.body
    if called.method in ("compute.instances.insert", "compute.instances.bulkInsert"):
        body = body.get("instanceProperties", body)
        found = ["compute.instances.create", "compute.subnetworks.use"]
        for key, permission in (("labels", "setLabels"), ("metadata", "setMetadata"), ("tags", "setTags")):
            found += [f"compute.instances.{permission}"] if body.get(key) else []
        found += ["compute.instances.setServiceAccount"] if body.get("serviceAccounts") else []
        found += ["compute.resourcePolicies.use"] if body.get("resourcePolicies") else []
        if any(n.get("accessConfigs") for n in body.get("networkInterfaces", [])):
            found.append("compute.subnetworks.useExternalIp")
        for disk in body.get("disks", []):
            make = disk.get("initializeParams")
            found.append("compute.disks.create" if make is not None else "compute.disks.use")
            found += ["compute.disks.setLabels"] if make is not None and make.get("labels") else []
        return found
    if called.method == "compute.disks.insert":
        return ["compute.disks.create", *(["compute.disks.setLabels"] if body.get("labels") else [])]
    changes = {"insert": "create", "patch": "update"}
    collection, _, verb = called.method.rpartition(".")
    if collection == "compute.resourcePolicies" and verb == "insert":
        return [f"{collection}.create"]
    if collection == "compute.firewalls" and verb != "list":
        found = [f"{collection}.{changes.get(verb, verb)}"]
        return found if verb == "get" else [*found, "compute.networks.updatePolicy"]
    return _OF.get(called.method, [called.method])
