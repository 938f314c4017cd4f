"""What the journals of everstep can do beyond the port: put finished streams aside, shorten one that is a memory."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from everstep.model.ids import StreamId
from everstep.ports import Fence, Store


@runtime_checkable
class Trimming(Protocol):
    """Can forget the beginning of a stream that is worth keeping only for a while."""

    async def trim(self, stream: StreamId, through: int, fence: Fence | None = None) -> None:
        """Deletes the lines of a stream up to ``through`` (a version), but never its last one.

        The others keep their numbers: the journal is read with a gap where the deleted lines were.

        Raises:
            StaleFence: a newer lease was granted.
        """
        ...


class JournalStore(Store, Trimming, Protocol):
    """A ``Store`` that can also put finished streams aside, as those of everstep do."""

    async def live_streams(self) -> dict[StreamId, int]:
        """Streams that are not archived, with the version of their last line."""
        ...

    async def archive(self, stream: StreamId, fence: Fence | None = None) -> None:
        """Takes a stream out of ``live_streams``; it is read as before, and a later append makes it live again."""
        ...
