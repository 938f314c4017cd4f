from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crowd.audit import audit
from benchmarks.crowd.past import Past
from benchmarks.crowd.wire import Channel, head, whole
from everstep.model.ids import DEPLOYMENT_STREAM, MARKET_STREAM
from everstep.ports import Append, NewRecord
from everstep.store.registry import open_store

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.expensive(family="benchmarks")
def test_a_small_crowd_trains_through_a_kill_of_the_server_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    arguments = (
        "--duration 8 --agents 12 --rate 60 --journalled 20 --finished 6 --live 3 --after-snapshot 9 --restarts 1"
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.controller", *arguments.split(), "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    results = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert "acknowledged messages that the journal lost" in results, done.stderr
    lost = results["acknowledged messages that the journal lost"]
    assert (lost["median"], lost["quarantined_jobs"], lost["errors"]) == (0, 0, []), done.stderr
    assert lost["acknowledged"] > 0
    assert results["messages"]["agents_alive"] == 12
    assert results["kill -9 under load to the last agent back"]["n"] == 1
    assert results["restart with 6 finished and 3 live jobs, 9 lines after the snapshot"]["n"] == 1
    assert not list(tmp_path.iterdir())


async def test_the_audit_finds_what_was_acknowledged_and_is_not_there(tmp_path: Path) -> None:
    machines = await Past(tmp_path, nodes=2).write(finished=1, live=1, after_snapshot=3)
    job, instance = machines[0]["job"], machines[0]["id"]
    kept = (job, instance, "saved", 1, 1002, 0.0)
    found = await audit(tmp_path / "journal.db", [kept])
    assert (found.acknowledged, found.lost, found.fenced, found.quarantined) == (1, 0, 0, 0)
    never = (job, instance, "saved", 1, 7777, 2e9)
    older = (job, instance, "saved", 0, 7777, 2e9)
    found = await audit(tmp_path / "journal.db", [kept, never, older])
    assert (found.acknowledged, found.lost, found.fenced) == (3, 1, 1)


async def test_the_audit_passes_over_what_is_not_of_a_job(tmp_path: Path) -> None:
    await Past(tmp_path, nodes=2).write(finished=1, live=1, after_snapshot=3)
    before = await audit(tmp_path / "journal.db", [])
    store = open_store(f"sqlite:///{tmp_path / 'journal.db'}")
    line = NewRecord(2e9, "PoolTold", 1, {"pool": "local/a/gpu/spot", "up": True, "why": "launched"})
    await store.append([Append(stream, (line,)) for stream in (MARKET_STREAM, DEPLOYMENT_STREAM)], None)
    await store.close()
    assert await audit(tmp_path / "journal.db", []) == before


class _Server(asyncio.Protocol):
    """Answers each request in the pieces that it is given."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for piece in self._pieces:
            self._transport.write(piece)
        if not self._pieces:
            self._transport.abort()


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], (200, b"{}")),
        ([b"HTTP/1.1 401 Un", b"authorized\r\ncontent-length: 3\r\n", b"\r\na", b"bc"], (401, b"abc")),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], (204, b"")),
        ([], (0, b"")),
    ],
    ids=["whole", "in pieces", "no body", "broken"],
)
async def test_answers_are_read_however_they_arrive(pieces: list[bytes], answer: tuple[int, bytes]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(pieces), "127.0.0.1", 0)
    channel = Channel()
    await loop.create_connection(lambda: channel, "127.0.0.1", server.sockets[0].getsockname()[1])
    told: asyncio.Future[tuple[int, bytes]] = loop.create_future()
    channel.request(whole(head("POST", "/x", "c"), b"{}"), lambda status, body: told.set_result((status, body)))
    try:
        assert await told == answer
        assert not channel.busy
    finally:
        channel.abort()
        server.close()
        await server.wait_closed()
