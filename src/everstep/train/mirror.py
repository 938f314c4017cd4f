"""A second home for published checkpoints: an object store, filled in the background, read where the folder has less.

The store holds the files of the folder under the same names. A shard's description follows the shard, the manifest
follows everything: what is listed there is whole. Rank 0 puts the manifest there when it has seen the descriptions of
all shards; from then on the checkpoint is durable (``saved`` is told again, with ``durable``). If saves come faster
than the store takes them, checkpoints are left out, never half there. Who chooses a base from the mirror, and who
collects there, keep to the protocol of `lineage`, as in the folder.
"""

from __future__ import annotations

import functools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from everstep.train.background import Background, done
from everstep.train.folder import MANIFEST, Folder, Manifest, Shard
from everstep.train.lineage import (
    Listing,
    Position,
    Record,
    attempt_file,
    claim_file,
    garbage,
    may_collect,
    shard_name,
)
from everstep.train.stores import Absent, Refusal, Store, Unavailable

_RECORD = re.compile(r"attempts/(\d{6,})\.(json|claim)")
_STEP = re.compile(r"(\d{6,})/(\d{9,})/(.+)")
_MARK = re.compile(r"collect-(\d{6,})")
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_OPENING_PATIENCE_S = 60.0
_PEERS_PATIENCE_S = 900.0
_COLLECT_PATIENCE_S = 5.0


class Lost(Exception):
    """The mirror cannot be read, and it may hold what is needed."""


@dataclass(frozen=True)
class Share:
    """Which part of a checkpoint this process mirrors: the shard of ``rank``; rank 0 the manifest, too."""

    attempt: int
    rank: int
    keep: int


class Mirror:
    """One rank's side of the mirror. Nothing here stops training; `take` returns at once.

    Args:
        store: where.
        folder: what is mirrored.
        warn: told about everything that does not work.
    """

    def __init__(self, store: Store, folder: Folder, warn: Callable[[str], None]) -> None:
        self._store = store
        self._folder = folder
        self._warn = warn
        self._share = Share(0, 0, 1)
        self._durable: Callable[[Manifest], object] = bool
        self._recorded = 0
        self._background = Background("mirror")
        self._work: Future[None] = done(None)
        self._closed = threading.Event()

    @property
    def where(self) -> str:
        """Its address, for people."""
        return self._store.where

    # --- filling ----------------------------------------------------------------------------------------------------

    def begin(self, share: Share, durable: Callable[[Manifest], object]) -> None:
        """Mirror for this attempt from now on; ``durable`` is called with what all ranks have mirrored, on rank 0."""
        self._share = share
        self._durable = durable

    @property
    def idle(self) -> bool:
        """True if it can take another checkpoint."""
        return self._work.done()

    def take(self, manifest: Manifest) -> None:
        """Mirror a published checkpoint. Only when `idle` on all ranks."""
        self._work = self._background.submit(self._mirror, manifest)

    def wait(self, deadline: float) -> None:
        """Until it is idle, or monotonic seconds."""
        while not self._work.done() and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Give up what is under way, at its next request."""
        self._closed.set()
        self._background.shutdown()
        self._store.close()

    def _mirror(self, manifest: Manifest) -> None:
        try:
            self._send(manifest.position, manifest.shards[self._share.rank])
            if self._share.rank == 0:
                self._complete(manifest)
        except (Unavailable, Refusal, OSError) as error:
            self._warn(f"checkpoint {manifest.position} is not in {self.where}: {error}")
            return
        if self._share.rank == 0:
            try:
                self._patiently(self._collect, _COLLECT_PATIENCE_S)
            except (Unavailable, Refusal, ValueError) as error:
                # The next checkpoint comes with another try.
                self._warn(f"old checkpoints in {self.where} could not be deleted: {error}")

    def _send(self, position: Position, shard: Shard) -> None:
        path = self._folder.shard_path(position, shard.rank)
        description = _description(shard)
        name = f"{position.folder}/{shard_name(shard.rank)}"
        # Opened once: it may be collected in the folder before it is through.
        with path.open("rb", buffering=0) as file:
            if self._described(name) != description:
                self._patiently(lambda: self._store.upload(f"{name}.pt", file, shard.bytes))
                self._patiently(lambda: self._store.put(f"{name}.json", description))

    def _complete(self, manifest: Manifest) -> None:
        position = manifest.position
        waiting = set(manifest.shards)
        deadline = time.monotonic() + _PEERS_PATIENCE_S
        while waiting:
            waiting = {
                s for s in waiting if self._described(f"{position.folder}/{shard_name(s.rank)}") != _description(s)
            }
            if waiting and (time.monotonic() > deadline or self._closed.wait(_PAUSE_S)):
                ranks = ", ".join(str(shard.rank) for shard in sorted(waiting, key=lambda shard: shard.rank))
                raise Refusal(f"the shards of ranks {ranks} did not come")
        if self._recorded != position.attempt:
            # As in the folder: whoever has the same number and another base must not publish.
            record = (self._folder.root / attempt_file(position.attempt)).read_bytes()
            self._patiently(lambda: self._store.create(attempt_file(position.attempt), record))
            self._recorded = position.attempt
        content = self._folder.manifest_bytes(manifest)
        self._patiently(lambda: self._store.put(f"{position.folder}/{MANIFEST}", content))
        self._durable(manifest)

    def _described(self, name: str) -> bytes:
        try:
            content: bytes = self._patiently(lambda: self._store.get(f"{name}.json"))
            return content
        except Absent:
            return b""

    def _collect(self) -> None:
        names = self._store.list("")
        listing = self._listing(names)
        for victim in garbage(listing, self._share.attempt, self._share.keep):
            mark = f"{victim.folder}/collect-{self._share.attempt:06d}"
            self._store.put(mark, b"")
            if not may_collect(self._listing(self._store.list("attempts/")), self._share.attempt):
                self._store.delete(mark)
                return
            self._store.delete(f"{victim.folder}/{MANIFEST}")
            inside = (name for name in names if name.startswith(f"{victim.folder}/"))
            self._store.delete(*(name for name in inside if not name.endswith(MANIFEST)))
            self._store.delete(mark)

    def _patiently(self, ask: Callable[[], Any], patience_s: float = float("inf")) -> Any:
        """Ask until there is an answer; pauses grow, with jitter, until `close`."""
        pause_s, deadline = _PAUSE_S, time.monotonic() + patience_s
        while True:
            try:
                return ask()
            except Unavailable:
                if time.monotonic() + pause_s > deadline or self._closed.wait(pause_s * random.uniform(0.5, 1.0)):
                    raise
                pause_s = min(2.0 * pause_s, _LONGEST_PAUSE_S)

    # --- restoring --------------------------------------------------------------------------------------------------

    def listing(self, claim: int | None = None) -> Listing:
        """What is there.

        Args:
            claim: announce first that this attempt chooses a base; None: only look.

        Raises:
            Lost: it cannot be read.
        """

        def look() -> Listing:
            if claim is not None:
                self._store.put(claim_file(claim), json.dumps({"attempt": claim}).encode())
            return self._listing(self._store.list(""))

        try:
            found: Listing = self._patiently(look, _OPENING_PATIENCE_S)
        except (Unavailable, Refusal) as error:
            raise Lost(f"{self.where} cannot be read: {error}") from error
        return found

    def records(self, listing: Listing, known: Iterable[int]) -> dict[int, bytes]:
        """Contents of the records of a listing that are not known yet, by attempt."""
        found: dict[int, bytes] = {}
        for number in sorted(set(listing.records) - set(known)):
            found[number] = self._patiently(
                functools.partial(self._store.get, attempt_file(number)), _OPENING_PATIENCE_S
            )
        return found

    def fetch(self, position: Position, rank: int) -> str:
        """Bring a rank's shard into the folder: "" or what went wrong."""
        name = f"{position.folder}/{shard_name(rank)}"
        try:
            shard = Shard(**_numbers(json.loads(self._patiently(lambda: self._store.get(f"{name}.json")))))
            self._folder.write_shard(
                position,
                rank,
                lambda file: self._patiently(lambda: self._store.download(f"{name}.pt", file, shard.bytes)),
            )
        except (Unavailable, Refusal, OSError, ValueError, TypeError) as error:
            return f"{self.where}/{name}: {error}"
        return ""

    def manifest(self, position: Position) -> bytes:
        """The manifest's content. Raises `Unavailable` or `Refusal`."""
        content: bytes = self._patiently(lambda: self._store.get(f"{position.folder}/{MANIFEST}"), _OPENING_PATIENCE_S)
        return content

    def _listing(self, names: Iterable[str]) -> Listing:
        records: dict[int, Record] = {}
        claims: set[int] = set()
        manifests: set[Position] = set()
        marks: dict[Position, int] = {}
        for name in names:
            if match := _RECORD.fullmatch(name):
                if match[2] == "claim":
                    claims.add(int(match[1]))
                else:
                    records[int(match[1])] = self._record(int(match[1]))
            elif match := _STEP.fullmatch(name):
                position = Position(int(match[1]), int(match[2]))
                if match[3] == MANIFEST:
                    manifests.add(position)
                elif mark := _MARK.fullmatch(match[3]):
                    marks[position] = max(int(mark[1]), marks.get(position, 0))
        return Listing(records, frozenset(manifests), marks, frozenset(claims))

    def _record(self, attempt: int) -> Record:
        raw = json.loads(self._store.get(attempt_file(attempt)))
        base = raw["base"]
        position = None if base is None else Position(int(base["attempt"]), int(base["step"]))
        return Record(attempt, position, int(raw["world_size"]))


def _description(shard: Shard) -> bytes:
    return json.dumps({"rank": shard.rank, "sha256": shard.sha256, "bytes": shard.bytes, "where": shard.where}).encode()


def _numbers(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rank": int(raw["rank"]),
        "sha256": str(raw["sha256"]),
        "bytes": int(raw["bytes"]),
        "where": str(raw["where"]),
    }
