"""What keeps tests honest: no traffic beyond this machine, no process left behind."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: 10.213.0.0/16 belongs to the network namespaces that the tests make for themselves.
ALLOWED_NETWORKS = tuple(ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128", "10.213.0.0/16"))
RUN_VARIABLE = "EVERSTEP_TEST_RUN"


class TrafficBeyondLoopbackError(RuntimeError):
    """A test tried to reach another machine."""


def allowed_host(host: object) -> bool:
    """Whether a test may connect to `host` or look it up: this machine, by name or address, or a namespace of ours."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    # A lookup of the wildcard (0.0.0.0, ::) is how servers bind; nothing leaves the machine by it.
    return address.is_unspecified or any(address in network for network in ALLOWED_NETWORKS)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        # Unix sockets have a path for an address, netlink a pair of numbers.
        host = address[0] if isinstance(address, tuple) and address and isinstance(address[0], str) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not allowed_host(host):
        raise TrafficBeyondLoopbackError(f"tests stay on this machine, but {event} was asked for {host!r}")


def limit_sockets() -> None:
    """From now on this process cannot leave the machine by Python's sockets. Cannot be undone.

    It is an audit hook, which sees all that goes through Python's own ``socket`` module. Child processes and libraries
    that bring their own network code are not covered.
    """
    sys.addaudithook(_audit)


@dataclass(frozen=True)
class Survivor:
    """A process that outlived its test."""

    pid: int
    command: str


def processes_of(run: str) -> list[Survivor]:
    """Processes, this one excepted, whose environment says that they belong to the test run `run`."""
    needle = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found.append(Survivor(int(entry.name), b" ".join(words).decode(errors="replace").strip()))
        except OSError:
            continue  # ended meanwhile, or not ours to look into
    return sorted(found, key=lambda survivor: survivor.pid)


def settle(run: str, patience_s: float) -> list[Survivor]:
    """Wait until no process of `run` is alive; those that still are after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while (survivors := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return survivors


def end(survivors: list[Survivor]) -> None:
    """SIGKILL each of them, so that one leak does not spoil the tests that follow."""
    for survivor in survivors:
        try:
            os.kill(survivor.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
