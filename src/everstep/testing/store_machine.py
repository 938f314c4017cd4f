"""A random walk over a store, side by side with the reference in memory: both must answer alike at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everstep.model.errors import EverstepError
from everstep.model.ids import StreamId
from everstep.ports import Append, Fence, NewRecord
from everstep.store.archiving import JournalStore
from everstep.store.memory import MemoryStore

Wall = Callable[[], float]

_STREAMS = st.sampled_from(["job/a", "job/b", "deployment"]).map(StreamId)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_RECORDS = st.builds(
    NewRecord,
    at=st.floats(0, 4e9),
    kind=st.sampled_from(["JobSubmitted", "AttemptStarted"]),
    schema=st.integers(1, 3),
    body=st.dictionaries(st.text(max_size=3), _JSON, max_size=2),
)
_APPENDS = st.builds(
    Append,
    stream=_STREAMS,
    records=st.lists(_RECORDS, max_size=3).map(tuple),
    expected_version=st.none() | st.integers(0, 4),
)


class StoreMachine(RuleBasedStateMachine):
    """The walk; ``store_machine`` tells it over which store."""

    open_store: ClassVar[Callable[[Wall], JournalStore]]

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.runner = asyncio.Runner()
        self.reference = MemoryStore(wall=lambda: self.now)
        self.store = type(self).open_store(lambda: self.now)
        self.fences: list[Fence] = []

    def alike(self, call: Callable[[JournalStore], Awaitable[Any]]) -> Any:
        """Makes one call to both and compares the answers, refusals with their text included."""
        expected, found = (self.runner.run(_outcome(call, store)) for store in (self.reference, self.store))
        assert found == expected
        return found

    @rule(batch=st.lists(_APPENDS, max_size=3), data=st.data())
    def append(self, batch: list[Append], data: st.DataObject) -> None:
        """One batch, perhaps under a fence that is stale by now."""
        fence = data.draw(st.none() | st.sampled_from(self.fences)) if self.fences else None
        self.alike(lambda store: store.append(batch, fence))

    @rule(batches=st.lists(st.lists(_APPENDS, min_size=1, max_size=2), min_size=2, max_size=4))
    def append_at_once(self, batches: list[list[Append]]) -> None:
        """Several batches in one group; they take effect in the order they were given."""

        async def together(store: JournalStore) -> list[Any]:
            return await asyncio.gather(*(_outcome(_append(batch), store) for batch in batches))

        self.alike(together)

    @rule(holder=st.sampled_from(["one", "two"]), ttl_s=st.sampled_from([0.0, 10.0]))
    def lease(self, holder: str, ttl_s: float) -> None:
        """Takes, renews or gives back a lease."""
        granted = self.alike(lambda store: store.lease("control", holder, ttl_s))
        if isinstance(granted, Fence):
            self.fences.append(granted)

    @rule(seconds=st.sampled_from([5.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        """Moves the clock by which leases run out."""
        self.now += seconds

    @rule(stream=_STREAMS)
    def archive(self, stream: StreamId) -> None:
        """Puts a stream aside, there or not."""
        self.alike(lambda store: store.archive(stream))

    @rule(stream=_STREAMS, through=st.integers(-1, 6))
    def trim(self, stream: StreamId, through: int) -> None:
        """Forgets the beginning of a stream, there or not."""
        self.alike(lambda store: store.trim(stream, through))

    @rule(stream=st.none() | _STREAMS, after=st.integers(0, 5), limit=st.integers(0, 5))
    def read(self, stream: StreamId | None, after: int, limit: int) -> None:
        """Reads a page."""
        self.alike(lambda store: store.read(stream=stream, after=after, limit=limit))

    @rule(seq=st.integers(0, 9), body=st.binary(max_size=9))
    def snapshot(self, seq: int, body: bytes) -> None:
        """Saves and loads."""
        self.alike(lambda store: store.save_snapshot("jobs", seq=seq, body=body))
        self.alike(lambda store: store.load_snapshot("jobs"))

    @invariant()
    def same_journal(self) -> None:
        """After every step all of the journal is alike."""
        self.alike(lambda store: store.read())
        self.alike(lambda store: store.live_streams())

    def teardown(self) -> None:
        """Closes the store."""
        self.runner.run(self.store.close())
        self.runner.close()


def store_machine(open_store: Callable[[Wall], JournalStore]) -> type[RuleBasedStateMachine]:
    """A hypothesis state machine for a store.

    Args:
        open_store: opens a new, empty store whose leases run out by the clock it is given. What it leaves behind is its
            own to remove.
    """
    return type("StoreMachine", (StoreMachine,), {"open_store": staticmethod(open_store)})


def _append(batch: list[Append]) -> Callable[[JournalStore], Awaitable[int]]:
    return lambda store: store.append(batch, None)


async def _outcome(call: Callable[[JournalStore], Awaitable[Any]], store: JournalStore) -> Any:
    try:
        return await call(store)
    except EverstepError as refusal:
        return type(refusal), str(refusal)
