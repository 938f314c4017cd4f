"""``Filters`` of describe calls: AND between filters, OR between values, ``*`` and ``?``; unknown names are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from everstep.testing.ec2.wire import Refused

Getter = Callable[[dict[str, Any]], Any]

INSTANCE: Mapping[str, Getter] = {
    "availability-zone": lambda d: d["Placement"]["AvailabilityZone"],
    "client-token": lambda d: d["ClientToken"],
    "image-id": lambda d: d["ImageId"],
    "instance-id": lambda d: d["InstanceId"],
    "instance-lifecycle": lambda d: d.get("InstanceLifecycle", ""),
    "instance-state-name": lambda d: d["State"]["Name"],
    "instance-type": lambda d: d["InstanceType"],
    "placement-group-name": lambda d: d["Placement"]["GroupName"],
    "spot-instance-request-id": lambda d: d.get("SpotInstanceRequestId", ""),
}
VOLUME: Mapping[str, Getter] = {
    "attachment.instance-id": lambda d: [a["InstanceId"] for a in d["Attachments"]],
    "availability-zone": lambda d: d["AvailabilityZone"],
    "status": lambda d: d["State"],
    "volume-id": lambda d: d["VolumeId"],
    "volume-type": lambda d: d["VolumeType"],
}
SPOT_REQUEST: Mapping[str, Getter] = {
    "instance-id": lambda d: d["InstanceId"],
    "spot-instance-request-id": lambda d: d["SpotInstanceRequestId"],
    "state": lambda d: d["State"],
    "status-code": lambda d: d["Status"]["Code"],
}
SPOT_PRICE: Mapping[str, Getter] = {
    "availability-zone": lambda d: d["AvailabilityZone"],
    "instance-type": lambda d: d["InstanceType"],
    "product-description": lambda d: d["ProductDescription"],
}
MACHINE_TYPE: Mapping[str, Getter] = {
    "instance-type": lambda d: d["InstanceType"],
    "current-generation": lambda d: str(d.get("CurrentGeneration", True)).lower(),
}
OFFERING: Mapping[str, Getter] = {"instance-type": lambda d: d["InstanceType"], "location": lambda d: d["Location"]}
GROUP: Mapping[str, Getter] = {"group-name": lambda d: d["GroupName"], "strategy": lambda d: d["Strategy"]}


def matching(
    described: Iterable[dict[str, Any]], filters: Sequence[Mapping[str, Any]], known: Mapping[str, Getter]
) -> list[dict[str, Any]]:
    """Those that every filter lets pass. Raises Refused for a filter that EC2 does not have (or the fake)."""
    tests = []
    for given in filters:
        name, values = given.get("Name", ""), given.get("Values", [])
        if not name.startswith("tag:") and name != "tag-key" and name not in known:
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not values or len(values) > 200:
            raise Refused("FilterLimitExceeded", f"The filter '{name}' has {len(values)} values; 1 to 200 are allowed")
        tests.append((_getter(name, known), values))
    return [d for d in described if all(_passes(get(d), values) for get, values in tests)]


def _getter(name: str, known: Mapping[str, Getter]) -> Getter:
    if name == "tag-key":
        return lambda d: [t["Key"] for t in d.get("Tags", [])]
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda d: [t["Value"] for t in d.get("Tags", []) if t["Key"] == key]
    return known[name]


def _passes(have: Any, wanted: Sequence[str]) -> bool:
    values = have if isinstance(have, list) else [have]
    # Brackets are plain characters to EC2.
    return any(fnmatchcase(v, w.replace("[", "[[]")) for v in values for w in wanted)
