"""The metadata server of the fake's machines.

Every machine has a base URL of its own, ``http://127.0.0.1:PORT/NUMBER``, that stands for
``http://metadata.google.internal``. As the vendor has it (https://docs.cloud.google.com/compute/docs/metadata/
querying-metadata): every request carries ``Metadata-Flavor: Google`` and every answer too; one that came through a
proxy (``X-Forwarded-For``) is refused; ``wait_for_change`` answers when the value's ETag is not ``last_etag``, or after
``timeout_sec``; folders end with ``/`` and list their names, or are JSON with ``recursive=true``.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from everstep.testing.gce.books import Machine
from everstep.testing.gce.cloud import Cloud
from everstep.testing.gce.identity import Signer, claims_of
from everstep.testing.loopback import Asked, Loopback, Reply

Answer = tuple[int, str, dict[str, str]]
_TOKEN = re.compile(r"/instance/service-accounts/[^/]+/token")
_ROOT = "/computeMetadata/v1"
_IDENTITY = "/instance/service-accounts/default/identity"
_LOOK_S = 0.05
"""Values also change because time passes."""


class Metadata:
    """Serves the metadata of every machine of a cloud.

    Attributes:
        asked: machine, path and status of every request.
        waiting: how many requests wait for a change now.
        account_token: OAuth token that a machine with a service account is given.
    """

    def __init__(self, cloud: Cloud, lock: threading.RLock, signer: Signer) -> None:
        """Args: lock: held around each look into the books."""
        self.asked: list[tuple[str, str, int]] = []
        self.waiting = 0
        self.account_token = "token-of-the-account"
        self._cloud = cloud
        self._lock = lock
        self._signer = signer
        self._change = threading.Condition()
        self._stopping = False
        self._http = Loopback("metadata", self._reply)

    def url(self, machine: Machine) -> str:
        """Base URL of a machine's own server."""
        return f"{self._http.url}/{machine.id}"

    def start(self) -> None:
        """Serves in a thread."""
        self._http.start()

    def stop(self) -> None:
        """Serves no more."""
        self._stopping = True
        self.changed()
        self._http.stop()

    def changed(self) -> None:
        """Those that wait look at once."""
        with self._change:
            self._change.notify_all()

    # --- one request -------------------------------------------------------------------------------------------------

    def _reply(self, asked: Asked) -> Reply:
        status, body, headers = self._answer(asked.target, asked.headers)
        return status, body.encode(), {**headers, "Metadata-Flavor": "Google"}

    def _answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(target)
        _, number, rest = [*parts.path.split("/", 2), "", ""][:3]
        query = {k: v[-1] for k, v in parse_qs(parts.query).items()}
        found = self._waited(number, "/" + rest, query, headers)
        self.asked.append((number, "/" + rest, found[0]))
        return found

    def _waited(self, number: str, path: str, query: dict[str, str], headers: Mapping[str, str]) -> Answer:
        found = self._look(number, path, query, headers)
        if found[0] != 200 or query.get("wait_for_change", "").lower() != "true":
            return found
        # Without an ETag: what changes from now on.
        seen = query.get("last_etag", found[2]["ETag"])
        timeout = query.get("timeout_sec", "")
        deadline = time.monotonic() + float(timeout) if timeout.isdigit() else float("inf")
        with self._change:
            self.waiting += 1
            try:
                while found[0] == 200 and found[2]["ETag"] == seen and time.monotonic() < deadline:
                    if self._stopping:
                        return 503, "", {}
                    self._change.wait(min(_LOOK_S, max(deadline - time.monotonic(), 0.0)))
                    found = self._look(number, path, query, headers)
            finally:
                self.waiting -= 1
        return found

    def _look(self, number: str, path: str, query: dict[str, str], headers: Mapping[str, str]) -> Answer:
        if headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in headers:
            return 403, "Missing Metadata-Flavor:Google header.", {}
        with self._lock:
            self._cloud.settle()
            machine = self._cloud.machines.get(int(number)) if number.isdigit() else None
            if machine is None or machine.status(self._cloud.now()) not in ("STAGING", "RUNNING", "STOPPING"):
                return 503, "", {}
            if path == "/":  # what google-auth asks to learn whether it is on a machine of the vendor's
                return 200, "0.1/\ncomputeMetadata/\n", {"Content-Type": "application/text"}
            if not path.startswith(_ROOT):
                return 404, "", {}
            path = path.removeprefix(_ROOT)
            if path == _IDENTITY:
                return self._identity(machine, query)
            if _TOKEN.fullmatch(path):
                return self._token(machine)
            value = _found(self._tree(machine), path)
        if value is None:
            return 404, "", {}
        if isinstance(value, dict):
            if query.get("recursive", "").lower() == "true":
                text, kind = json.dumps(_camel(value)), "application/json"
            else:
                text, kind = "".join(f"{k}{'/' if isinstance(v, dict) else ''}\n" for k, v in value.items()), "text"
        else:
            text, kind = value, "application/text"
        etag = hashlib.sha256(f"{path} {text}".encode()).hexdigest()[:16]
        return 200, text, {"ETag": etag, "Content-Type": kind}

    def _identity(self, machine: Machine, query: dict[str, str]) -> Answer:
        audience = query.get("audience", "")
        if not audience:
            return 400, "non-empty audience parameter required", {}
        if not machine.resource.get("serviceAccounts"):
            return 404, "", {}
        full = query.get("format") == "full"
        claims = claims_of(machine, self._cloud.project, audience, self._cloud.now(), full=full)
        return 200, self._signer.token(claims), {"ETag": "0", "Content-Type": "text/html"}

    def _token(self, machine: Machine) -> Answer:
        """https://docs.cloud.google.com/compute/docs/access/authenticate-workloads#applications: of its account."""
        if not machine.resource.get("serviceAccounts"):
            return 404, "", {}
        text = json.dumps({"access_token": self.account_token, "expires_in": 3599, "token_type": "Bearer"})
        return 200, text, {"ETag": "0", "Content-Type": "application/json"}

    def _tree(self, machine: Machine) -> dict[str, Any]:
        project = self._cloud.project
        place = f"projects/{project.number}"
        now = self._cloud.now()
        stops = machine.stops_at is not None and machine.stops_at <= now
        scheduling = machine.scheduling
        instance: dict[str, Any] = {
            "attributes": dict(machine.metadata),
            "description": machine.resource.get("description", ""),
            "hostname": f"{machine.name}.{machine.zone}.c.{project.id}.internal",
            "id": str(machine.id),
            "machine-type": f"{place}/machineTypes/{machine.kind}",
            "maintenance-event": "NONE" if stops else machine.maintenance,
            "name": machine.name,
            "network-interfaces": {"0": {"ip": machine.address, "network": f"{place}/networks/default"}},
            "preempted": "TRUE" if machine.preempted_at is not None else "FALSE",
            "scheduling": {
                "automatic-restart": str(bool(scheduling["automaticRestart"])).upper(),
                "on-host-maintenance": scheduling["onHostMaintenance"],
                "preemptible": str(machine.spot).upper(),
            },
            "zone": f"{place}/zones/{machine.zone}",
        }
        accounts = {a["email"]: dict(a) for a in machine.resource.get("serviceAccounts", [])}
        if accounts:
            first = next(iter(accounts.values()))
            named = {
                n: {"aliases": ["default"], "email": a["email"], "scopes": a["scopes"]} for n, a in accounts.items()
            }
            instance["service-accounts"] = {
                **named,
                "default": {"aliases": ["default"], "email": first["email"], "scopes": first["scopes"]},
            }
        return {"instance": instance, "project": {"numeric-project-id": str(project.number), "project-id": project.id}}


def _found(tree: dict[str, Any], path: str) -> Any:
    value: Any = tree
    for part in [p for p in path.split("/") if p]:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _camel(value: Any) -> Any:
    """Names as JSON has them: ``machine-type`` is ``machineType``; what users named stays."""
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"-([a-z])", lambda m: m[1].upper(), k): (v if k == "attributes" else _camel(v))
        for k, v in value.items()
    }
