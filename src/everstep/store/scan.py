"""Reading long journals a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from everstep.model.ids import StreamId
from everstep.ports import Record, Store


async def scan(
    store: Store, *, stream: StreamId | None = None, after: int = 0, page: int = 2_000
) -> AsyncIterator[Record]:
    """Every line that is there now, in order, holding no more than ``page`` of them in memory.

    Args:
        store: where to read.
        stream: one stream; None = the whole journal.
        after: start behind this version (of a stream) or sequence number (of the journal).
        page: lines per read.
    """
    while True:
        records = await store.read(stream=stream, after=after, limit=page)
        for record in records:
            yield record
        if len(records) < page:
            return
        after = records[-1].seq if stream is None else records[-1].version
