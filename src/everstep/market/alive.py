"""Logs of a cluster of preemptible machines: who came and went, or only how many there were. No header.

Events: ``milliseconds,add|remove,name``. Counts: ``milliseconds,alive`` or ``date, time, alive``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.brain.forecast.records import Lifetime, lasted
from everstep.market.rows import Row, bare_rows, header, instant

_MOST = 1_000_000
"""Machines: each becomes a record."""


@dataclass(frozen=True, slots=True)
class Came:
    """A machine came or went.

    Attributes:
        at_s: seconds; UTC where the log has a date, else since its start.
        name: which one.
        added: it came.
        line: line of the log.
    """

    at_s: float
    name: str
    added: bool
    line: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many were there.

    Attributes:
        at_s: seconds; UTC where ``dated``, else since the start of the log.
        alive: how many.
        dated: whether ``at_s`` is an instant.
    """

    at_s: float
    alive: int
    dated: bool


def read_events(path: Path) -> tuple[Came, ...]:
    """Events in the order of the log.

    Raises:
        Malformed: a row is malformed, time runs backwards, or a machine goes that is not there or comes twice.
    """
    found: list[Came] = []
    there: set[str] = set()
    for row in bare_rows(path, ("milliseconds", "what", "name")):
        at_s, what, name = row.number("milliseconds") / 1000.0, row.word("what"), row.word("name")
        if what not in ("add", "remove"):
            raise row.fault("what", f"expected add or remove, found {what!r}")
        if found and at_s < found[-1].at_s:
            raise row.fault("milliseconds", "time runs backwards")
        if (what == "add") is (name in there):
            raise row.fault("name", f"{name} is there already" if what == "add" else f"{name} is not there")
        there.symmetric_difference_update({name})
        found.append(Came(at_s, name, what == "add", row.line))
    return tuple(found)


def lives_of_events(events: Iterable[Came]) -> Iterator[Lifetime]:
    """Who went lived until then; who is there at the last event lives on: right-censored."""
    born: dict[str, float] = {}
    end_s = 0.0
    for event in events:
        end_s = event.at_s
        if event.added:
            born[event.name] = event.at_s
        else:
            yield lasted((event.at_s - born.pop(event.name)) / 3600.0, True)
    for start_s in born.values():
        yield lasted((end_s - start_s) / 3600.0, False)


def read_counts(path: Path) -> tuple[Count, ...]:
    """Counts by time; a log that was written by several hands may have them out of order.

    Raises:
        Malformed: a row is malformed.
    """
    dated = len(header(path)) == 3
    names = ("date", "time", "alive") if dated else ("milliseconds", "alive")
    found = [
        Count(_when(row) if dated else row.number("milliseconds") / 1000.0, _alive(row), dated)
        for row in bare_rows(path, names)
    ]
    return tuple(sorted(found, key=lambda count: count.at_s))


def _alive(row: Row) -> int:
    row.word("alive")
    alive = row.count("alive")
    if alive > _MOST:
        raise row.fault("alive", f"expected machines of one cluster, {_MOST} at most, found {row.text('alive')!r}")
    return alive


def _when(row: Row) -> float:
    text = f"{row.word('date')} {row.word('time')}"
    try:
        return instant(text)
    except ValueError:
        raise row.fault("date", f"expected a date and a time such as 2030-01-31, 18:00:00, found {text!r}") from None


def lives_of_counts(counts: Iterable[Count]) -> Iterator[Lifetime]:
    """Lives that fit the counts: of those there, the oldest goes first.

    The machines have no names, so which of them went is not known: the number of ends and the hours lived are right,
    the single lives are not.
    """
    born: deque[float] = deque()
    end_s, dated = 0.0, False
    for count in counts:
        end_s, dated = count.at_s, count.dated
        while len(born) < count.alive:
            born.append(end_s)
        while len(born) > count.alive:
            start_s = born.popleft()
            yield lasted((end_s - start_s) / 3600.0, True, start_s=start_s if dated else None)
    for start_s in born:
        yield lasted((end_s - start_s) / 3600.0, False, start_s=start_s if dated else None)
