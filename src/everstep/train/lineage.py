"""What exists in a checkpoint folder: names, chain of bases, visibility, garbage. Pure: works on a listing, does no IO.

The promises, each a property test (``tests/train/test_lineage.py``):

* The visible checkpoints are always one chain: the newest attempt's own, then its base attempt's up to the base, and so
  on. What an attempt published past the point where its successor froze it does not exist. Order is (attempt, step),
  never time.
* The base of the newest attempt is never collected, not even by an older attempt that has not noticed the newer one.

The second promise needs a protocol between a *starter* (attempt n chooses its base) and a *collector* (attempt c < n):

    starter:    write claim n;  read marks, then manifests;  choose a base that is not condemned;  create record n
    collector:  write mark c on its victim;  read claims and records;  delete only if none is above c

Each writes before it reads. So either the collector sees the claim and deletes nothing, or its mark was there before
the starter read, and the starter chooses something else. A mark of c left on the base of a record n > c is void: n
chose it while the mark was not there, hence the collector that wrote it saw claim n.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_POSITION = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, order=True)
class Position:
    """A checkpoint's place: the attempt that wrote it and the number of steps done. Its text is ``attempt:step``."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}:{self.step}"

    @property
    def folder(self) -> str:
        """The checkpoint's folder below the root: ``000002/000000120``."""
        return f"{self.attempt:06d}/{self.step:09d}"

    @staticmethod
    def parse(text: str) -> Position:
        """Read ``attempt:step``; ValueError names the text otherwise."""
        match = _POSITION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected ATTEMPT:STEP, for example 2:120, got {text!r}")
        return Position(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Record:
    """What ``attempts/NNNNNN.json`` says: attempt ``attempt`` began from ``base`` (None: from nothing)."""

    attempt: int
    base: Position | None
    world_size: int

    def __post_init__(self) -> None:
        if self.attempt < 1 or (self.base is not None and self.base.attempt >= self.attempt):
            raise ValueError(f"attempt {self.attempt} cannot begin from {self.base}")


@dataclass(frozen=True)
class Wish:
    """The checkpoint that a new attempt is to begin from, instead of the newest.

    Attributes:
        base: which one.
        since: the first attempt that was told; a server tells every attempt until one says that it goes on. None: asked
            for by hand, where the attempt begins.
    """

    base: Position
    since: int | None = None

    @property
    def binding(self) -> bool:
        """True if nothing else will do: whoever asked by hand stands beside it."""
        return self.since is None

    def stands(self, listing: Listing) -> bool:
        """False once an attempt that was told has begun: it did what could be done, and what it saved counts."""
        return self.since is None or not any(number >= self.since for number in listing.records)


@dataclass(frozen=True)
class Listing:
    """A folder as somebody saw it.

    Attributes:
        records: readable attempt records by number.
        manifests: positions with a readable manifest.
        marks: victims condemned by a collector -> the collector's attempt.
        claims: attempts that announced that they choose a base.
    """

    records: Mapping[int, Record] = field(default_factory=dict)
    manifests: frozenset[Position] = frozenset()
    marks: Mapping[Position, int] = field(default_factory=dict)
    claims: frozenset[int] = frozenset()

    def newest(self) -> int | None:
        """Number of the newest attempt that began, None for an empty folder."""
        return max(self.records, default=None)

    def before(self, attempt: int) -> int | None:
        """The newest attempt before one that began or saved: whoever saved had begun, if its record is lost or not."""
        seen = (*self.records, *(position.attempt for position in self.manifests))
        return max((number for number in seen if number < attempt), default=None)

    def next_attempt(self) -> int:
        """The number a new attempt takes when no server numbers them."""
        seen = [*self.records, *self.claims, *(position.attempt for position in self.manifests)]
        return max(seen, default=0) + 1

    def fenced(self, attempt: int) -> bool:
        """True if a newer attempt began: nothing ``attempt`` publishes from now on is ever read."""
        return any(number > attempt for number in self.records)


def attempt_file(attempt: int) -> str:
    """Path of an attempt's record below the root."""
    return f"attempts/{attempt:06d}.json"


def claim_file(attempt: int) -> str:
    """Path of an attempt's claim below the root."""
    return f"attempts/{attempt:06d}.claim"


def shard_name(rank: int) -> str:
    """Name of a rank's shard in a checkpoint's folder, without its ending."""
    return f"shard-{rank:05d}"


def chain(records: Mapping[int, Record], head: int) -> list[tuple[int, int, int | None]]:
    """The segments a reader sees from ``head`` back to the beginning, newest first.

    Returns:
        (attempt, after, upto): steps s of ``attempt`` with after < s <= upto exist; upto None: no end.
        A missing record ends the walk: what lies behind it cannot be known.
    """
    segments: list[tuple[int, int, int | None]] = []
    attempt, upto = head, None
    while True:
        record = records.get(attempt)
        base = record.base if record is not None else None
        segments.append((attempt, base.step if base is not None else -1, upto))
        if base is None:
            return segments
        attempt, upto = base.attempt, base.step


def visible(listing: Listing, head: int | None = None) -> tuple[Position, ...]:
    """The checkpoints that exist, oldest first: one chain with growing (attempt, step) and growing step.

    Args:
        listing: the folder.
        head: the attempt to look from; None: the newest.
    """
    newest = listing.newest() if head is None else head
    if newest is None:
        return ()
    ends = {attempt: (after, upto) for attempt, after, upto in chain(listing.records, newest)}

    def exists(position: Position) -> bool:
        if position.attempt not in ends:
            return False
        after, upto = ends[position.attempt]
        return after < position.step and (upto is None or position.step <= upto)

    return tuple(sorted(position for position in listing.manifests if exists(position)))


def condemned(listing: Listing, position: Position) -> bool:
    """True if a collector may be deleting this checkpoint: nobody may choose it as a base."""
    collector = listing.marks.get(position)
    if collector is None:
        return False
    return not any(record.base == position and record.attempt > collector for record in listing.records.values())


def candidates(listing: Listing, head: int | None = None) -> tuple[Position, ...]:
    """The checkpoints a new attempt may begin from, best first."""
    return tuple(p for p in reversed(visible(listing, head)) if not condemned(listing, p))


def preferred(listing: Listing, wish: Wish | None, attempt: int) -> tuple[Position, ...]:
    """The candidates of a new attempt by its wish, best first: only what was asked for, if that is binding."""
    head = listing.before(attempt)
    offered = () if head is None else candidates(listing, head)
    if wish is None or not wish.stands(listing):
        return offered
    asked = tuple(p for p in offered if p == wish.base)
    return asked if wish.binding else (*asked, *(p for p in offered if p != wish.base))


def may_collect(listing: Listing, attempt: int) -> bool:
    """True if ``attempt`` began and nobody newer began or is choosing a base: only then may it delete."""
    newer = any(number > attempt for number in (*listing.records, *listing.claims))
    return attempt in listing.records and not newer


def garbage(listing: Listing, attempt: int, keep: int) -> tuple[Position, ...]:
    """What ``attempt`` should delete, oldest first: all but the ``keep`` newest visible checkpoints and its own base.

    Empty unless it may collect. Records are never garbage: the chain of bases is walked through them. Nor is anything
    before the attempt that began from nothing: it found no checkpoint there that could be read, or whose place in the
    chain was known. Somebody else may.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if not may_collect(listing, attempt):
        return ()
    kept = set(candidates(listing, attempt)[:keep])
    base = listing.records[attempt].base
    if base is not None:
        kept.add(base)
    first = chain(listing.records, attempt)[-1][0]
    return tuple(sorted(p for p in listing.manifests if p not in kept and first <= p.attempt <= attempt))
