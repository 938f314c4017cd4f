"""What every ``Store`` must do. An implementation is done when it passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from everstep.model.errors import LeaseHeld, StaleFence, StoreClosed, VersionConflict
from everstep.model.ids import StreamId
from everstep.ports import Append, Fence, NewRecord, Record, Store
from everstep.store.archiving import JournalStore

A, B = StreamId("job/a"), StreamId("job/b")
PATIENCE_S = 30.0
"""Longest wait for what must come at all; no test asserts on how long it took."""


def line(number: int = 0, kind: str = "Tested", **body: Any) -> NewRecord:
    """A line to append that tells which one it is."""
    return NewRecord(at=1000.0 + number, kind=kind, schema=1, body={"number": number, **body})


def lines(stream: StreamId, *numbers: int, expected: int | None = None) -> Append:
    """An append of numbered lines."""
    return Append(stream, tuple(line(n) for n in numbers), expected)


def numbers(records: Sequence[Record]) -> list[int]:
    """Which lines these are."""
    return [record.body["number"] for record in records]


async def take(source: AsyncIterator[Record], count: int) -> list[Record]:
    """The next ``count`` records; fails if they do not come."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(source) for _ in range(count)]


@pytest.mark.asyncio
class StoreSuite:
    """Give it the fixture ``store``: an open, empty store that the fixture closes afterwards."""

    # --- appending and reading ---

    async def test_an_empty_journal_has_nothing(self, store: Store) -> None:
        assert await store.append([], None) == 0
        assert list(await store.read()) == []
        assert list(await store.read(stream=A)) == []

    async def test_lines_come_back_as_they_were_written(self, store: Store) -> None:
        body = {"text": "zwölf \u2603 \ud800", "none": None, "deep": [{"x": [1, 2.5, True]}], "big": 2**60, "": ""}
        written = NewRecord(at=1700000000.123456, kind="Kind", schema=7, body=body)
        assert await store.append([Append(A, (written,), 0)], None) == 1
        assert list(await store.read()) == [Record(1, A, 1, 1700000000.123456, "Kind", 7, body)]

    async def test_seq_counts_the_journal_and_version_the_stream(self, store: Store) -> None:
        assert await store.append([lines(A, 1, 2), lines(B, 3)], None) == 3
        assert await store.append([lines(A, 4)], None) == 4
        assert [(r.seq, r.stream, r.version) for r in await store.read()] == [
            (1, A, 1),
            (2, A, 2),
            (3, B, 1),
            (4, A, 3),
        ]
        assert [(r.seq, r.version) for r in await store.read(stream=A)] == [(1, 1), (2, 2), (4, 3)]

    async def test_after_and_limit_cut_pages(self, store: Store) -> None:
        await store.append([lines(A, 1, 2), lines(B, 3, 4), lines(A, 5)], None)
        assert numbers(await store.read(after=1, limit=3)) == [2, 3, 4]
        assert numbers(await store.read(stream=A, after=1)) == [2, 5]
        assert numbers(await store.read(stream=A, after=1, limit=1)) == [2]
        assert numbers(await store.read(after=5)) == []
        assert numbers(await store.read(limit=0)) == []

    async def test_an_empty_batch_gives_the_last_line(self, store: Store) -> None:
        await store.append([lines(A, 1, 2)], None)
        assert await store.append([], None) == 2
        assert await store.append([Append(A, (), 2)], None) == 2

    async def test_one_batch_may_name_a_stream_twice(self, store: Store) -> None:
        await store.append([lines(A, 1, expected=0), lines(B, 2, expected=0), lines(A, 3, expected=1)], None)
        assert numbers(await store.read(stream=A)) == [1, 3]

    async def test_what_was_written_cannot_be_changed(self, store: Store) -> None:
        body = {"list": [1]}
        await store.append([Append(A, (NewRecord(1.0, "Kind", 1, body),))], None)
        body["list"].append(2)
        (await store.read())[0].body["list"].append(3)
        assert (await store.read())[0].body == {"list": [1]}

    @pytest.mark.parametrize(
        "bad",
        [
            NewRecord(1.0, "Kind", 1, {"x": float("nan")}),
            NewRecord(1.0, "Kind", 1, {"x": object()}),
            NewRecord(float("inf"), "Kind", 1, {}),
            NewRecord(1.0, "", 1, {}),
            NewRecord(1.0, "Kind", 0, {}),
        ],
        ids=["nan", "object", "infinite time", "no kind", "schema 0"],
    )
    async def test_what_no_journal_can_hold_is_refused_whole(self, store: Store, bad: NewRecord) -> None:
        with pytest.raises((TypeError, ValueError)):
            await store.append([lines(A, 1), Append(B, (bad,))], None)
        assert list(await store.read()) == []

    # --- conflicts ---

    async def test_a_stream_that_moved_on_refuses_the_whole_batch(self, store: Store) -> None:
        await store.append([lines(A, 1)], None)
        with pytest.raises(VersionConflict, match="job/a is at version 1, not 0"):
            await store.append([lines(B, 2, expected=0), lines(A, 3, expected=0)], None)
        with pytest.raises(VersionConflict):
            await store.append([lines(A, 4, expected=2)], None)
        with pytest.raises(VersionConflict):
            await store.append([lines(A, 5, expected=1), lines(A, 6, expected=1)], None)
        assert numbers(await store.read()) == [1]

    async def test_of_rivals_for_a_version_one_wins_and_bystanders_do_not_notice(self, store: Store) -> None:
        rivals = [store.append([lines(A, n, expected=0)], None) for n in range(20)]
        bystanders = [store.append([lines(StreamId(f"job/{n}"), n, expected=0)], None) for n in range(100, 120)]
        outcomes = await asyncio.gather(*rivals, *bystanders, return_exceptions=True)
        won = [n for n, outcome in enumerate(outcomes[:20]) if not isinstance(outcome, BaseException)]
        assert len(won) == 1
        assert all(isinstance(outcome, VersionConflict) for n, outcome in enumerate(outcomes[:20]) if n not in won)
        assert numbers(await store.read(stream=A)) == won
        written = {record.seq: record.body["number"] for record in await store.read()}
        assert [written[seq] for seq in outcomes[20:] if isinstance(seq, int)] == list(range(100, 120))

    async def test_concurrent_appends_keep_batches_whole_and_callers_in_order(self, store: Store) -> None:
        async def caller(name: int) -> None:
            for n in range(10):
                await store.append([lines(StreamId(f"job/{name}"), 2 * n), lines(B, name, name)], None)

        await asyncio.gather(*(caller(name) for name in range(20)))
        everything = await store.read()
        assert [r.seq for r in everything] == list(range(1, 601))
        for name in range(20):
            assert numbers([r for r in everything if r.stream == f"job/{name}"]) == list(range(0, 20, 2))
        # The three lines of each batch lie side by side.
        for start in range(0, 600, 3):
            own, *shared = everything[start : start + 3]
            assert [own.stream] * 2 == [f"job/{r.body['number']}" for r in shared]

    # --- leases and fences ---

    async def test_a_renewal_keeps_the_number_and_a_new_holder_gets_a_higher_one(self, store: Store) -> None:
        first = await store.lease("control", "one", 60)
        assert (first.name, first.holder) == ("control", "one")
        assert await store.lease("control", "one", 0) == first
        second = await store.lease("control", "two", 60)
        assert second.number > first.number
        assert (await store.lease("other", "one", 60)).name == "other"

    async def test_a_held_lease_is_refused(self, store: Store) -> None:
        fence = await store.lease("control", "one", 60)
        with pytest.raises(LeaseHeld, match="one holds the lease 'control'"):
            await store.lease("control", "two", 60)
        assert await store.lease("control", "one", 60) == fence

    async def test_of_rivals_for_a_lease_one_wins(self, store: Store) -> None:
        asked = [store.lease("control", f"holder-{n}", 60) for n in range(20)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(outcome, Fence) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, LeaseHeld) for outcome in outcomes) == 19

    async def test_only_the_newest_fence_writes(self, store: Store) -> None:
        old = await store.lease("control", "one", 0)
        # Run out, but nobody else asked: its holder may go on.
        await store.append([lines(A, 1)], old)
        new = await store.lease("control", "two", 60)
        with pytest.raises(StaleFence, match="one lost the lease 'control'"):
            await store.append([lines(A, 2)], old)
        with pytest.raises(StaleFence):
            await store.append([], old)
        await store.append([lines(A, 3)], new)
        assert numbers(await store.read()) == [1, 3]

    @pytest.mark.parametrize("changed", [{"name": "never"}, {"number": 99}, {"holder": "two"}])
    async def test_a_made_up_fence_does_not_write(self, store: Store, changed: dict[str, Any]) -> None:
        fence = await store.lease("control", "one", 60)
        made_up = Fence(**{"name": fence.name, "holder": fence.holder, "number": fence.number, **changed})
        with pytest.raises(StaleFence):
            await store.append([lines(A, 1)], made_up)
        assert list(await store.read()) == []

    async def test_a_stale_writer_in_a_group_does_not_stop_the_others(self, store: Store) -> None:
        old = await store.lease("control", "one", 0)
        new = await store.lease("control", "two", 60)
        appends = [store.append([lines(A, n)], old if n % 2 else new) for n in range(20)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert [isinstance(outcome, StaleFence) for outcome in outcomes] == [bool(n % 2) for n in range(20)]
        assert numbers(await store.read()) == list(range(0, 20, 2))

    @pytest.mark.parametrize("ttl_s", [-1.0, float("nan"), float("inf")])
    async def test_a_lease_nobody_can_keep_is_refused(self, store: Store, ttl_s: float) -> None:
        with pytest.raises(ValueError, match="cannot be kept"):
            await store.lease("control", "one", ttl_s)

    # --- following ---

    async def test_follow_gives_what_is_there_and_what_comes(self, store: Store) -> None:
        await store.append([lines(A, 1, 2)], None)
        follower = store.follow(after=1)
        assert numbers(await take(follower, 1)) == [2]
        waiting = asyncio.create_task(take(follower, 3))
        await asyncio.sleep(0)
        await store.append([lines(B, 3)], None)
        await store.append([lines(A, 4, 5)], None)
        assert numbers(await waiting) == [3, 4, 5]

    async def test_followers_miss_nothing_while_others_write(self, store: Store) -> None:
        followers = [asyncio.create_task(take(store.follow(), 100)) for _ in range(3)]
        for n in range(50):
            await store.append([lines(A, 2 * n, 2 * n + 1)], None)
        for follower in followers:
            assert [r.seq for r in await follower] == list(range(1, 101))

    async def test_follow_ends_when_the_store_is_closed(self, store: Store) -> None:
        await store.append([lines(A, 1)], None)
        follower = store.follow()
        assert numbers(await take(follower, 1)) == [1]
        waiting = asyncio.ensure_future(anext(follower, None))
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting is None

    # --- snapshots ---

    async def test_the_newest_snapshot_of_a_name_is_kept(self, store: Store) -> None:
        assert await store.load_snapshot("jobs") is None
        await store.append([lines(A, 1, 2)], None)
        await store.save_snapshot("jobs", seq=1, body=b"old")
        await store.save_snapshot("other", seq=1, body=b"")
        await store.save_snapshot("jobs", seq=2, body=bytes(range(256)))
        assert await store.load_snapshot("jobs") == (2, bytes(range(256)))
        assert await store.load_snapshot("other") == (1, b"")

    # --- closing ---

    async def test_a_closed_store_refuses_and_closing_twice_is_fine(self, store: Store) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.append([lines(A, 1)], None)
        with pytest.raises(StoreClosed):
            await store.read()
        with pytest.raises(StoreClosed):
            await store.lease("control", "one", 60)


@pytest.mark.asyncio
class ArchivingStoreSuite:
    """For stores that can put streams aside. The fixture ``store`` is as for ``StoreSuite``."""

    async def test_live_streams_are_those_not_archived(self, store: JournalStore) -> None:
        assert await store.live_streams() == {}
        await store.append([lines(A, 1, 2), lines(B, 3)], None)
        assert await store.live_streams() == {A: 2, B: 1}
        await store.archive(A)
        await store.archive(A)
        await store.archive(StreamId("job/never"))
        assert await store.live_streams() == {B: 1}

    async def test_an_archived_stream_reads_as_before(self, store: JournalStore) -> None:
        await store.append([lines(A, 1), lines(B, 2), lines(A, 3), lines(B, 4)], None)
        whole, stream = await store.read(), await store.read(stream=A)
        await store.archive(A)
        assert list(await store.read()) == list(whole)
        assert list(await store.read(stream=A)) == list(stream)
        assert numbers(await store.read(after=1, limit=2)) == [2, 3]
        assert numbers(await store.read(stream=A, after=1)) == [3]

    async def test_an_append_makes_it_live_again(self, store: JournalStore) -> None:
        await store.append([lines(A, 1)], None)
        await store.archive(A)
        with pytest.raises(VersionConflict):
            await store.append([lines(A, 2, expected=0)], None)
        assert await store.append([lines(A, 2, expected=1)], None) == 2
        assert await store.live_streams() == {A: 2}
        await store.archive(A)
        assert [(r.seq, r.version) for r in await store.read(stream=A)] == [(1, 1), (2, 2)]
        assert await store.append([lines(B, 3)], None) == 3

    async def test_a_trimmed_stream_keeps_the_numbers_of_what_is_left(self, store: JournalStore) -> None:
        await store.append([lines(A, 1), lines(B, 2), lines(A, 3), lines(B, 4), lines(A, 5)], None)
        await store.trim(A, 2)
        assert [(r.seq, r.version) for r in await store.read(stream=A)] == [(5, 3)]
        assert [r.seq for r in await store.read()] == [2, 4, 5]
        assert [r.seq for r in await store.read(after=2, limit=1)] == [4]
        assert await store.read(stream=A, after=3) == []
        assert await store.live_streams() == {A: 3, B: 2}
        assert await store.append([lines(A, 6, expected=3)], None) == 6

    async def test_the_last_line_of_a_stream_is_never_trimmed(self, store: JournalStore) -> None:
        await store.append([lines(A, 1, 2)], None)
        await store.trim(A, 99)
        await store.trim(A, 99)
        await store.trim(StreamId("job/never"), 5)
        assert [(r.seq, r.version) for r in await store.read()] == [(2, 2)]
        assert await store.append([lines(B, 3)], None) == 3, "no number is given out twice"
        await store.archive(A)
        await store.append([lines(A, 4)], None)
        await store.trim(A, 2)
        assert [r.seq for r in await store.read()] == [3, 4]

    async def test_a_stale_fence_trims_nothing(self, store: JournalStore) -> None:
        await store.append([lines(A, 1, 2)], None)
        old = await store.lease("control", "one", 0)
        await store.lease("control", "two", 60)
        with pytest.raises(StaleFence):
            await store.trim(A, 1, old)
        assert numbers(await store.read()) == [1, 2]

    async def test_a_stale_fence_archives_nothing(self, store: JournalStore) -> None:
        await store.append([lines(A, 1)], None)
        old = await store.lease("control", "one", 0)
        await store.lease("control", "two", 60)
        with pytest.raises(StaleFence):
            await store.archive(A, old)
        assert await store.live_streams() == {A: 1}


Reopen = Callable[[], Awaitable[Store]]


@pytest.mark.asyncio
class SharedStoreSuite:
    """For stores that outlive a process or have several at once.

    Give it ``store`` as for ``StoreSuite``, ``another``: a function that opens the same journal once more (the fixture
    closes what it opened), and ``damage_snapshot``: a function that changes one byte of the body of a stored snapshot.
    """

    async def test_everything_is_there_after_reopening(self, store: Store, another: Reopen) -> None:
        await store.append([lines(A, 1, 2), lines(B, 3)], None)
        await store.save_snapshot("jobs", seq=3, body=b"state")
        fence = await store.lease("control", "one", 60)
        before = list(await store.read())
        await store.close()
        again = await another()
        assert list(await again.read()) == before
        assert await again.load_snapshot("jobs") == (3, b"state")
        assert await again.append([lines(A, 4, expected=2)], fence) == 4

    async def test_two_openers_see_one_journal(self, store: Store, another: Reopen) -> None:
        other = await another()
        await store.append([lines(A, 1, expected=0)], None)
        with pytest.raises(VersionConflict):
            await other.append([lines(A, 2, expected=0)], None)
        assert await other.append([lines(A, 3, expected=1)], None) == 2
        assert numbers(await store.read()) == [1, 3]

    async def test_concurrent_openers_lose_nothing(self, store: Store, another: Reopen) -> None:
        other = await another()
        appends = [(store, other)[n % 2].append([lines(A, n)], None) for n in range(40)]
        seqs = await asyncio.gather(*appends)
        assert sorted(seqs) == list(range(1, 41))
        assert {r.seq: r.body["number"] for r in await store.read()} == {seq: n for n, seq in enumerate(seqs)}

    async def test_a_follower_hears_of_lines_written_elsewhere(self, store: Store, another: Reopen) -> None:
        other = await another()
        waiting = asyncio.create_task(take(store.follow(), 2))
        await asyncio.sleep(0)
        await other.append([lines(A, 1, 2)], None)
        assert numbers(await waiting) == [1, 2]

    async def test_a_lease_taken_elsewhere_fences_us_off(self, store: Store, another: Reopen) -> None:
        other = await another()
        ours = await store.lease("control", "one", 60)
        with pytest.raises(LeaseHeld):
            await other.lease("control", "two", 60)
        assert await store.lease("control", "one", 0) == ours
        theirs = await other.lease("control", "two", 60)
        with pytest.raises(StaleFence):
            await store.append([lines(A, 1)], ours)
        await other.append([lines(A, 2)], theirs)

    async def test_a_damaged_snapshot_counts_as_none(
        self, store: Store, damage_snapshot: Callable[[str], Awaitable[None]]
    ) -> None:
        await store.save_snapshot("jobs", seq=3, body=b"some state")
        await store.save_snapshot("sound", seq=3, body=b"some state")
        await damage_snapshot("jobs")
        assert await store.load_snapshot("jobs") is None
        assert await store.load_snapshot("sound") == (3, b"some state")
        await store.save_snapshot("jobs", seq=4, body=b"new state")
        assert await store.load_snapshot("jobs") == (4, b"new state")
