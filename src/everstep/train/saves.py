"""Saving, by all ranks together: copy at a boundary, write in the background, publish when all are through.

A save goes through two stages. *Writing*: each rank writes its shard. *Publishing*: one rank per folder writes the
manifest and collects what is old. Ranks begin a save at the same boundary and go from stage to stage at the same later
boundaries, when the votes say that nobody is busy. Any failure of any rank leaves no trace but a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from everstep.model import handshake
from everstep.train.background import done, in_background
from everstep.train.folder import Manifest, Shard
from everstep.train.lineage import Position
from everstep.train.shard import Content, write_content, write_shard
from everstep.train.snapshot import Snapshot, Snapshots
from everstep.train.surroundings import Surroundings


class Fenced(Exception):
    """A newer attempt began: nobody would ever read what this one saves."""


@dataclass(frozen=True)
class _Published:
    """What one rank knows after publishing.

    Attributes:
        error: what went wrong.
        fenced: a newer attempt began.
        mirror_idle: its part of the mirror can take another checkpoint.
        at: monotonic seconds of this rank when it was through; perhaps long before anybody asks.
    """

    error: str = ""
    fenced: bool = False
    mirror_idle: bool = True
    at: float = 0.0


@dataclass(frozen=True)
class _Written:
    """A shard, or what went wrong. ``published``: where there is one rank alone, which has nobody to wait for."""

    shard: Shard | None
    error: str = ""
    published: _Published | None = None


@dataclass
class _Pending:
    """A save under way. Times are monotonic seconds."""

    position: Position
    began: float
    stall_s: float
    waited_s: float
    work: Future[Any]
    manifest: Manifest | None = None
    ended: float | None = None


class Saves:
    """The saves of one attempt, one at a time. All ranks must call every method but `busy` and `close`, in order.

    Args:
        objects: what is attached.
        around: what the run works with.
        name: of a tensor, for warnings.

    Attributes:
        step: of the newest checkpoint, None if there is none.
        missing: what to say of a stop without a save.
    """

    missing = "but the last save failed; the older checkpoint stays"

    def __init__(
        self, objects: Mapping[str, Any], around: Surroundings, name: Callable[[torch.Tensor], str], step: int | None
    ) -> None:
        self._around = around
        self._name = name
        self._snapshots = Snapshots(objects, at_once=around.copy_at_once)
        self._pending: _Pending | None = None
        self._unmirrored: Manifest | None = None
        self.step = step

    @property
    def pending(self) -> bool:
        """True from the boundary where a save began to the one where it is over; the same on all ranks."""
        return self._pending is not None

    def busy(self) -> bool:
        """True while this rank's part of the present stage is not through: its vote."""
        return self._pending is not None and not self._pending.work.done()

    # --- in the background ----------------------------------------------------------------------------------------

    def begin(self, step: int, state: Callable[[], dict[str, Any]], *, began: float | None = None) -> None:
        """Begin a save. The state is copied when this returns, but for what `Snapshots` copies later.

        Args:
            step: steps done.
            state: what is saved.
            began: monotonic seconds when training stopped for this, if that was before.
        """
        began = time.monotonic() if began is None else began
        position = Position(self._around.attempt, step)
        waited_s = self._snapshots.waited_s
        try:
            snapshot = self._snapshots.take(state())
            work = in_background("save", self._write_snapshot, position, snapshot)
        except Exception as error:
            # An object that cannot be pickled, no memory for the copy: neither may end the training.
            work = done(_Written(None, _told(error)))
        self._pending = _Pending(position, began, time.monotonic() - began, waited_s, work)

    def advance(self) -> None:
        """Go on to the next stage. To be called when nobody is busy.

        Raises:
            Fenced: a newer attempt began.
        """
        pending, began = self._pending, time.monotonic()
        assert pending is not None
        results = self._around.gang.gather(pending.work.result())
        if pending.manifest is None:
            pending.manifest, problem = self._manifest(pending.position, results)
            if pending.manifest is None:
                self._conclude(pending, problem)
                return
            if results[0].published is None:
                pending.work = in_background("save", self._publish, pending.manifest)
                pending.stall_s += time.monotonic() - began
                return
            results = [results[0].published]
        pending.stall_s += time.monotonic() - began
        self._settle(pending, results)

    def complete(self) -> None:
        """Wait until no save is under way.

        Raises:
            Fenced: a newer attempt began.
        """
        while self._pending is not None:
            began = time.monotonic()
            self._pending.work.exception()
            self._pending.stall_s += time.monotonic() - began
            self.advance()

    # --- while training stands still --------------------------------------------------------------------------------

    def now(self, step: int, state: Callable[[], dict[str, Any]], *, began: float | None = None) -> bool:
        """Save while training stands still, straight from its memory; first what is under way is completed.

        Args: as of `begin`.

        Returns:
            True if a checkpoint of this step is published.

        Raises:
            Fenced: a newer attempt began.
        """
        self.complete()
        if self.step == step:
            return True
        began = time.monotonic() if began is None else began
        position = Position(self._around.attempt, step)
        pending = _Pending(position, began, 0.0, self._snapshots.waited_s, done(None))
        results = self._around.gang.gather(self._write(position, lambda: self._write_live(position, state())))
        pending.manifest, problem = self._manifest(position, results)
        if pending.manifest is None:
            pending.stall_s = time.monotonic() - began
            self._conclude(pending, problem)
            return False
        published = self._around.gang.gather(self._publish(pending.manifest))
        pending.stall_s = time.monotonic() - began
        self._settle(pending, published)
        return self.step == step

    def close(self) -> None:
        """Stop. A single process completes what is under way; of several, which may not all come here, none waits."""
        try:
            if self._around.gang.group is None:
                self.complete()
        except Fenced:
            pass
        finally:
            pending, self._pending = self._pending, None
            if pending is not None:
                pending.work.exception()
            self._snapshots.close()

    def mirror_all(self, patience_s: float) -> None:
        """Wait for the mirror to have the newest checkpoint, if it has it within ``patience_s``."""
        mirror = self._around.mirror
        if mirror is None:
            return
        deadline = time.monotonic() + patience_s
        mirror.wait(deadline)
        if self._unmirrored is not None and all(self._around.gang.gather(mirror.idle)):
            mirror.take(self._unmirrored)
            self._unmirrored = None
            mirror.wait(deadline)
        if self._unmirrored is not None or not mirror.idle:
            self._around.reporter.warn(
                f"{mirror.where} does not have the newest checkpoint yet; it stays in the folder"
            )

    # --- stages -----------------------------------------------------------------------------------------------------

    def _write_snapshot(self, position: Position, snapshot: Snapshot) -> _Written:
        def write() -> Shard:
            spoilt = snapshot.wait()
            if spoilt is not None:
                self._snapshots.at_once = True
                raise _WrittenMeanwhile(
                    f"{self._name(spoilt)} was written to outside of an optimizer's step while it was being copied; "
                    "from now on everything is copied at once"
                )
            return self._write_copy(position, snapshot.content)

        written = self._write(position, write)
        if written.shard is None or self._around.gang.world_size > 1:
            return written
        published = self._publish(self._make_manifest(position, (written.shard,)))
        return _Written(written.shard, published=published)

    def _write(self, position: Position, write: Callable[[], Shard]) -> _Written:
        around = self._around
        try:
            if around.sync_beside is not None:
                around.sync_beside()
            if around.folder.read_manifest(position) is None:
                return _Written(write())
            # This attempt ran before and came by here: what is published is never written again.
            shard = around.folder.described_shard(position, around.gang.rank)
            return _Written(shard, "" if shard is not None else "published before, but this shard is gone")
        except Exception as error:
            # A full disk, an object that cannot be pickled, a folder that went away: none may end the training.
            return _Written(None, _told(error))

    def _write_copy(self, position: Position, content: Content) -> Shard:
        gang = self._around.gang
        rank, world = gang.rank, gang.world_size
        return write_content(self._around.folder, position, content, rank=rank, world_size=world, where=gang.where)

    def _write_live(self, position: Position, state: dict[str, Any]) -> Shard:
        gang = self._around.gang
        rank, world = gang.rank, gang.world_size
        return write_shard(self._around.folder, position, state, rank=rank, world_size=world, where=gang.where)

    def _make_manifest(self, position: Position, shards: tuple[Shard, ...]) -> Manifest:
        return Manifest(position, self._around.gang.world_size, shards, torch=torch.__version__)

    def _manifest(self, position: Position, results: list[_Written]) -> tuple[Manifest | None, str]:
        failures = [f"rank {rank}: {result.error}" for rank, result in enumerate(results) if result.error]
        if failures:
            return None, "; ".join(failures)
        return self._make_manifest(position, tuple(result.shard for result in results if result.shard)), ""

    def _publish(self, manifest: Manifest) -> _Published:
        """Publish in the folder that this rank keeps, if it keeps one, and collect there."""
        around = self._around
        idle = around.mirror is None or around.mirror.idle
        if not around.keeps_folder:
            return _Published(mirror_idle=idle, at=time.monotonic())
        try:
            if around.folder.fenced(around.attempt):
                return _Published(fenced=True)
            if around.folder.read_manifest(manifest.position) is None:
                around.folder.publish(manifest)
        except Exception as error:
            return _Published(_told(error))
        try:
            around.folder.collect(around.attempt, around.keep)
        except OSError as error:
            around.reporter.warn(f"old checkpoints could not be deleted: {error}")
        return _Published(mirror_idle=idle, at=time.monotonic())

    # --- the end of a save --------------------------------------------------------------------------------------------

    def _settle(self, pending: _Pending, results: list[_Published]) -> None:
        """All ranks have tried to publish."""
        assert pending.manifest is not None
        if any(result.fenced for result in results):
            self._pending = None
            raise Fenced
        failures = [f"rank {rank}: {result.error}" for rank, result in enumerate(results) if result.error]
        pending.ended = results[self._around.gang.rank].at or None
        self._conclude(pending, "; ".join(failures))
        if failures:
            return
        self.step = pending.position.step
        self._tell(pending, pending.manifest)
        if self._around.mirror is not None:
            # All ranks or none: a checkpoint of which the mirror gets a part is no use there.
            idle = all(result.mirror_idle for result in results)
            self._unmirrored = None if idle else pending.manifest
            if idle:
                self._around.mirror.take(pending.manifest)

    def _conclude(self, pending: _Pending, problem: str) -> None:
        self._pending = None
        around = self._around
        pending.ended = time.monotonic() if pending.ended is None else pending.ended
        stall_s = pending.stall_s + self._snapshots.waited_s - pending.waited_s
        pending.stall_s = stall_s
        around.pace.saved(pending.began + stall_s, stall_s, save_s=pending.ended - pending.began)
        around.reporter.stall_s += stall_s
        if not problem:
            return
        around.folder.discard(pending.position)
        if _told(_WrittenMeanwhile()) in problem:
            around.pace.again()
        if around.gang.rank == 0:
            step = pending.position.step
            around.reporter.warn(f"saving at step {step} failed ({problem}); training goes on, older checkpoints stay")

    def _tell(self, pending: _Pending, manifest: Manifest) -> None:
        around = self._around
        if around.gang.rank == 0:
            around.reporter.fact(
                handshake.FACT_SAVED,
                step=manifest.position.step,
                bytes=manifest.bytes,
                save_s=(pending.ended or time.monotonic()) - pending.began,
                stall_s=pending.stall_s,
                durable=around.one_folder and around.mirror is None,
            )


class _WrittenMeanwhile(Exception):
    """The copy saw a write and must not be published."""


def _told(error: Exception) -> str:
    return f"{type(error).__name__.lstrip('_')}: {error}"
