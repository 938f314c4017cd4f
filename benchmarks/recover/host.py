"""``python host.py TAG BOOT_S COMMAND...``: the last ``BOOT_S`` of the boot of a machine with a network of its own.

Makes the host, lets its loopback ports that lead to the server and to the metadata service lead there in fact (these
two are not part of the network that is broken), and becomes the command.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.recover import net
from everstep.model import handshake

_CHUNK = 1 << 16


def number_of(address: str) -> int:
    """The number of a machine, from its address 127.A.x.y."""
    *_, high, low = (int(part) for part in address.split("."))
    return (high * 254 + low) % 60_000 + 1


def main(arguments: list[str]) -> None:
    began = time.monotonic()
    switch, boot_s, command = net.Net(arguments[0]), float(arguments[1]), arguments[2:]
    number = number_of(os.environ[handshake.BOOT_ADDRESS])
    try:
        switch.add(number)
        fresh = True
    except subprocess.CalledProcessError:
        fresh = False  # the agent is started again on a machine that runs
    outside = net.enter(switch.host(number))
    if fresh:
        told = os.environ[handshake.BOOT_SERVER] + " " + os.environ[handshake.BOOT_METADATA]
        ports = {int(port) for port in re.findall(r"//127\.0\.0\.1:(\d+)", told)}
        forward({port: socket.create_server(("127.0.0.1", port)) for port in ports}, outside)
    os.environ[handshake.BOOT_ADDRESS] = switch.address(number)
    os.environ["GLOO_SOCKET_IFNAME"] = net.INSIDE
    if fresh:
        time.sleep(max(0.0, began + boot_s - time.monotonic()))
    os.execvp(command[0], command)


def forward(listeners: dict[int, socket.socket], outside: int) -> None:
    """Each listener leads to the loopback port of that number in the network of the handle ``outside``.

    In a process of its own that is nobody's child here: the agent ends children that it does not know.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        for listener in listeners.values():
            listener.close()
        return
    os.setsid()
    if os.fork() == 0:
        # A socket stays in the network in which it was made; those made from here on are outside.
        net.go_to(outside)
        asyncio.run(serve(listeners))
    os._exit(0)


async def serve(listeners: dict[int, socket.socket]) -> None:
    """Each listener leads to the loopback port of that number, here; for ever."""
    for port, listener in listeners.items():

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

        await asyncio.start_server(connect, sock=listener)
    await asyncio.Event().wait()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
