"""Joining: the one-time token becomes this instance's credential, kept (mode 0600) for an agent that is restarted."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

from everstep.agent import atomic, identity
from everstep.agent.link import Backoff, LinkDown, Refused, Session
from everstep.agent.notices import MetadataDown
from everstep.agent.settings import Settings
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

AGENT_VERSION = "0.1.0"


class JoinRefused(Exception):
    """The server will not have us; the text says why. Trying again is useless."""


@dataclass(frozen=True)
class Membership:
    """What the server granted. ``orders`` is its first orders document, None for an agent that came back."""

    credential: str
    lease_s: float
    heartbeat_s: float
    probe_port: int
    orders: dict[str, Any] | None


def recall(settings: Settings) -> Membership | None:
    """The membership an earlier agent of this instance obtained, or None."""
    data = atomic.read_json(settings.state / "credential.json")
    try:
        if data["instance"] != settings.instance or data["server"] != settings.server:
            return None
        return Membership(
            credential=str(data["credential"]),
            lease_s=float(data["lease_s"]),
            heartbeat_s=float(data["heartbeat_s"]),
            probe_port=int(data["probe_port"]),
            orders=None,
        )
    except (KeyError, TypeError, ValueError):
        return None


def forget(settings: Settings) -> None:
    """Drop what ``recall`` gives: the server does not know it any more. The next agent has to join with its token."""
    with contextlib.suppress(OSError):
        (settings.state / "credential.json").unlink()


def join(settings: Settings, description: dict[str, Any], *, stopping: Callable[[], bool]) -> Membership:
    """Offer the token, and what the vendor signed about this machine, until the server answers; keep what it grants.

    Raises:
        JoinRefused: wrong token, other version, or ``stopping`` turned true.
    """
    session = Session(settings.server, fingerprint=settings.ca_sha256, credential=settings.token)
    backoff = Backoff()
    while not stopping():
        try:
            # Asked for anew each time: a proof may run out while the server is away.
            proof = identity.proof(settings.metadata, settings.server)
            body = {**description, hs.JOIN_IDENTITY: proof} if proof else description
            membership = _membership(session.post_json(hs.PATH_JOIN, body), description)
            break
        except MetadataDown as error:
            log.warning("cannot say yet who we are: %s", error)
            _pause(backoff.next_s(), stopping)
        except Refused as error:
            if error.status == 426:
                speaks = f"{hs.OLDEST_HANDSHAKE_VERSION} to {hs.HANDSHAKE_VERSION}"
                raise JoinRefused(f"version mismatch: this agent speaks handshake {speaks}; {error.error}") from None
            if error.status in (401, 403):
                raise JoinRefused(f"the server does not accept the join token ({error})") from None
            log.warning("join refused: %s; trying again", error)
            _pause(backoff.next_s(), stopping)
        except LinkDown as error:
            log.warning("cannot join yet: %s", error)
            _pause(backoff.next_s(error), stopping)
    else:
        raise JoinRefused("told to stop before it joined")
    session.close()
    atomic.write_json(
        settings.state / "credential.json",
        {
            "instance": settings.instance,
            "server": settings.server,
            "credential": membership.credential,
            "lease_s": membership.lease_s,
            "heartbeat_s": membership.heartbeat_s,
            "probe_port": membership.probe_port,
        },
        mode=0o600,
    )
    return membership


def describe(settings: Settings, *, address: str, probe_port: int, gpus: int, booted_at: float) -> dict[str, Any]:
    """The body of a join. Never carries an attempt: whatever an earlier agent ran here is dead before we join."""
    return {
        hs.JOIN_HANDSHAKE: [hs.OLDEST_HANDSHAKE_VERSION, hs.HANDSHAKE_VERSION],
        hs.JOIN_INSTANCE: settings.instance,
        hs.JOIN_ADDRESS: address,
        hs.JOIN_PROBE_PORT: probe_port,
        hs.JOIN_GPUS: gpus,
        hs.JOIN_AGENT: AGENT_VERSION,
        hs.JOIN_BOOTED_AT: booted_at,
        hs.JOIN_ATTEMPT: None,
    }


def own_address(settings: Settings) -> str:
    """The address peers reach us at: as told, else the one that routes to the server."""
    if settings.address:
        return settings.address
    url = urlsplit(settings.server)
    try:
        info = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])  # sends nothing: asks the kernel for the route
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def count_gpus() -> int:
    """GPUs this process may use: CUDA_VISIBLE_DEVICES if set, else what nvidia-smi lists, else 0."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([item for item in visible.split(",") if item.strip() not in ("", "-1")])
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if listing.returncode == 0 else 0


def _membership(answer: dict[str, Any], description: dict[str, Any]) -> Membership:
    credential, orders = answer.get("credential"), answer.get("orders")
    if not isinstance(credential, str) or not credential:
        raise LinkDown("the server's answer to join has no credential")
    try:
        lease_s, heartbeat_s = float(answer["lease_s"]), float(answer["heartbeat_s"])
    except (KeyError, TypeError, ValueError):
        raise LinkDown("the server's answer to join has no lease_s or heartbeat_s") from None
    if not (lease_s > 0 and heartbeat_s > 0):
        raise LinkDown("the server's answer to join has a lease_s or heartbeat_s that is not positive")
    probe_port = int(description[hs.JOIN_PROBE_PORT])
    return Membership(credential, lease_s, heartbeat_s, probe_port, orders if isinstance(orders, dict) else None)


def _pause(seconds: float, stopping: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not stopping() and time.monotonic() < end:
        time.sleep(min(0.1, seconds))
