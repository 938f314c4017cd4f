"""The journal in memory passes the suites, and needs nothing but the standard library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from everstep.store.memory import MemoryStore
from everstep.testing.store_suite import A, ArchivingStoreSuite, StoreSuite, lines


class TestMemoryStore(StoreSuite, ArchivingStoreSuite):
    @pytest.fixture
    async def store(self) -> AsyncIterator[MemoryStore]:
        store = MemoryStore()
        yield store
        await store.close()


def test_it_needs_no_event_loop_to_append_and_read() -> None:
    """A simulator steps coroutines by hand: none of these may wait for anything."""
    store = MemoryStore()
    for coroutine, expected in ((store.append([lines(A, 1)], None), 1), (store.append([], None), 1)):
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        assert done.value.value == expected


def test_leases_run_out_by_the_given_clock() -> None:
    now = [100.0]
    store = MemoryStore(wall=lambda: now[0])
    with pytest.raises(StopIteration) as first:
        store.lease("control", "one", 10).send(None)
    now[0] = 110.0
    with pytest.raises(StopIteration) as second:
        store.lease("control", "two", 10).send(None)
    assert second.value.value.number == first.value.value.number + 1


def test_importing_it_does_not_import_sqlalchemy() -> None:
    heavy = "{m.split('.')[0] for m in sys.modules} & {'sqlalchemy', 'sqlite3'}"
    code = f"import sys, everstep.store.memory; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
