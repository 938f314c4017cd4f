"""The fake vendor on the wire: REST of compute v1, and of the billing catalog, judged by their discovery documents."""

from __future__ import annotations

import json
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from everstep.testing.faults import Fault
from everstep.testing.gce import catalog, filters, network, policies
from everstep.testing.gce.books import Operation
from everstep.testing.gce.cloud import Cloud
from everstep.testing.gce.discovery import Called, Refused, api
from everstep.testing.gce.faults import CODES, Faults, in_operation
from everstep.testing.gce.market import region_of
from everstep.testing.gce.permissions import needed
from everstep.testing.loopback import Asked, Loopback, Reply

_APIS = (
    ("/compute/v1/", "compute.v1"),
    ("/v1/services", "cloudbilling.v1"),
    ("/v1/projects", "cloudresourcemanager.v1"),
)
_VERBS = ("GET", "POST", "DELETE", "PATCH", "PUT")
_WAIT_S = 120.0
"""``zoneOperations.wait`` "waits for no more than the 2 minutes"."""
_LOG_LENGTH = 10_000
_CHANGES: dict[str, Callable[[Cloud, Called], Operation]] = {
    "compute.instances.insert": Cloud.insert,
    "compute.instances.bulkInsert": Cloud.bulk_insert,
    "compute.instances.delete": Cloud.delete,
    "compute.instances.stop": Cloud.stop,
    "compute.instances.setLabels": Cloud.set_labels,
    "compute.instances.attachDisk": Cloud.attach_disk,
    "compute.instances.detachDisk": Cloud.detach_disk,
    "compute.instances.simulateMaintenanceEvent": Cloud.simulate_maintenance,
    "compute.disks.insert": Cloud.insert_disk,
    "compute.disks.delete": Cloud.delete_disk,
    "compute.disks.setLabels": Cloud.set_labels,
    "compute.firewalls.insert": network.insert,
    "compute.firewalls.patch": network.patch,
    "compute.firewalls.delete": network.delete,
    "compute.resourcePolicies.insert": policies.insert,
    "compute.resourcePolicies.delete": policies.delete,
}
_OPERATIONS = ("zoneOperations", "regionOperations", "globalOperations")
Things = dict[str, list[dict[str, Any]]]


class Server:
    """Answers requests for a cloud, one at a time.

    Attributes:
        calls: what was called: instant, method, zone (``""`` for none).
        refused: method, status, reason and words of every refused request.
        crashes: what went wrong in the fake itself.
        shown: every token that a caller had.
    """

    def __init__(
        self,
        cloud: Cloud,
        faults: Faults,
        *,
        tokens: frozenset[str] | None,
        allowed: frozenset[str] | None = None,
        port: int = 0,
    ) -> None:
        """Args: tokens: those that may call; allowed: permissions they have; None = any; port: 0 = a free one."""
        self.calls: deque[tuple[float, str, str]] = deque(maxlen=_LOG_LENGTH)
        self.refused: deque[tuple[str, int, str, str]] = deque(maxlen=_LOG_LENGTH)
        self.crashes: list[str] = []
        self.shown: set[str] = set()
        self.lock = threading.RLock()
        self._cloud = cloud
        self._faults = faults
        self._tokens = tokens
        self._allowed = allowed
        self._stopping = threading.Event()
        self.token = min(tokens) if tokens else "fake-token"
        """What is given for the key of a service account."""
        self.is_own: Callable[[str, float], bool] = lambda token, now: False
        """Whether the key of a service account of ours has signed a token that it was not given."""
        self.certificates: Callable[[], dict[str, str]] = dict
        """Those that verify identity tokens, by the key's id; also at ``/oauth2/v1/certs``."""
        self._loopback = Loopback("gce", self._reply, verbs=_VERBS, port=port)
        self.url = self._loopback.url

    def start(self) -> None:
        """Serves in a thread."""
        self._loopback.start()

    def stop(self) -> None:
        """Serves no more."""
        self._stopping.set()
        self._loopback.stop()

    # --- one request -------------------------------------------------------------------------------------------------

    def _reply(self, asked: Asked) -> Reply | None:
        found = self.answer(asked.verb, asked.target, asked.headers, asked.body)
        if found is None:
            return None
        return found[0], json.dumps(found[1]).encode(), {"Content-Type": "application/json; charset=UTF-8"}

    def answer(
        self, verb: str, target: str, headers: Mapping[str, str], data: bytes
    ) -> tuple[int, dict[str, Any]] | None:
        """Status and body; None: the connection breaks."""
        method = ""
        try:
            parts = urlsplit(target)
            body = json.loads(data) if data and parts.path != "/token" else None
            if verb == "GET" and parts.path == "/oauth2/v1/certs":  # public, as Google's
                return 200, dict(self.certificates())
            if verb == "POST" and parts.path == "/token":  # what a service account's key is exchanged for
                return 200, {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}
            name = next((name for start, name in _APIS if parts.path.startswith(start)), "")
            if not name:
                raise Refused(404, "notFound", f"{parts.path}: there is no such API here")
            document = api(name)
            query = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            self._caller(headers)
            called = document.called(verb, parts.path, query, body)
            method = called.method
            return 200, self._asked(called)
        except Refused as refused:
            self.refused.append((method, refused.status, refused.reason, refused.message))
            return refused.status, _fault(refused)
        except _Cut:
            return None
        except (ValueError, RecursionError):
            if method:  # not the caller's: it was read
                self.crashes.append(traceback.format_exc())
                return 500, _fault(Refused(500, "internalError", "the fake crashed"))
            self.refused.append((method, 400, "parseError", target))
            return 400, _fault(Refused(400, "parseError", "Parse Error"))
        except Exception:
            # A fault of the fake, not of the caller: tests look at ``crashes``.
            self.crashes.append(traceback.format_exc())
            return 500, _fault(Refused(500, "internalError", "the fake crashed"))

    def _caller(self, headers: Mapping[str, str]) -> None:
        """Raises Refused for one without a good token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            raise Refused(401, "required", "Login Required.")
        self.shown.add(token)
        if self._tokens is not None and token not in self._tokens and not self.is_own(token, self._cloud.now()):
            raise Refused(401, "authError", "Invalid Credentials")

    def _asked(self, called: Called) -> dict[str, Any]:
        zone = called.path.get("zone", "")
        self.calls.append((self._cloud.now(), called.method, zone))
        region = called.path.get("region", region_of(zone) if zone else "")
        if self._faults.throttled(region, called.method):
            raise _refusal("throttle")
        for permission in needed(called):
            if self._allowed is not None and permission not in self._allowed:
                project = self._cloud.project.id
                raise Refused(403, "forbidden", f"Required '{permission}' permission for 'projects/{project}'")
        fault = self._faults.take(called.method, zone)
        if fault is not None:
            time.sleep(fault.delay_s)
        if fault is not None and fault.kind and not fault.late and not in_operation(fault.kind):
            raise _refusal(fault.kind)
        if called.method in ("compute.zoneOperations.wait", "compute.regionOperations.wait"):
            self._wait(called)
        with self.lock:
            self._cloud.settle()
            found = self._done(called, fault)
        if fault is not None and fault.kind and fault.late:
            raise _refusal(fault.kind)
        return found

    def _operation(self, called: Called) -> Operation:
        path = called.path
        return self._cloud.operation_named(path.get("zone", ""), path["operation"], region=path.get("region", ""))

    def _wait(self, called: Called) -> None:
        """Until the operation is done; not with the lock."""
        with self.lock:
            operation = self._operation(called)
        begins = self._cloud.now()
        while (now := self._cloud.now()) < min(operation.done_at, begins + _WAIT_S) and not self._stopping.is_set():
            self._stopping.wait(min(operation.done_at - now, 0.05))

    def _done(self, called: Called, fault: Fault | None) -> dict[str, Any]:
        cloud, method = self._cloud, called.method
        self._of_this_project(called)
        if method in _CHANGES:
            if fault is not None and in_operation(fault.kind):
                operation = self._failing(called, fault.kind)
            else:
                operation = _CHANGES[method](cloud, called)
            return operation.described(cloud.project, cloud.now())
        _, collection, verb = method.rsplit(".", 2)
        if method == "cloudbilling.services.skus.list":
            return self._skus(called)
        if method == "cloudresourcemanager.projects.testIamPermissions":
            asked = called.body.get("permissions", [])
            return {"permissions": [p for p in asked if self._allowed is None or p in self._allowed]}
        if method == "compute.advice.capacityHistory":
            return catalog.capacity_history(cloud, called)
        if method == "compute.advice.capacity":
            return catalog.capacity(cloud, called)
        if method == "compute.images.getFromFamily":
            return catalog.image(cloud, called.path["project"], called.path["family"])
        if method == "compute.projects.get":
            return catalog.project(cloud)
        if collection in _OPERATIONS and verb in ("get", "wait"):
            return self._operation(called).described(cloud.project, cloud.now())
        things = self._things(collection)
        if things is None or verb not in ("get", "list", "aggregatedList"):
            raise Refused(501, "notImplemented", f"this fake does not play {method}")
        if verb == "get":
            return self._one(called, collection, things)
        return self._page(called, collection, things, aggregated=verb == "aggregatedList")

    def _of_this_project(self, called: Called) -> None:
        project = called.path.get("project", self._cloud.project.id)
        if project != self._cloud.project.id and not called.method.startswith("compute.images."):
            raise Refused(403, "forbidden", f"Required permission for 'projects/{project}'")

    def _failing(self, called: Called, kind: str) -> Operation:
        """An operation that is accepted and comes to nothing."""
        code, _, words = CODES[kind]
        cloud, zone = self._cloud, called.path.get("zone", "")
        name = called.body.get("name") or called.path.get("instance") or called.path.get("disk", "")
        name = name or called.path.get("resourcePolicy", "")
        verb = called.method.rpartition(".")[2]
        collection = called.method.split(".")[1]
        done = cloud.now() + cloud.timing.operation_s
        request = called.query.get("requestId", "")
        operation = cloud.operation(zone, verb, (f"{collection}/{name}", cloud.new_id()), done, request)
        operation.error = (code, words)
        operation.region = called.path.get("region", "")
        return operation

    # --- lists -------------------------------------------------------------------------------------------------------

    def _things(self, collection: str) -> Things | None:
        """What there is, by scope; None for what this fake does not play."""
        cloud, now = self._cloud, self._cloud.now()
        found: Things = {}
        match collection:
            case "instances":
                for machine in cloud.listed():
                    found.setdefault(machine.zone, []).append(machine.described(cloud.project, now))
            case "disks":
                for disk in cloud.disks.values():
                    if disk.deleted_at is None and disk.visible_at <= now:
                        found.setdefault(disk.zone, []).append(disk.described(cloud.project, now))
            case "resourcePolicies":
                for policy in cloud.policies.values():
                    found.setdefault(policy.region, []).append(policy.described(cloud.project, now))
            case "zoneOperations" | "globalOperations" | "regionOperations":
                for operation in cloud.operations.values():
                    if operation.inserted_at <= now:
                        described = operation.described(cloud.project, now)
                        found.setdefault(operation.zone or operation.region, []).append(described)
            case "machineTypes":
                return catalog.machine_types(cloud)
            case "acceleratorTypes":
                return catalog.accelerator_types(cloud)
            case "zones":
                return {"": catalog.zones(cloud)}
            case "regions":
                return {"": catalog.regions(cloud)}
            case "firewalls":
                return {"": catalog.firewalls(cloud)}
            case "subnetworks":
                return catalog.subnetworks(cloud)
            case "addresses" | "instanceGroups" | "snapshots":
                return {}  # nobody can make any here, so there are none
            case _:
                return None
        return found

    def _one(self, called: Called, collection: str, things: Things) -> dict[str, Any]:
        """By name; also what lists do not show yet."""
        cloud = self._cloud
        *_, name = called.path.values()  # the last parameter of the path
        zone = "" if collection in ("zones", "regions") else called.path.get("zone") or called.path.get("region", "")
        if collection == "instances":
            return cloud.machine(zone, name).described(cloud.project, cloud.now())
        if collection == "disks":
            return cloud.disk(zone, name).described(cloud.project, cloud.now())
        for thing in things.get(zone, []):
            if thing["name"] == name:
                return thing
        raise cloud.missing(f"zones/{zone}/{collection}/{name}" if zone else f"{collection}/{name}")

    def _page(self, called: Called, collection: str, things: Things, *, aggregated: bool) -> dict[str, Any]:
        query = called.query
        zone = called.path.get("zone", "")
        if zone:
            self._cloud.check_zone(zone)
        zone = zone or called.path.get("region", "")
        rows = [(scope, t) for scope in sorted(things) for t in things[scope] if aggregated or scope == zone]
        fitting = {id(t) for t in filters.matching([t for _, t in rows], query.get("filter", ""))}
        rows = [(scope, t) for scope, t in rows if id(t) in fitting]
        rows.sort(key=lambda row: (row[0], row[1].get("insertTime", ""), row[1]["name"]))
        if query.get("orderBy") == "creationTimestamp desc":
            rows.sort(key=lambda row: str(row[1].get("creationTimestamp", row[1].get("insertTime"))), reverse=True)
        size = query.get("maxResults", 500) or 500
        token = query.get("pageToken", "0")
        if not re.fullmatch(r"\d{1,9}", token):
            raise Refused(400, "invalid", f"Invalid value for field 'pageToken': '{token}'.")
        first = int(token)
        page = rows[first : first + size]
        plural = "operations" if collection.endswith("Operations") else collection
        answer: dict[str, Any] = {"kind": f"compute#{plural[:-1]}{'AggregatedList' if aggregated else 'List'}"}
        if aggregated:
            answer["items"] = self._scopes(page, plural)
        elif page:
            answer["items"] = [thing for _, thing in page]
        if first + size < len(rows):
            answer["nextPageToken"] = str(first + size)
        return answer

    def _scopes(self, page: list[tuple[str, dict[str, Any]]], plural: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        regional = plural in ("addresses", "resourcePolicies")
        for place in self._cloud.world.regions if regional else self._cloud.world.zones:
            here = [thing for scope, thing in page if scope == place]
            scope_name = f"{'regions' if regional else 'zones'}/{place}"
            text = f"There are no results for scope '{scope_name}' on this page."
            empty = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": text}}
            found[scope_name] = {plural: here} if here else empty
        return found

    def _skus(self, called: Called) -> dict[str, Any]:
        rows = catalog.skus(self._cloud, called.path["servicesId"])
        size = min(called.query.get("pageSize", 5000) or 5000, 5000)
        first = int(called.query.get("pageToken") or 0)
        answer: dict[str, Any] = {"skus": rows[first : first + size], "nextPageToken": ""}
        if first + size < len(rows):
            answer["nextPageToken"] = str(first + size)
        return answer


class _Cut(Exception):
    """The connection breaks."""


def _refusal(kind: str) -> Exception:
    if kind == "cut":
        return _Cut()
    reason, status, message = CODES[kind]
    return Refused(status or 500, reason, message)


def _fault(refused: Refused) -> dict[str, Any]:
    one = {"message": refused.message, "domain": "global", "reason": refused.reason}
    return {"error": {"code": refused.status, "message": refused.message, "errors": [one]}}
