"""Names and labels: on everything that is created, so that everything that costs can be found again.

Labels are what DESIGN calls tags. Their keys and values are lower-case letters, digits, ``-`` and ``_``, at most 63
(https://docs.cloud.google.com/compute/docs/labeling-resources#requirements), so a price is written in nano-dollars.

A machine's name says whose it is, too: of a deleted machine only operations are left, and these have no labels. It is
``JOB-DEPLOYMENT-TOKEN``, the deployment as a fingerprint of 40 bits and the token in base 32, and ``-N`` for the N-th
machine of a token whose first ones were taken back before anybody was told of them.

Machines that one call made have the same labels and the same metadata. Their tokens are read from their names, and what
else differs stands in a table that all of them have in their metadata.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.model import handshake as hs
from everstep.model.ids import DeploymentId, JobId, LaunchToken
from everstep.ports import LaunchRequest, VolumeSpec

DEPLOYMENT = "everstep-deployment"
JOB = "everstep-job"
LAUNCH = "everstep-launch"
TOKEN = "everstep-token"
MARKET = "everstep-market"
PRICE = "everstep-nanousd-per-h"
"""At which it was leased."""
VOLUME = "everstep-volume"
"""Name of a disk that outlives its machine."""
SERVER = "everstep-server"
"""Part of a server of ours: the list of a deployment and the sweep never take it for a stray."""
TABLE = "everstep-machines"
"""Metadata of machines that one call made, see ``table``."""

_TOKEN = re.compile(r"ev[0-9a-f]{48}")
_JOB = re.compile(r"[a-z][a-z0-9-]{0,8}[a-z0-9]")
_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_GROUP = re.compile(r"everstep-[a-z2-7]{8}-[0-9a-f]{32}")
_RULE = re.compile(r"everstep-server-([0-9a-f]{12})")
_MARK = re.compile(r"(everstep-[a-z]+)=([a-z0-9_-]+)")
_NAME = re.compile(r"([a-z][a-z0-9-]*[a-z0-9])-([a-z2-7]{8})-([a-z2-7]{39})(?:-(\d+))?")
_REQUESTS = uuid.UUID("5c1e0f0a-9d2b-5a53-8d7e-0b6d3a9f5a11")
"""Name space of our request ids."""


@dataclass(frozen=True, slots=True)
class Whose:
    """What a machine's name says of it."""

    deployment: str
    job: JobId
    token: LaunchToken

    def of(self, deployment: DeploymentId) -> bool:
        """Whether it belongs to that deployment."""
        return self.deployment == _fingerprint(deployment)


def machine_name(request: LaunchRequest, generation: int) -> str:
    """Name of the machine of a launch; the same launch always has the same one."""
    if _TOKEN.fullmatch(request.token) and _JOB.fullmatch(request.job):
        token = _base32(bytes.fromhex(request.token[2:]))
        name = f"{request.job}-{_fingerprint(request.deployment)}-{token}"
    else:  # of no journal of ours: found by its labels alone
        name = "ev-" + hashlib.sha256(f"{request.deployment} {request.token}".encode()).hexdigest()[:48]
    return name if generation == 0 else f"{name}-{generation}"


def whose(name: str) -> Whose | None:
    """What the name says; None for one that is not ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    token = base64.b32decode(found[3].upper() + "=").hex()
    return Whose(found[2], JobId(found[1]), LaunchToken(f"ev{token}"))


def disk_name(spec: VolumeSpec) -> str:
    """Name of a disk; one per deployment, name and zone."""
    text = "\x1f".join((spec.deployment, spec.name, spec.zone))
    return "ev-" + hashlib.sha256(text.encode()).hexdigest()[:40]


def group_name(request: LaunchRequest) -> str:
    """Name of the placement policy of a gang: one per deployment, job, zone and machine type."""
    text = "\x1f".join((request.job, request.offer.zone, request.offer.machine.name))
    return f"everstep-{_fingerprint(request.deployment)}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def group_description(request: LaunchRequest) -> str:
    """A placement policy has no labels: these are in its description, ``everstep-deployment=D everstep-job=J``."""
    return f"{DEPLOYMENT}={_value(request.deployment)} {JOB}={_value(request.job)}"


def group_labels(described: Mapping[str, Any]) -> dict[str, str]:
    """What the description of a placement policy says; nothing of one that is not ours."""
    found = dict(_MARK.findall(described.get("description", "")))
    return found if _GROUP.fullmatch(described.get("name", "")) else {}


def firewall_labels(described: Mapping[str, Any]) -> dict[str, str]:
    """A firewall rule has no labels: that of a server of ours is known by its name and by the machine it is about."""
    found = _RULE.fullmatch(described.get("name", ""))
    return {SERVER: found[1]} if found and described.get("targetTags") == [found[0]] else {}


def filter_of_groups(deployment: DeploymentId | None = None) -> str:
    """``filter`` that matches the placement policies of a deployment, or of all."""
    return f'name eq "everstep-{".*" if deployment is None else _fingerprint(deployment)}-.*"'


def filter_of_firewalls() -> str:
    """``filter`` that matches the firewall rules of servers."""
    return 'name eq "everstep-server-.*"'


def request_id(*parts: str) -> str:
    """The id of a request, a UUID as the vendor wants it: of the same parts always the same."""
    return str(uuid.uuid5(_REQUESTS, "\x1f".join(parts)))


def of_launch(request: LaunchRequest) -> dict[str, str]:
    """Labels of a machine and its own disk."""
    return {
        DEPLOYMENT: _value(request.deployment),
        JOB: _value(request.job),
        LAUNCH: str(request.launch_no),
        TOKEN: _value(request.token),
        MARKET: request.offer.market.value,
        PRICE: str(round(request.offer.price_usd_per_h * 1e9)),
    }


def of_volume(spec: VolumeSpec) -> dict[str, str]:
    """Labels of a disk that outlives its machine."""
    return {DEPLOYMENT: _value(spec.deployment), JOB: _value(spec.job), VOLUME: _value(spec.name)}


def of_own_disk(request: LaunchRequest) -> dict[str, str]:
    """Labels of a machine's own disk."""
    labels = of_launch(request)
    return {key: labels[key] for key in (DEPLOYMENT, JOB, LAUNCH, TOKEN)}


def of_many(request: LaunchRequest) -> dict[str, str]:
    """Labels of machines that one call makes: what ``of_launch`` says of any of them."""
    return {key: value for key, value in of_launch(request).items() if key not in (LAUNCH, TOKEN)}


def of_own_disks(request: LaunchRequest) -> dict[str, str]:
    """Labels of the own disks of machines that one call makes."""
    return {key: value for key, value in of_own_disk(request).items() if key not in (LAUNCH, TOKEN)}


def table(named: Mapping[str, LaunchRequest]) -> str:
    """What differs among machines that one call makes: for each a line of name, number of the launch and join token."""
    return "".join(f"{name} {r.launch_no} {r.user_data[hs.BOOT_TOKEN]}\n" for name, r in named.items())


def of(described: Mapping[str, Any]) -> dict[str, str]:
    """The labels of something; of a machine of many that one call made also those that it could not be given."""
    labels = dict(described.get("labels", {}))
    if DEPLOYMENT in labels and TOKEN not in labels:
        items = described.get("metadata", {}).get("items", [])
        rows = next((item.get("value", "") for item in items if item.get("key") == TABLE), "")
        found = re.search(rf"^{re.escape(described['name'])} (\d+) ", rows, re.MULTILINE)
        known = whose(described["name"]) if found else None
        if found is not None and known is not None:
            labels |= {LAUNCH: found[1], TOKEN: known.token}
    return labels


def filter_of(deployment: DeploymentId) -> str:
    """``filter`` that matches everything of a deployment."""
    return f'labels.{DEPLOYMENT} = "{_value(deployment)}"'


def is_of(labels: Mapping[str, str], deployment: DeploymentId) -> bool:
    """Whether labels say that something belongs to a deployment."""
    return labels.get(DEPLOYMENT) == _value(deployment)


def same(described: Mapping[str, Any], request: LaunchRequest) -> bool:
    """Whether a machine is the one that ``request`` asks for."""
    labels = of(described)
    kind = str(described.get("machineType", "")).rpartition("/")[2]
    wanted = of_launch(request)
    return (
        all(labels.get(key) == value for key, value in wanted.items())
        and kind == request.offer.machine.name.partition("+")[0]
        and str(described.get("zone", "")).rpartition("/")[2] == request.offer.zone
    )


def price_of(labels: Mapping[str, str]) -> float:
    """USD per hour at which a machine was leased; 0 if nobody wrote it down."""
    text = labels.get(PRICE, "")
    return int(text) / 1e9 if text.isdigit() else 0.0


def last(url: str) -> str:
    """The name at the end of a URL."""
    return url.rpartition("/")[2]


def _value(text: str) -> str:
    """A label's value: the text itself where that is allowed."""
    return text if _VALUE.fullmatch(text) else "x" + hashlib.sha256(text.encode()).hexdigest()[:48]


def _fingerprint(deployment: str) -> str:
    return _base32(hashlib.sha256(deployment.encode()).digest()[:5])


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()
