"""The market stream in the journal: there after kill -9 and a torn tail, short, and read again at a restart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.control.journal import Journal
from everstep.control.kernel import Outcome
from everstep.control.sights import FULL_EVERY, SEEN, Sight
from everstep.model.ids import MARKET_STREAM
from everstep.model.offers import Market
from everstep.store.memory import MemoryStore
from everstep.store.sqlite import SqliteStore
from everstep.testing.scripted import MarketAt
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.control.site import JOB, Site, on_site
from tests.parity.worlds import SHARED, offer, task, world

WRITER = Path(__file__).parent / "market_writer.py"
COUNTED = (offer("a", Market.SPOT, 1.0, 4), offer("b", Market.SPOT, 1.2, 0), offer("a", Market.ON_DEMAND, 3.0))
TURNED = (replace(COUNTED[0], available=0), replace(COUNTED[1], available=2), COUNTED[2])
WATCHED = world(
    "watched",
    task(1),
    markets=(MarketAt(0.0, COUNTED), MarketAt(21.0, TURNED), MarketAt(52.0, COUNTED), MarketAt(83.0, TURNED)),
    shared=SHARED,
)


@pytest.mark.parametrize("at", [8.0, 30.0, 61.0, 95.0])
def test_what_was_seen_of_the_market_is_known_again_after_kill_9(at: float) -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(at)
        await site.kill()
        known = site.controller.kernel.pools
        assert any(record.flips for record in known.records.values())
        copy = site.copy()
        await copy.journal.restore(copy.kernel, copy.book)
        assert JOB in copy.book
        for pool, record in known.records.items():
            again = copy.kernel.pools.record(pool)
            assert (again.failed_at, again.preemptions, bool(again.counted)) == (
                record.failed_at,
                record.preemptions,
                bool(record.counted),
            )
            assert [up for _, up in again.flips] == [up for _, up in record.flips]
            # The first look was before there was a job that wants such pools.
            told = [at for at, _ in again.flips][1:]
            assert told == pytest.approx([at for at, _ in record.flips][1:], abs=0.1)

    on_site(main, WATCHED, exclusive=True)


def test_a_restarted_server_goes_on_with_the_stream() -> None:
    async def main(site: Site) -> None:
        await site.start()
        await site.clock.sleep(30.0)
        await site.kill()
        await site.clock.sleep(200.0)
        await site.revive()
        await site.clock.sleep(30.0)
        records = await site.store.read(stream=MARKET_STREAM)
        full = [r for r in records if r.kind == SEEN and r.body["full"]]
        assert len(full) == 2, "each server begins with everything"
        assert [r.at for r in records] == sorted(r.at for r in records)
        again = full[1]
        # Nobody looked while there was no server.
        assert again.body["looked"]["box"] >= again.at - 1.0
        told = [r.body["why"] for r in records if r.kind == "PoolTold"]
        assert "launched" in told

    on_site(main, WATCHED, exclusive=True)


def test_the_stream_is_kept_short() -> None:
    async def main(clock: VirtualClock) -> list[int]:
        store = MemoryStore(wall=clock.now)
        journal = Journal(store, clock=clock, holder="test", sights_kept=100)
        for n in range(3 * FULL_EVERY):
            body = {"full": False, "looked": {}, "pools": [], "number": n}
            await journal.write(Outcome(sights=[Sight(SEEN, body, float(n))]))
            assert len(await store.read(stream=MARKET_STREAM)) <= 100 + FULL_EVERY + 1
        return [r.body["number"] for r in await store.read(stream=MARKET_STREAM)]

    kept = run_virtual(main)
    assert len(kept) >= 100
    assert kept == list(range(3 * FULL_EVERY - len(kept), 3 * FULL_EVERY))


async def stream_of(path: Path) -> list[int]:
    store = SqliteStore(path)
    try:
        await store.check()
        return [record.body["number"] for record in await store.read(stream=MARKET_STREAM)]
    finally:
        await store.close()


def killed(path: Path, after: int) -> int:
    """Starts the writer, kills it after so many answers; the number that it acknowledged last."""
    with subprocess.Popen([sys.executable, str(WRITER), str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = [process.stdout.readline() for _ in range(after)]
        finally:
            process.kill()
        told += process.stdout.readlines()
    assert process.returncode == -9
    return int(told[-1])


@pytest.mark.e2e
async def test_a_killed_writer_loses_nothing_and_a_torn_tail_costs_the_last_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    last = killed(path, 120)
    tail = path.with_name("journal.db-wal")
    whole = tail.read_bytes()
    assert whole, "what was written last lies in the log of the database"
    torn = tmp_path / "torn"
    for part in (0.97, 0.6, 0.2):
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir()
        shutil.copy(path, torn / "journal.db")
        (torn / "journal.db-wal").write_bytes(whole[: int(len(whole) * part)])
        found = await stream_of(torn / "journal.db")
        assert found == list(range(len(found))), "a beginning of it, whole"
    found = await stream_of(path)
    assert found == list(range(len(found)))
    assert len(found) > last
