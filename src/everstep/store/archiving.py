"""What the journals of everstep can do beyond the port: put the streams of finished jobs aside."""

from __future__ import annotations

from typing import Protocol

from everstep.model.ids import StreamId
from everstep.ports import Fence, Store


class JournalStore(Store, Protocol):
    """A ``Store`` that can also put finished streams aside, as those of everstep do."""

    async def live_streams(self) -> dict[StreamId, int]:
        """Streams that are not archived, with the version of their last line."""
        ...

    async def archive(self, stream: StreamId, fence: Fence | None = None) -> None:
        """Takes a stream out of ``live_streams``; it is read as before, and a later append makes it live again."""
        ...
