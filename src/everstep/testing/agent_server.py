"""A server that speaks the agent's side of the handshake strictly, in memory, for tests of agents.

It checks every request against :mod:`everstep.model.handshake` and collects what is wrong in ``violations``; it can be
away, answer rubbish, forget, and fence. It decides nothing: the test writes the orders.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from everstep.model import handshake as hs

_OPTIONAL_INT = (int, type(None))
_OPTIONAL_NUMBER = (int, float, type(None))
_NUMBER = (int, float)
_Kinds = dict[str, type | tuple[type, ...]]

MESSAGE_FIELDS: dict[str, _Kinds] = {
    hs.MSG_HEARTBEAT: {"attempt": _OPTIONAL_INT, "ranks_alive": int},
    hs.MSG_READY: {"port": int, "setup_s": _NUMBER, "prepared": str},
    hs.MSG_SETUP_FAILED: {"rc": int, "tail": str},
    hs.MSG_CHECKED: {"attempt": int, "unreachable": list},
    hs.MSG_STARTED: {"attempt": int, "ranks": int, "spawned_at": _NUMBER},
    hs.MSG_PROGRESS: {"attempt": int, "step": int, "total": _OPTIONAL_INT, "metrics": dict},
    hs.MSG_RESTORED: {"attempt": int, "base": (str, type(None)), "restore_s": _NUMBER},
    hs.MSG_SAVED: {
        "attempt": int,
        "step": int,
        "bytes": int,
        "save_s": _NUMBER,
        "stall_s": _NUMBER,
        "durable": bool,
    },
    hs.MSG_AUDITED: {"attempt": int, "save": str, "verdict": str, "text": str},
    hs.MSG_ENDED: {
        "attempt": int,
        "outcome": str,
        "rc": _OPTIONAL_INT,
        "signal": _OPTIONAL_INT,
        "failed_rank": _OPTIONAL_INT,
        "step": _OPTIONAL_INT,
        "total": _OPTIONAL_INT,
        "first_step_at": _OPTIONAL_NUMBER,
        "last_step_at": _OPTIONAL_NUMBER,
        "steps_done": int,
        "stall_s": _NUMBER,
        "tail": str,
    },
    hs.MSG_NOTICE: {"notice": str, "deadline": _OPTIONAL_NUMBER},
    hs.MSG_SHUTDOWN: {"how": str},
    hs.MSG_OUTPUTS_STORED: {"files": int, "bytes": int, "error": (str, type(None))},
    hs.MSG_LEASE_EXPIRED: {"attempt": int},
    hs.MSG_EXEC_ENDED: {"id": str, "rc": int},
    hs.MSG_FOLDER_GROWTH: {"attempt": int},
}
"""What each message kind must carry, with types."""

_JOIN_FIELDS: _Kinds = {
    hs.JOIN_HANDSHAKE: list,
    hs.JOIN_INSTANCE: str,
    hs.JOIN_ADDRESS: str,
    hs.JOIN_PROBE_PORT: int,
    hs.JOIN_GPUS: int,
    hs.JOIN_AGENT: str,
    hs.JOIN_BOOTED_AT: _NUMBER,
    hs.JOIN_ATTEMPT: _OPTIONAL_INT,
}

Message = dict[str, Any]
Intercept = Callable[[str, str], "tuple[int, bytes] | None"]


@dataclass
class Member:
    """One instance as the server sees it. ``logs`` by (attempt, rank)."""

    instance: str
    token: str
    credential: str
    joined: dict[str, Any] | None = None
    orders: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    logs: dict[tuple[int, str], bytearray] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    joins: int = 0

    def of_kind(self, kind: str) -> list[Message]:
        """Messages of one kind, in order."""
        return [message for message in self.messages if message["kind"] == kind]

    def log_text(self, attempt: int, rank: str) -> str:
        """What arrived of one log."""
        return bytes(self.logs.get((attempt, rank), b"")).decode(errors="replace")


class AgentServer:
    """Serves on a loopback port from construction until :meth:`close`.

    Attributes:
        down: while true, every connection is dropped without an answer, long polls included.
        intercept: called with (method, path); what it returns is answered instead of the truth.
        violations: what agents did against the handshake; a good test ends with an empty list.
        folders: uploaded working folders by digest.
    """

    def __init__(self, *, lease_s: float = 60.0, heartbeat_s: float = 0.2) -> None:
        self.lease_s = lease_s
        self.heartbeat_s = heartbeat_s
        self.changed = threading.Condition(threading.RLock())
        self.members: dict[str, Member] = {}
        self.violations: list[str] = []
        self.folders: dict[str, bytes] = {}
        self.intercept: Intercept = lambda method, path: None
        self.down = False
        self.closed = False
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.agents = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        with self.changed:
            self.closed = self.down = True
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def admit(self, instance: str) -> Member:
        """Make a token and a credential for an instance that may then join."""
        member = Member(instance, f"token-{instance}", f"credential-{instance}")
        member.orders = {hs.ORDERS_VERSION: 1, hs.ORDERS_PHASE: hs.PHASE_HOLD}
        self.members[instance] = member
        return member

    def add_folder(self, archive: bytes) -> str:
        """Offer a working folder (.tar.gz bytes); returns its digest."""
        digest = hashlib.sha256(archive).hexdigest()
        self.folders[digest] = archive
        return digest

    def order(self, member: Member, *, version: int | None = None, **document: Any) -> None:
        """Replace the orders of an instance; the version grows by one unless given."""
        with self.changed:
            number = member.orders[hs.ORDERS_VERSION] + 1 if version is None else version
            member.orders = {**document, hs.ORDERS_VERSION: number}
            self.changed.notify_all()

    def up(self) -> bool:
        """Whether requests are answered now."""
        return not self.down

    def set_down(self, down: bool) -> None:
        """Go away, or come back."""
        with self.changed:
            self.down = down
            self.changed.notify_all()

    def wait(self, condition: Callable[[], Any], *, timeout_s: float = 60.0, what: str = "") -> Any:
        """The first true value of ``condition``; raises AssertionError with what arrived if it stays false."""
        end = time.monotonic() + timeout_s
        with self.changed:
            while True:
                value = condition()
                if value:
                    return value
                left = end - time.monotonic()
                if left <= 0:
                    seen = {name: [m["kind"] for m in member.messages][-20:] for name, member in self.members.items()}
                    raise AssertionError(f"waited in vain for {what or condition}; messages: {seen}; {self.violations}")
                self.changed.wait(min(left, 0.05))

    def wait_message(
        self, member: Member, kind: str, *, where: Callable[[Message], bool] = lambda message: True, count: int = 1
    ) -> Message:
        """The ``count``-th message of a kind for which ``where`` holds."""

        def found() -> Message | None:
            good = [message for message in member.of_kind(kind) if where(message)]
            return good[count - 1] if len(good) >= count else None

        return cast(Message, self.wait(found, what=f"message {kind} number {count} of {member.instance}"))

    # ---- requests --------------------------------------------------------------------------------------------------

    def violation(self, text: str) -> None:
        """Record a breach of the handshake."""
        with self.changed:
            self.violations.append(text)

    def member_of(self, secret: str) -> Member | None:
        """Who presents this credential."""
        return next((member for member in self.members.values() if member.credential == secret), None)

    def join(self, token: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Answer a join."""
        member = next((one for one in self.members.values() if one.token == token), None)
        if member is None or (member.joined is not None and member.messages):
            return 401, {"error": "unknown or used token"}
        problems = _check_fields(body, _JOIN_FIELDS)
        if problems or body[hs.JOIN_INSTANCE] != member.instance:
            self.violation(f"join: {problems or 'token of another instance'}")
            return 400, {"error": "bad join"}
        oldest, newest = body[hs.JOIN_HANDSHAKE]
        if not oldest <= hs.HANDSHAKE_VERSION <= newest:
            return 426, {"error": f"the agent speaks {oldest} to {newest}, the server {hs.HANDSHAKE_VERSION}"}
        with self.changed:
            member.joined = body
            member.joins += 1
            self.changed.notify_all()
        return 200, {
            "credential": member.credential,
            "handshake": hs.HANDSHAKE_VERSION,
            "lease_s": self.lease_s,
            "heartbeat_s": self.heartbeat_s,
            "orders": member.orders,
        }

    def reports(self, member: Member, body: Any) -> tuple[int, dict[str, Any]]:
        """Take a batch of messages."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages:
            self.violation("reports: no messages")
            return 400, {"error": "no messages"}
        with self.changed:
            for message in messages:
                held = member.messages[-1]["seq"] if member.messages else 0
                problem = self._message_problem(message)
                if problem:
                    self.violation(problem)
                    return 400, {"error": problem}
                if message["seq"] > held + 1:
                    self.violation(f"seq {message['seq']} after {held}")
                    break
                if message["seq"] == held + 1:
                    member.messages.append(message)
            self.changed.notify_all()
            held = member.messages[-1]["seq"] if member.messages else 0
        return 200, {"ack": held, "orders_version": member.orders[hs.ORDERS_VERSION]}

    @staticmethod
    def _message_problem(message: Any) -> str:
        if not isinstance(message, dict) or message.get("kind") not in MESSAGE_FIELDS:
            return f"unknown message {message!r}"
        fields = {"seq": int, "t": _NUMBER, **MESSAGE_FIELDS[message["kind"]]}
        problems = _check_fields(message, fields)
        return f"{message['kind']}: {problems}" if problems else ""

    def wait_orders(self, member: Member, seen: int, wait_s: float) -> dict[str, Any] | None:
        """The orders document as soon as it is another one than ``seen``; None after ``wait_s``."""
        with self.changed:
            self.changed.wait_for(lambda: member.orders[hs.ORDERS_VERSION] != seen or self.down, min(wait_s, 5.0))
            return member.orders if member.orders[hs.ORDERS_VERSION] != seen else None

    def take_log(self, member: Member, key: tuple[int, str], offset: int, data: bytes) -> tuple[int, dict[str, Any]]:
        """Append a piece of a log if it fits exactly."""
        with self.changed:
            held = member.logs.setdefault(key, bytearray())
            if offset == len(held):
                held.extend(data)
            self.changed.notify_all()
            return 200, {"offset": len(held)}


def _check_fields(value: Any, fields: _Kinds) -> str:
    if not isinstance(value, dict):
        return "not an object"
    for name, kinds in fields.items():
        if name not in value:
            return f"{name} is missing"
        item = value[name]
        bool_for_number = isinstance(item, bool) and kinds is not bool
        if bool_for_number or not isinstance(item, kinds):
            return f"{name} is {item!r}"
    return ""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    agents: AgentServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # an agent that was killed in the middle of a request


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        agents = cast(_Http, self.server).agents
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if not agents.up():
            self.close_connection = True
            return
        instead = agents.intercept(method, url.path)
        status, answer = instead if instead is not None else self._answer(agents, method, url.path, url.query, body)
        if not agents.up():  # it went away in the meantime
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, agents: AgentServer, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
        secret = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if (method, path) == ("POST", hs.PATH_JOIN):
            return _encoded(*agents.join(secret, json.loads(body)))
        member = agents.member_of(secret)
        if member is None:
            return _encoded(401, {"error": "unknown credential"})
        if (method, path) == ("POST", hs.PATH_REPORTS):
            return _encoded(*agents.reports(member, json.loads(body)))
        if (method, path) == ("GET", hs.PATH_ORDERS):
            orders = agents.wait_orders(member, int(asked["seen"]), float(asked["wait_s"]))
            return (204, b"") if orders is None else _encoded(200, orders)
        if (method, path) == ("POST", hs.PATH_LOGS):
            key = (int(asked["attempt"]), asked["rank"])
            return _encoded(*agents.take_log(member, key, int(asked["offset"]), body))
        if method == "POST" and path.startswith(hs.PATH_FILES):
            return _encoded(200, {"by_url": False})
        if method == "GET" and path.startswith(hs.PATH_WORKDIR):
            archive = agents.folders.get(path[len(hs.PATH_WORKDIR) :])
            return (200, archive) if archive is not None else _encoded(404, {"error": "no such folder"})
        if method == "PUT" and path.startswith(hs.PATH_OUTPUTS):
            if hashlib.sha256(body).hexdigest() != self.headers.get("X-Everstep-Sha256"):
                return _encoded(400, {"error": "digest differs"})
            member.outputs[unquote(path[len(hs.PATH_OUTPUTS) :])] = body
            return _encoded(200, {})
        agents.violation(f"{method} {path}")
        return _encoded(404, {"error": "no such path"})


def _encoded(status: int, value: dict[str, Any]) -> tuple[int, bytes]:
    return status, json.dumps(value).encode()
