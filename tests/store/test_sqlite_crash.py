"""kill -9 and a full disk: what was acknowledged stays, nothing is there by half."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.model.errors import StoreFull
from everstep.ports import Append
from everstep.store import scan
from everstep.store.sqlite import SqliteStore
from everstep.testing.store_suite import A, B, line, lines, numbers

WRITER = Path(__file__).parent / "endless_writer.py"


def write_and_kill(path: Path, round_no: int, after_acknowledged: int) -> set[tuple[str, int]]:
    """Starts the writer, kills it after so many answers; all the answers it gave."""
    command = [sys.executable, str(WRITER), str(path), str(round_no)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = [process.stdout.readline() for _ in range(after_acknowledged)]
        finally:
            process.kill()
        told += process.stdout.readlines()
    assert process.returncode == -9
    answers = [text.split() for text in told]
    return {(f"job/{round_no}-{name}", int(batch)) for name, batch in answers}


@pytest.mark.e2e
async def test_killed_writers_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    chance = random.Random(5)
    acknowledged: set[tuple[str, int]] = set()
    for round_no in range(6):
        acknowledged |= write_and_kill(path, round_no, chance.randrange(1, 400))
        # Every round starts on what the kill before left, and so recovers its log.
    store = SqliteStore(path)
    try:
        await store.check()
        found: Counter[tuple[str, int]] = Counter()
        sizes: dict[tuple[str, int], int] = {}
        seqs = []
        async for record in scan(store):
            seqs.append(record.seq)
            key = (record.stream, record.body["batch"])
            found[key] += 1
            sizes[key] = record.body["size"]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(acknowledged) >= 6
        assert acknowledged <= found.keys()
        assert found == sizes
        assert await store.append([lines(A, 1)], None) == len(seqs) + 1
    finally:
        await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
async def test_a_full_disk_is_said_so_and_goes_on_when_there_is_space(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    store = SqliteStore(small_disk / "journal.db")
    try:
        await store.append([lines(A, 1)], None)
        ballast.write_bytes(bytes(800_000))
        large = Append(B, tuple(line(n, text="x" * 1000) for n in range(300)), 0)
        for _ in range(2):
            with pytest.raises(StoreFull, match="no space is left for the journal"):
                await store.append([large], None)
            assert numbers(await store.read()) == [1]
        ballast.unlink()
        assert await store.append([large], None) == 301
        await store.check()
    finally:
        await store.close()
