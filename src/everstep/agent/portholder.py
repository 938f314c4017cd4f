"""Holds the port on which the next attempt's master will listen.

A socket that is bound but never listens keeps the kernel from giving the port to anybody else, while a process that
binds it with SO_REUSEADDR (as torch's TCPStore does) may still listen on it. Both address families are held.
"""

from __future__ import annotations

import contextlib
import socket


class HeldPort:
    """A port of this machine, held until :meth:`release`. Raises OSError if none is to be had."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(20):
            first = _bound(socket.AF_INET, 0)
            self._sockets = [first]
            self.port: int = first.getsockname()[1]
            if not socket.has_ipv6:
                return
            try:
                self._sockets.append(_bound(socket.AF_INET6, self.port))
                return
            except OSError as error:
                if error.errno not in _IN_USE:
                    return  # no IPv6 here
                self.release()
        raise OSError("no port is free in both address families")

    def release(self) -> None:
        """Let go of the port; whoever listens on it is not disturbed."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.close()
        self._sockets = []


def _bound(family: int, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(("::" if family == socket.AF_INET6 else "", port))
    except OSError:
        one.close()
        raise
    return one


_IN_USE = (98, 48)  # EADDRINUSE on Linux, on BSD
