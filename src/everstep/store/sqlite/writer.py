"""One thread that writes for everybody: whatever is waiting goes into one transaction and costs one fsync."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstep.model.errors import EverstepError, StoreClosed, StoreError, StoreFull
from everstep.store.sqlite.faults import translated
from everstep.store.sqlite.transaction import Transaction

T = TypeVar("T")

# Bounds how long one transaction keeps its callers waiting.
_MAX_GROUP = 1_000


@dataclass(slots=True, eq=False)
class _Work:
    """One caller's wish, and in the end its outcome."""

    run: Callable[[Transaction], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = field(default=None)

    def settle(self) -> None:
        # A caller that was cancelled meanwhile hears nothing; what it asked for was done all the same.
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class GroupWriter:
    """Runs work in shared transactions, in the order in which it was given.

    Each caller gets its own result or its own refusal. A fault rolls the whole group back. Where one member may be the
    cause (it is too large for the space left), they are then tried one by one.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, on_growth: Callable[[], None]) -> None:
        """Args: connection: owned from now on; on_growth: called in the writer's thread after lines were committed."""
        self._connection = connection
        self._path = path
        self._on_growth = on_growth
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="everstep-journal", daemon=True)
        self._thread.start()

    async def do(self, run: Callable[[Transaction], T]) -> T:
        """What ``run`` gives inside a transaction, once that is durable; or what it raises."""
        loop = asyncio.get_running_loop()
        work = _Work(run, loop, loop.create_future())
        # Under the lock nothing is queued behind the end mark, where nobody would ever look.
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self._path}: the store is closed")
            self._queue.put(work)
        result: T = await work.future
        return result

    def close(self) -> None:
        """Finishes what is queued and ends the thread; idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                if group:
                    self._commit(group)
        finally:
            self._connection.close()

    def _next_group(self) -> list[_Work] | None:
        """All that waits now, at least one; None after the end mark."""
        first = self._queue.get()
        if first is None:
            return None
        group = [first]
        with contextlib.suppress(queue.Empty):
            while len(group) < _MAX_GROUP:
                work = self._queue.get_nowait()
                if work is None:
                    self._queue.put(None)
                    break
                group.append(work)
        return group

    def _commit(self, group: list[_Work]) -> None:
        grew, fault = self._attempt(group)
        if fault is not None and len(group) > 1 and _may_be_one_members(fault):
            for work in group:
                grew_alone, fault = self._attempt([work])
                grew = grew or grew_alone
                work.error = fault or work.error
        elif fault is not None:
            for work in group:
                work.error = fault
        if grew:
            self._on_growth()
        _deliver(group)

    def _attempt(self, group: list[_Work]) -> tuple[bool, Exception | None]:
        """Whether lines were committed, and the fault for which nothing of the group was."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(self._connection)
            for work in group:
                work.error = None
                try:
                    work.result = work.run(transaction)
                except EverstepError as refusal:
                    work.error = refusal
            transaction.flush()
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            return False, translated(error, self._path) if isinstance(error, sqlite3.Error) else error
        return transaction.grew, None

    def _roll_back(self) -> None:
        # SQLite may have rolled back by itself; a second failure adds nothing to the first.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _may_be_one_members(fault: Exception) -> bool:
    # A locked file or a failing disk is everybody's fault: asking a thousand times would only make all wait longer.
    return isinstance(fault, StoreFull) or not isinstance(fault, StoreError)


def _deliver(group: list[_Work]) -> None:
    """Settles every future in its own event loop, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Work]] = {}
    for work in group:
        by_loop.setdefault(work.loop, []).append(work)
    for loop, works in by_loop.items():
        # A loop that was closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle_all, works)


def _settle_all(works: list[_Work]) -> None:
    for work in works:
        work.settle()
