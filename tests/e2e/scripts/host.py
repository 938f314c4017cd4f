"""Where one machine of a box has a network of its own: the server at an address across that network.

    python host.py TAG SERVER COMMAND...       boots a machine: enters the host of its number, becomes the command
    python host.py --gate TAG NUMBER PORT      serves the server's port on a host of that number; prints ``ready``

The hosts are there already (``benchmarks.recover.net``), and so may be what is wrong with their links. The metadata
service answers on the loopback of each, as a cloud's does on a link-local address: no broken link cuts it off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks.recover import host, net
from everstep.model import handshake


def boot(tag: str, server: str, *command: str) -> None:
    switch = net.Net(tag)
    number = host.number_of(os.environ[handshake.BOOT_ADDRESS])
    outside = net.enter(switch.host(number))
    _, _, metadata = os.environ[handshake.BOOT_METADATA].partition("=")
    port = urlsplit(metadata).port
    assert port is not None
    with contextlib.suppress(OSError):  # taken: the agent is started again on a machine that runs
        host.forward({port: socket.create_server(("127.0.0.1", port))}, outside)
    os.environ[handshake.BOOT_SERVER] = server
    os.environ[handshake.BOOT_ADDRESS] = switch.address(number)
    os.environ["GLOO_SOCKET_IFNAME"] = net.INSIDE
    os.execvp(command[0], command)


def gate(tag: str, number: str, port: str) -> None:
    switch = net.Net(tag)
    outside = net.enter(switch.host(int(number)))
    listener = socket.create_server((switch.address(int(number)), int(port)))
    net.go_to(outside)
    print("ready", flush=True)
    asyncio.run(host.serve({int(port): listener}))


if __name__ == "__main__":
    if sys.argv[1] == "--gate":
        gate(*sys.argv[2:])
    else:
        boot(*sys.argv[1:])
