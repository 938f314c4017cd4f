"""Hosts of one computer with networks of their own: namespaces behind one bridge. Needs root and ``ip``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_PLACE = Path("/var/run/netns")
INSIDE = "eth0"
"""Name of every host's own interface."""


def possible() -> bool:
    """Whether this user may make hosts here: tries it once."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    net = Net(f"t{os.getpid() % 10_000}")
    try:
        net.open()
        net.add(1)
        left = enter(net.host(1))
        go_to(left)
        os.close(left)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        net.close()
    return True


def enter(host: str) -> int:
    """Moves this process into the network of a host; raises OSError. Returns a handle of the one it left."""
    left = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.open(_PLACE / host, os.O_RDONLY | os.O_CLOEXEC)
    try:
        go_to(fd)
    finally:
        os.close(fd)
    return left


def go_to(handle: int) -> None:
    """Moves this process into the network of a handle; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Net:
    """A switch and its hosts, named by numbers. Addresses are in 10.213.0.0/16, which is nobody else's on the bridge.

    Args:
        tag: at most 6 characters; distinguishes the nets of one computer.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._bridge = f"es{tag}"

    def open(self) -> None:
        """Makes the switch; raises CalledProcessError."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")

    def host(self, number: int) -> str:
        """Name of a host's namespace."""
        return f"es{self.tag}-{number}"

    def address(self, number: int) -> str:
        """Address of a host, for numbers from 1 to 60000."""
        return f"10.213.{number // 250}.{number % 250 + 2}"

    def add(self, number: int) -> None:
        """Makes a host and plugs it in; raises CalledProcessError."""
        host, cable = self.host(number), self._cable(number)
        _ip("netns", "add", host)
        _ip("link", "add", cable, "master", self._bridge, "type", "veth", "peer", "name", INSIDE, "netns", host)
        _ip("link", "set", cable, "up")
        lines = ["link set lo up", f"link set {INSIDE} up", f"addr add {self.address(number)}/16 dev {INSIDE}"]
        _ip("-n", host, "-batch", "-", lines=lines)

    def unplug(self, number: int) -> None:
        """Takes the host's link down: nothing that it or its kernel says is heard any more."""
        _ip("link", "set", self._cable(number), "down")

    def plug(self, number: int) -> None:
        """Puts the host's link up again."""
        _ip("link", "set", self._cable(number), "up")

    def mute(self, number: int, towards: int) -> None:
        """What the host sends to that other one goes nowhere; what the other sends still arrives."""
        _ip("-n", self.host(number), "route", "add", "blackhole", f"{self.address(towards)}/32")

    def pids(self, number: int) -> list[int]:
        """Processes of a host."""
        done = _ip("netns", "pids", self.host(number))
        return [int(word) for word in done.split()]

    def close(self) -> None:
        """Removes every host and the switch."""
        for path in _PLACE.glob(f"es{self.tag}-*"):
            # The cable first: the kernel takes its time to clear a network away.
            for what in (("link", "del", self._cable(int(path.name.rpartition("-")[2]))), ("netns", "del", path.name)):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip(*what)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def _cable(self, number: int) -> str:
        return f"es{self.tag}.{number}"


def _ip(*arguments: str, lines: Sequence[str] = ()) -> str:
    done = subprocess.run(
        ["ip", *arguments], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout
