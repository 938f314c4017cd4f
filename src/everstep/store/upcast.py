"""Old journals, read as if they had been written today: each event is brought up to date, one schema at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from everstep.model.errors import EverstepError
from everstep.model.ids import StreamId
from everstep.ports import Append, Fence, Record
from everstep.store.archiving import JournalStore

Body = Mapping[str, Any]
Upcaster = Callable[[Body], tuple[Body, int]]
"""The body as of the next schema, and that schema's number. Must not change the body it is given."""


class UpcastError(EverstepError):
    """An upcaster is missing, is registered twice, or does not lead to the next schema: a fault of the program."""


class Upcasters:
    """What turns an event of (kind, schema) into the same event of schema + 1."""

    def __init__(self) -> None:
        self._by_step: dict[tuple[str, int], Upcaster] = {}

    def register(self, kind: str, schema: int) -> Callable[[Upcaster], Upcaster]:
        """Decorator for the function that lifts ``kind`` from ``schema`` to ``schema + 1``.

        Raises:
            UpcastError: there is one for that step already.
        """

        def keep(upcaster: Upcaster) -> Upcaster:
            if (kind, schema) in self._by_step:
                raise UpcastError(f"{kind} has two upcasters from schema {schema}")
            self._by_step[kind, schema] = upcaster
            return upcaster

        return keep

    def upcast(self, record: Record) -> Record:
        """The record at the newest schema its kind has; the same object if it is there already.

        Raises:
            UpcastError: an upcaster does not lead to the next schema.
        """
        body, schema = record.body, record.schema
        while (upcaster := self._by_step.get((record.kind, schema))) is not None:
            body, reached = upcaster(body)
            if reached != schema + 1:
                raise UpcastError(f"the upcaster of {record.kind} from schema {schema} leads to {reached}")
            schema = reached
        return record if schema == record.schema else dataclasses.replace(record, body=body, schema=schema)


class UpcastingStore:
    """A store whose readers see every event at its newest schema. What is on the disk stays as it was written."""

    def __init__(self, store: JournalStore, upcasters: Upcasters) -> None:
        self._store = store
        self._upcasters = upcasters

    async def append(self, batch: Sequence[Append], fence: Fence | None) -> int:
        """See ``Store.append``."""
        return await self._store.append(batch, fence)

    async def read(self, *, stream: StreamId | None = None, after: int = 0, limit: int = 10_000) -> Sequence[Record]:
        """See ``Store.read``; events are up to date."""
        upcast = self._upcasters.upcast
        return [upcast(record) for record in await self._store.read(stream=stream, after=after, limit=limit)]

    async def follow(self, *, after: int = 0) -> AsyncIterator[Record]:
        """See ``Store.follow``; events are up to date."""
        async for record in self._store.follow(after=after):
            yield self._upcasters.upcast(record)

    async def save_snapshot(self, name: str, *, seq: int, body: bytes) -> None:
        """See ``Store.save_snapshot``."""
        await self._store.save_snapshot(name, seq=seq, body=body)

    async def load_snapshot(self, name: str) -> tuple[int, bytes] | None:
        """See ``Store.load_snapshot``."""
        return await self._store.load_snapshot(name)

    async def lease(self, name: str, holder: str, ttl_s: float) -> Fence:
        """See ``Store.lease``."""
        return await self._store.lease(name, holder, ttl_s)

    async def live_streams(self) -> dict[StreamId, int]:
        """See ``JournalStore.live_streams``."""
        return await self._store.live_streams()

    async def archive(self, stream: StreamId, fence: Fence | None = None) -> None:
        """See ``JournalStore.archive``."""
        await self._store.archive(stream, fence)

    async def trim(self, stream: StreamId, through: int, fence: Fence | None = None) -> None:
        """See ``Trimming.trim``."""
        await self._store.trim(stream, through, fence)

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._store.close()
