"""SQLite and memory give the same answers on random walks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from everstep.store.memory import MemoryStore
from everstep.store.sqlite import SqliteStore
from everstep.testing.store_machine import store_machine


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="everstep-machine-"))
    yield path
    shutil.rmtree(path)


def test_sqlite_answers_like_memory(folder: Path) -> None:
    opened = 0

    def open_store(wall: Callable[[], float]) -> SqliteStore:
        nonlocal opened
        opened += 1
        return SqliteStore(folder / f"{opened}.db", wall=wall)

    machine = store_machine(open_store)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings().max_examples // 2, stateful_step_count=20)
    )


def test_the_machine_finds_a_store_that_differs() -> None:
    class Forgetful(MemoryStore):
        async def archive(self, stream, fence=None):  # type: ignore[no-untyped-def]
            pass

    # Finding it is enough: making the walk short takes minutes and helps nobody.
    quick = settings(max_examples=300, database=None, print_blob=False, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(store_machine(lambda wall: Forgetful(wall=wall)), settings=quick)
