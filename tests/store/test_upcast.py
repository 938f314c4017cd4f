"""Old journals read as if written today."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everstep.ports import Append, NewRecord
from everstep.store.memory import MemoryStore
from everstep.store.upcast import Body, UpcastError, Upcasters, UpcastingStore
from everstep.testing.store_suite import A, ArchivingStoreSuite, StoreSuite, lines, take

JOURNAL = Path(__file__).parent / "journals" / "schema-1.jsonl"


class TestUpcastingStore(StoreSuite, ArchivingStoreSuite):
    """The wrapper is a store like any other."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[UpcastingStore]:
        store = UpcastingStore(MemoryStore(), Upcasters())
        yield store
        await store.close()


def upcasters() -> Upcasters:
    known = Upcasters()

    @known.register("JobSubmitted", 1)
    def price_has_a_unit(body: Body) -> tuple[Body, int]:
        return {"name": body["name"], "price_usd_per_h": float(body["price"])}, 2

    @known.register("JobSubmitted", 2)
    def jobs_have_a_project(body: Body) -> tuple[Body, int]:
        return {**body, "project": "default"}, 3

    return known


async def old_journal() -> MemoryStore:
    store = MemoryStore()
    for text in JOURNAL.read_text().splitlines():
        entry: dict[str, Any] = json.loads(text)
        stream = entry.pop("stream")
        await store.append([Append(stream, (NewRecord(**entry),))], None)
    return store


async def test_every_reader_sees_the_newest_schema() -> None:
    inner = await old_journal()
    store = UpcastingStore(inner, upcasters())
    expected = [
        (1, 3, {"name": "train", "price_usd_per_h": 0.25, "project": "default"}),
        (2, 1, {"pid": 7}),
        (3, 3, {"name": "train", "price_usd_per_h": 0.5, "project": "default"}),
        (4, 3, {"name": "train", "price_usd_per_h": 0.75, "project": "vision"}),
    ]
    assert [(r.seq, r.schema, r.body) for r in await store.read()] == expected
    assert [(r.seq, r.schema, r.body) for r in await take(store.follow(), 4)] == expected
    # What is stored stays as it was written.
    assert [r.schema for r in await inner.read()] == [1, 1, 2, 3]


def test_two_upcasters_for_one_step_are_refused() -> None:
    with pytest.raises(UpcastError, match="JobSubmitted has two upcasters from schema 1"):
        upcasters().register("JobSubmitted", 1)(lambda body: (body, 2))


@pytest.mark.parametrize("reached", [1, 3])
async def test_an_upcaster_must_lead_to_the_next_schema(reached: int) -> None:
    store = MemoryStore()
    await store.append([lines(A, 1)], None)
    known = Upcasters()
    known.register("Tested", 1)(lambda body: (body, reached))
    with pytest.raises(UpcastError, match=f"from schema 1 leads to {reached}"):
        await UpcastingStore(store, known).read()
