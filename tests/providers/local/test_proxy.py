from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everstep.providers.local.proxy import BLACKHOLE, RESET, Gateways, listen


class Way:
    """An echo server behind a gateway."""

    def __init__(self) -> None:
        self.gateways = Gateways()
        self.seen = bytearray()
        self.port = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.seen += data
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def way() -> AsyncIterator[Way]:
    way = Way()
    server = await asyncio.start_server(way.echo, "127.0.0.1", 0)
    way.port = way.gateways.open("i-1", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base")
    yield way
    way.gateways.close("i-1")
    server.close()
    await asyncio.sleep(0)


async def test_bytes_pass_both_ways_and_the_end_is_passed_on(way: Way) -> None:
    reader, writer = await way.connect()
    payload = bytes(range(256)) * 4000
    writer.write(payload)
    writer.write_eof()
    assert await reader.read() == payload
    writer.close()


async def test_a_partition_is_silence_and_a_healed_connection_goes_on(way: Way) -> None:
    reader, writer = await way.connect()
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"
    way.gateways.partition("i-1", BLACKHOLE)
    writer.write(b"during")
    other_reader, other_writer = await way.connect()
    other_writer.write(b"new")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.readexactly(1)
    assert bytes(way.seen) == b"before"
    way.gateways.partition("i-1", "")
    assert await reader.readexactly(6) == b"during"
    assert await other_reader.readexactly(3) == b"new"
    writer.close()
    other_writer.close()


async def test_a_reset_breaks_connections_and_refuses_new_ones(way: Way) -> None:
    reader, writer = await way.connect()
    writer.write(b"before")
    await reader.readexactly(6)
    way.gateways.partition("i-1", RESET)
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    late_reader, late_writer = await way.connect()
    with pytest.raises(ConnectionResetError):
        await late_reader.readexactly(1)
    way.gateways.partition("i-1", "")
    again_reader, again_writer = await way.connect()
    again_writer.write(b"healed")
    assert await again_reader.readexactly(6) == b"healed"
    for w in (writer, late_writer, again_writer):
        w.close()


async def test_ports_can_be_had_again(way: Way) -> None:
    """An outgoing connection must never be given one of them while the daemon is away."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < 32_000:
        pytest.skip("the system gives low ports to outgoing connections")
    assert 18_000 <= way.port < 32_000
    with pytest.raises(OSError, match="in use"):
        listen(way.port)


async def test_a_server_that_is_away_breaks_the_connection(way: Way) -> None:
    port = way.gateways.open("i-2", "http://127.0.0.1:1/")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
    way.gateways.close("i-2")
    way.gateways.close("i-2")
