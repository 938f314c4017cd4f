"""The journal in a file: the suites, and what only a file can get wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from everstep.model.errors import StoreError, StoreFull, StoreUnusable
from everstep.model.ids import StreamId
from everstep.ports import Append
from everstep.store import scan
from everstep.store.schema import SCHEMA_VERSION
from everstep.store.sqlite import SqliteStore, restore
from everstep.store.sqlite.transaction import Transaction
from everstep.testing.store_suite import (
    A,
    ArchivingStoreSuite,
    B,
    SharedStoreSuite,
    StoreSuite,
    line,
    lines,
    numbers,
    take,
)

Opener = Callable[[], Awaitable[SqliteStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
async def another(path: Path) -> AsyncIterator[Opener]:
    opened: list[SqliteStore] = []

    async def open_once_more() -> SqliteStore:
        opened.append(SqliteStore(path, poll_s=0.01))
        return opened[-1]

    yield open_once_more
    for store in opened:
        await store.close()


@pytest.fixture
async def store(another: Opener) -> SqliteStore:
    return await another()


class TestSqliteStore(StoreSuite, ArchivingStoreSuite, SharedStoreSuite):
    @pytest.fixture
    def damage_snapshot(self, path: Path) -> Callable[[str], Awaitable[None]]:
        async def damage(name: str) -> None:
            edit(path, "UPDATE snapshots SET body = CAST('Some state' AS BLOB) WHERE name = ?", name)

        return damage


def edit(path: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql, values)
    connection.close()


async def test_concurrent_appends_share_transactions(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Transaction] = []
    start = Transaction.__init__

    def count(self: Transaction, connection: sqlite3.Connection) -> None:
        begun.append(self)
        start(self, connection)

    monkeypatch.setattr(Transaction, "__init__", count)
    await asyncio.gather(*(store.append([lines(A, n)], None) for n in range(200)))
    # All are handed in before the event loop runs again; the thread may have caught the first ones alone.
    assert len(begun) < 50


async def test_a_follower_is_woken_and_does_not_poll_for_lines_of_its_own_store(path: Path) -> None:
    store = SqliteStore(path, poll_s=3600)
    try:
        waiting = asyncio.create_task(take(store.follow(), 3))
        for n in range(3):
            # Long enough for the follower to have seen that there is nothing more.
            await asyncio.sleep(0.02)
            await store.append([lines(A, n)], None)
        assert numbers(await waiting) == [0, 1, 2]
    finally:
        await store.close()


async def test_a_cancelled_caller_leaves_the_others_alone(store: SqliteStore) -> None:
    tasks = [asyncio.create_task(store.append([lines(A, n)], None)) for n in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert [outcomes[n] for n in (0, 1, 3, 4)] == [1, 2, 4, 5]


async def test_closing_writes_what_was_handed_in(store: SqliteStore, another: Opener) -> None:
    tasks = [asyncio.create_task(store.append([lines(A, n)], None)) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    assert numbers(await (await another()).read()) == list(range(50))


async def test_a_fault_of_one_member_spares_the_rest(store: SqliteStore) -> None:
    def break_it(transaction: Transaction) -> None:
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        store.append([lines(A, 1)], None),
        store._writer.do(break_it),
        store.append([lines(A, 2)], None),
        return_exceptions=True,
    )
    assert [outcomes[0], type(outcomes[1]), outcomes[2]] == [1, ZeroDivisionError, 2]


async def test_reading_by_pages_holds_one_page(store: SqliteStore) -> None:
    many = 3_000
    await store.append([Append(StreamId(f"job/{n % 7}"), (line(n),)) for n in range(many)], None)
    await store.archive(StreamId("job/3"))
    asked: list[int] = []
    read = store.read

    async def watched(*, stream: StreamId | None = None, after: int = 0, limit: int = 10_000) -> object:
        asked.append(limit)
        return await read(stream=stream, after=after, limit=limit)

    store.read = watched  # type: ignore[method-assign, assignment]
    assert [r.body["number"] async for r in scan(store, page=500)] == list(range(many))
    assert asked == [500] * 7
    assert [r.version async for r in scan(store, stream=StreamId("job/3"), page=100)] == list(range(1, 430))


# --- the file ---


async def test_the_file_is_private_from_the_start_and_mended(store: SqliteStore, another: Opener, path: Path) -> None:
    await store.append([lines(A, 1)], None)
    files = [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
    for file in files:
        file.chmod(0o644)
    await another()
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3


async def test_commits_are_synced_and_logged_ahead(store: SqliteStore) -> None:
    def settings(transaction: Transaction) -> tuple[object, ...]:
        ask = transaction._connection.execute
        return tuple(ask(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode", "busy_timeout"))

    assert await store._writer.do(settings) == (2, "wal", 5000)


def refusal(path: Path) -> str:
    """The one line with which the file is refused."""
    with pytest.raises(StoreUnusable) as refused:
        SqliteStore(path)
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def test_other_files_are_refused_unchanged(path: Path) -> None:
    path.write_text("dear diary\n" * 100)
    assert refusal(path) == "not an everstep journal"
    assert path.read_text() == "dear diary\n" * 100


def test_other_databases_are_refused_unchanged(path: Path) -> None:
    edit(path, "CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    assert refusal(path) == "not an everstep journal"
    assert path.read_bytes() == before


async def test_a_newer_journal_is_refused(store: SqliteStore, path: Path) -> None:
    await store.close()
    edit(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    assert refusal(path) == "written by a newer everstep (journal format 2, this one knows 1); upgrade"


async def test_a_journal_cut_short_is_refused(store: SqliteStore, path: Path) -> None:
    await store.append([lines(A, *range(500))], None)
    await store.close()
    os.truncate(path, path.stat().st_size - 8192)
    assert refusal(path) == "the journal is damaged (cut short); restore a backup"


async def test_a_journal_with_overwritten_pages_is_refused(store: SqliteStore, path: Path) -> None:
    await store.append([lines(A, *range(2000))], None)
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 8)
    assert refusal(path).startswith("the journal is damaged (")


async def test_a_journal_without_a_table_is_refused(store: SqliteStore, path: Path) -> None:
    await store.close()
    edit(path, "DROP TABLE leases")
    assert refusal(path) == "the journal is damaged (no table leases); restore a backup"


async def test_a_line_that_is_not_json_any_more_is_named(store: SqliteStore, path: Path) -> None:
    await store.append([lines(A, 1, 2)], None)
    edit(path, "UPDATE journal SET body = '{\"number\":' WHERE seq = 2")
    with pytest.raises(StoreUnusable, match="line 2 of the journal is damaged"):
        await store.read()
    assert numbers(await store.read(limit=1)) == [1]


@pytest.mark.parametrize("name", ["", "missing/journal.db"], ids=["a folder", "no such folder"])
def test_what_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreUnusable, match=str(tmp_path)):
        SqliteStore(tmp_path / name)


async def test_an_empty_file_and_a_creation_cut_short_become_a_journal(path: Path, another: Opener) -> None:
    path.touch()
    # What a kill between the first pragma and the tables leaves behind.
    edit(path, "PRAGMA journal_mode=WAL")
    assert path.stat().st_size > 0
    store = await another()
    assert await store.append([lines(A, 1)], None) == 1
    await store.check()


async def test_an_older_backup_goes_on_where_it_was(store: SqliteStore, tmp_path: Path) -> None:
    await store.append([lines(A, 1, 2)], None)
    fence = await store.lease("control", "one", 0)
    copy = tmp_path / "backup.db"
    await store.backup(copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    await store.append([lines(A, 3)], None)
    with pytest.raises(StoreUnusable, match="a backup goes to a new one"):
        await store.backup(copy)
    restored = SqliteStore(copy)
    try:
        assert await restored.append([lines(A, 4, expected=2), lines(B, 5, expected=0)], fence) == 4
        assert (await restored.lease("control", "two", 60)).number == fence.number + 1
    finally:
        await restored.close()


async def test_restoring_does_not_mix_in_the_log_of_a_killed_writer(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    await store.append([lines(A, 1)], None)
    await store.backup(tmp_path / "backup.db")
    await store.append([lines(A, *range(2, 300))], None)
    # As after kill -9: the newest lines are in the log alone.
    killed = tmp_path / "killed.db"
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", f"{killed}{end}")
    restore(tmp_path / "backup.db", killed)
    again = SqliteStore(killed)
    try:
        assert numbers(await again.read()) == [1]
        assert await again.append([lines(A, 2, expected=1)], None) == 2
        await again.check()
    finally:
        await again.close()
    assert sorted(p.name for p in tmp_path.glob("killed*")) == ["killed.db"]


async def test_what_is_no_backup_is_not_restored(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    await store.append([lines(A, 1)], None)
    await store.close()
    before = path.read_bytes()
    (tmp_path / "letter").write_text("dear diary")
    for name, complaint in (("letter", "not an everstep journal"), ("missing", "there is no such backup")):
        with pytest.raises(StoreUnusable, match=complaint):
            restore(tmp_path / name, path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal.db", "letter"]


# --- when the disk or another process is in the way ---


async def test_a_locked_file_is_said_so_and_goes_on_later(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_s=0.01)
    try:
        rival = sqlite3.connect(path, isolation_level=None)
        rival.execute("BEGIN IMMEDIATE")
        outcomes = await asyncio.gather(*(store.append([lines(A, n)], None) for n in range(3)), return_exceptions=True)
        assert [str(o) for o in outcomes] == [f"{path}: another process keeps the journal locked"] * 3
        assert all(type(o) is StoreError for o in outcomes)
        # Reading goes on.
        assert list(await store.read()) == []
        rival.execute("ROLLBACK")
        rival.close()
        assert await store.append([lines(A, 4)], None) == 1
    finally:
        await store.close()


async def test_no_space_is_said_so_spares_the_small_and_goes_on_later(store: SqliteStore) -> None:
    await store.append([lines(A, 1)], None)
    pages = await store._writer.do(lambda t: t._connection.execute("PRAGMA page_count").fetchone()[0])
    await store._writer.do(lambda t: t._connection.execute(f"PRAGMA max_page_count={pages + 2}").fetchone())
    large = Append(A, (line(2, text="x" * 100_000),))
    outcomes = await asyncio.gather(
        store.append([lines(B, 3)], None),
        store.append([lines(B, 4), large], None),
        store.append([lines(B, 5)], None),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], StoreFull)
    assert str(outcomes[1]).startswith(f"{store.path}: no space is left")
    assert (outcomes[0], outcomes[2]) == (2, 3)
    assert numbers(await store.read()) == [1, 3, 5]
    await store._writer.do(lambda t: t._connection.execute("PRAGMA max_page_count=1000000").fetchone())
    assert await store.append([large], None) == 4
    await store.check()
