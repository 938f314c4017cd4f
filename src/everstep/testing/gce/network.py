"""Firewall rules of the fake vendor: made, changed and deleted by operations that belong to no zone."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from everstep.testing.gce.books import Operation
from everstep.testing.gce.discovery import Called, Refused

if TYPE_CHECKING:
    from everstep.testing.gce.cloud import Cloud

_MOST_TAGS = 70
"""https://docs.cloud.google.com/firewall/docs/firewalls: target tags of a rule."""


def insert(cloud: Cloud, called: Called) -> Operation:
    """``firewalls.insert``."""

    def act(request: str) -> Operation:
        name = called.body.get("name", "")
        if name in cloud.firewall_rules:
            text = f"The resource 'projects/{cloud.project.id}/global/firewalls/{name}' already exists"
            raise Refused(409, "alreadyExists", text)
        return _put(cloud, "insert", name, called.body, request)

    return cloud.once(called, act)


def patch(cloud: Cloud, called: Called) -> Operation:
    """``firewalls.patch``: what is said replaces what there is, field by field."""

    def act(request: str) -> Operation:
        name = _known(cloud, called)
        return _put(cloud, "patch", name, {**cloud.firewall_rules[name], **called.body}, request)

    return cloud.once(called, act)


def delete(cloud: Cloud, called: Called) -> Operation:
    """``firewalls.delete``."""

    def act(request: str) -> Operation:
        name = _known(cloud, called)
        del cloud.firewall_rules[name]
        return _operation(cloud, "delete", name, request)

    return cloud.once(called, act)


def _known(cloud: Cloud, called: Called) -> str:
    name = str(called.path["firewall"])
    if name not in cloud.firewall_rules:
        raise cloud.missing(f"global/firewalls/{name}")
    return name


def _put(cloud: Cloud, verb: str, name: str, rule: dict[str, Any], request: str) -> Operation:
    if ("allowed" in rule) == ("denied" in rule):
        raise Refused(400, "invalid", "Exactly one of allowed and denied must be specified.")
    versions = set()
    for text in rule.get("sourceRanges", []):
        try:
            versions.add(ipaddress.ip_network(text).version)
        except ValueError:
            message = f"Invalid value for field 'resource.sourceRanges': '{text}'. Must be a CIDR address range."
            raise Refused(400, "invalid", message) from None
    if len(versions) > 1:
        raise Refused(400, "invalid", "Firewall sourceRanges cannot mix IPv4 and IPv6 address ranges.")
    if len(rule.get("targetTags", [])) > _MOST_TAGS:
        raise Refused(400, "invalid", "Invalid value for field 'resource.targetTags': too many tags.")
    cloud.firewall_rules[name] = {key: value for key, value in rule.items() if key != "name"}
    return _operation(cloud, verb, name, request)


def _operation(cloud: Cloud, verb: str, name: str, request: str) -> Operation:
    done = cloud.now() + cloud.timing.operation_s
    return cloud.operation("", verb, (f"global/firewalls/{name}", cloud.new_id()), done, request)
