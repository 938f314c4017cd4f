"""The instance metadata service of the fake's machines, version 2 of its protocol.

Every machine has a base URL of its own, ``http://127.0.0.1:PORT/i-0123...``, that stands for
``http://169.254.169.254``. As EC2 has it
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html): a token by PUT with its life in
a header, 1 to 21,600 seconds; without a good token 401 where the machine demands tokens; 403 for a PUT that
came through a proxy; 404 for what is not announced, and for everything once the machine is gone.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from datetime import UTC, datetime

from everstep.testing.ec2.books import Machine
from everstep.testing.ec2.cloud import Cloud
from everstep.testing.ec2.identity import Signer, document_of
from everstep.testing.loopback import Asked, Loopback, Reply

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"
_LONGEST_TTL_S = 21_600
_ROLE = "/latest/meta-data/iam/security-credentials"
Answer = tuple[int, str, dict[str, str]]


class Metadata:
    """Serves the metadata of every machine of a cloud.

    Attributes:
        asked: machine, method, path and status of every request.
        asked_at: and when, UTC seconds, in the same order.
        role_key: id of the access key that a machine with an instance profile is given.
    """

    def __init__(self, cloud: Cloud, lock: threading.RLock, signer: Signer) -> None:
        """Args: lock: held around each look into the books."""
        self.asked: list[tuple[str, str, str, int]] = []
        self.asked_at: list[float] = []
        self.role_key = "ASIAROLEOFTHEMACHINE"
        self._cloud = cloud
        self._lock = lock
        self._signer = signer
        self._tokens: dict[str, tuple[str, float]] = {}
        self._http = Loopback("metadata", self._reply, verbs=("GET", "PUT"))

    def url(self, instance: str) -> str:
        """Base URL of a machine's own service."""
        return f"{self._http.url}/{instance}"

    def start(self) -> None:
        """Serves in a thread."""
        self._http.start()

    def stop(self) -> None:
        """Serves no more."""
        self._http.stop()

    def forget_tokens(self) -> None:
        """No token that was given out is good any more."""
        self._tokens.clear()

    # --- one request -------------------------------------------------------------------------------------------------

    def _reply(self, asked: Asked) -> Reply:
        status, body, headers = self._answer(asked.verb, asked.target, asked.headers)
        return status, body.encode(), {**headers, "Server": "EC2ws"}

    def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        _, instance, rest = [*path.split("/", 2), "", ""][:3]
        with self._lock:
            self._cloud.settle()
            machine = self._cloud.machines.get(instance)
            found = self._look(machine, method, "/" + rest, headers)
            self.asked.append((instance, method, "/" + rest, found[0]))
            self.asked_at.append(self._cloud.now())
        return found

    def _look(self, machine: Machine | None, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        now = self._cloud.now()
        if machine is None or machine.state(now) == "terminated":
            return 404, "", {}
        if method == "PUT":
            return self._give_token(machine, path, headers)
        token = headers.get(_TOKEN.lower())
        if token is None and machine.metadata_tokens == "required":
            return 401, "", {}
        if token is not None:
            owner, until = self._tokens.get(token, ("", 0.0))
            if owner != machine.id or now >= until:
                return 401, "", {}
        value = self._value(machine, path.rstrip("/") or "/")
        return (404, "", {}) if value is None else (200, value, {"Content-Type": "text/plain"})

    def _give_token(self, machine: Machine, path: str, headers: Mapping[str, str]) -> Answer:
        if path != "/latest/api/token":
            return 405, "", {}
        if "x-forwarded-for" in headers:
            return 403, "", {}
        ttl = headers.get(_TTL.lower(), "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= _LONGEST_TTL_S:
            return 400, "", {}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = (machine.id, self._cloud.now() + int(ttl))
        return 200, token, {_TTL: ttl}

    def _value(self, machine: Machine, path: str) -> str | None:
        """What a path says; None if there is nothing."""
        document = document_of(machine, self._cloud.paper.account)
        plain = {
            "/latest/meta-data/ami-id": machine.image,
            "/latest/meta-data/instance-id": machine.id,
            "/latest/meta-data/instance-life-cycle": "spot" if machine.spot else "on-demand",
            "/latest/meta-data/instance-type": machine.kind,
            "/latest/meta-data/local-ipv4": machine.address,
            "/latest/meta-data/placement/availability-zone": machine.zone,
            "/latest/meta-data/placement/region": machine.region,
            "/latest/user-data": machine.user_data or None,
            "/latest/dynamic/instance-identity/document": document,
            "/latest/meta-data/events/maintenance/scheduled": json.dumps(machine.maintenance),
        }
        if path in plain:
            return plain[path]
        if machine.profile and path.startswith(_ROLE):
            return self._role(machine, path.removeprefix(_ROLE).strip("/"))
        if path == "/latest/dynamic/instance-identity/signature":
            return self._signer.signature(document)
        if path == "/latest/dynamic/instance-identity/rsa2048":
            return self._signer.rsa2048(document)
        if path == "/latest/meta-data/events/recommendations/rebalance" and machine.rebalance_at is not None:
            return json.dumps({"noticeTime": _stamp(machine.rebalance_at)})
        if machine.doom is not None and path == "/latest/meta-data/spot/instance-action":
            return json.dumps({"action": "terminate", "time": _stamp(machine.doom[0])})
        if machine.doom is not None and path == "/latest/meta-data/spot/termination-time":
            return _stamp(machine.doom[0])
        return None

    def _role(self, machine: Machine, name: str) -> str | None:
        """The names of roles, or credentials of one: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
        instance-metadata-security-credentials.html. The role is called as its profile, as the console does it."""
        if name != machine.profile:
            return machine.profile if not name else None
        now = self._cloud.now()
        credentials = {
            "Code": "Success",
            "LastUpdated": _stamp(now),
            "Type": "AWS-HMAC",
            "AccessKeyId": self.role_key,
            "SecretAccessKey": "of-the-role",
            "Token": "session-of-the-role",
            "Expiration": _stamp(now + 6 * 3600),
        }
        return json.dumps(credentials)


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
