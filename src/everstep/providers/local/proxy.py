"""The way from an agent to its server, through a gate that a partition shuts.

Each instance has a port of its own. A shut gate holds bytes back in both directions, as a network does that loses
packets: connections stay open and silent, and go on when the gate opens in time. In the ``reset`` form they break at
once and new ones are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field
from urllib.parse import urlsplit

BLACKHOLE = "blackhole"
RESET = "reset"
_CHUNK = 1 << 16


#: Below the range that the system gives to outgoing connections: a port of ours must still be free when the next daemon
#: wants it back, and an agent that keeps dialling it meanwhile must not be given it as its own and talk to itself.
_PORTS = range(18_000, 32_000)
_PORT_TRIES = 50


def listen(port: int) -> socket.socket:
    """A listening socket on the loopback; port 0 = one that can be had again later. OSError if it is taken."""
    if port:
        return _listen(port)
    for choice in random.sample(_PORTS, _PORT_TRIES):
        with contextlib.suppress(OSError):
            return _listen(choice)
    return _listen(0)


def _listen(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(256)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


@dataclass(slots=True)
class _Gateway:
    host: str
    port: int
    sock: socket.socket
    mode: str = ""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    accepting: asyncio.Task[None] | None = None


class Gateways:
    """The gateways of all instances; lives in one event loop."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}

    def open(self, instance: str, server: str, port: int = 0) -> int:
        """Opens the way of an instance to the server of that URL; returns the port agents should use."""
        url = urlsplit(server)
        target_port = url.port or (443 if url.scheme == "https" else 80)
        sock = listen(port)
        gateway = _Gateway(url.hostname or "127.0.0.1", target_port, sock)
        gateway.open.set()
        gateway.accepting = asyncio.get_running_loop().create_task(self._accept(gateway))
        self._gateways[instance] = gateway
        return int(sock.getsockname()[1])

    def partition(self, instance: str, mode: str) -> None:
        """Shuts the gate (``blackhole``, ``reset``) or opens it again (``""``)."""
        gateway = self._gateways.get(instance)
        if gateway is None:
            return
        gateway.mode = mode
        if mode == BLACKHOLE:
            gateway.open.clear()
        else:
            gateway.open.set()
        if mode == RESET:
            for task in list(gateway.connections):
                task.cancel()

    def close(self, instance: str) -> None:
        """Closes the way and every connection on it; an unknown instance is no error."""
        gateway = self._gateways.pop(instance, None)
        if gateway is None:
            return
        for task in (gateway.accepting, *gateway.connections):
            if task is not None:
                task.cancel()
        gateway.sock.close()

    async def _accept(self, gateway: _Gateway) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(gateway.sock)
            except OSError:
                await asyncio.sleep(0.05)  # out of descriptors: others will be closed
                continue
            task = loop.create_task(self._serve(gateway, client))
            gateway.connections.add(task)
            task.add_done_callback(gateway.connections.discard)

    async def _serve(self, gateway: _Gateway, client: socket.socket) -> None:
        client.setblocking(False)
        server = socket.socket(socket.AF_INET6 if ":" in gateway.host else socket.AF_INET)
        server.setblocking(False)
        try:
            if gateway.mode == RESET:
                raise ConnectionResetError
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await gateway.open.wait()
            await asyncio.get_running_loop().sock_connect(server, (gateway.host, gateway.port))
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(client, server, gateway.open))
                both.create_task(_pump(server, client, gateway.open))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            # Whatever broke one side breaks the other: RST, not a polite end.
            for sock in (client, server):
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            client.close()
            server.close()


async def _pump(source: socket.socket, sink: socket.socket, gate: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, _CHUNK):
        await gate.wait()
        await loop.sock_sendall(sink, data)
    await gate.wait()
    sink.shutdown(socket.SHUT_WR)
