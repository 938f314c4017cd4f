"""One attempt's saves: written, published and collected by the rules of the checkpoint folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from everstep.model import handshake
from everstep.train.folder import Folder, Manifest, Shard
from everstep.train.gang import Gang
from everstep.train.lineage import Position
from everstep.train.pace import Pace
from everstep.train.reports import Reporter
from everstep.train.script.refusal import refuse
from everstep.train.shard import write_shard


@dataclass(frozen=True)
class Settings:
    """Where an attempt saves, and how much stays.

    Attributes:
        attempt: its number.
        keep: how many of the newest checkpoints stay.
        one_folder: all ranks see the same folder.
    """

    attempt: int
    keep: int
    one_folder: bool


class Saves:
    """Writes the saves of one attempt; every failure leaves the older ones and says so."""

    def __init__(self, folder: Folder, reporter: Reporter, pace: Pace, settings: Settings) -> None:
        self._folder = folder
        self._reporter = reporter
        self._pace = pace
        self._settings = settings

    def save(self, gang: Gang, step: int, state: Any, began: float) -> bool:
        """Save at this step, all ranks together. False, with a warning, if it failed anywhere.

        Args:
            gang: all ranks.
            step: steps done.
            state: of this rank; None with a text in ``error`` of others makes nobody publish.
            began: monotonic seconds when the training stopped for this save.
        """
        position = Position(self._settings.attempt, step)
        results = gang.gather(self._write(gang, position, state))
        outcome = "; ".join(f"rank {rank}: {error}" for rank, (_, error) in enumerate(results) if error)
        manifest = None
        if not outcome:
            manifest = Manifest(position, gang.world_size, tuple(shard for shard, _ in results))
            outcome = self._publish(gang, manifest)
        if outcome:
            self._folder.discard(position)
        now = time.monotonic()
        self._pace.saved(now, now - began)
        self._reporter.stall_s += now - began
        if outcome or manifest is None:
            if gang.rank == 0:
                self._reporter.warn(
                    f"saving at step {step} failed ({outcome}); training goes on, older checkpoints stay"
                )
            return False
        if gang.rank == 0:
            self._tell(manifest, now - began)
        self._collect(gang)
        return True

    def _tell(self, manifest: Manifest, took_s: float) -> None:
        self._reporter.fact(
            handshake.FACT_SAVED,
            step=manifest.position.step,
            bytes=manifest.bytes,
            save_s=took_s,
            stall_s=took_s,
            durable=self._settings.one_folder,
        )

    def _write(self, gang: Gang, position: Position, state: Any) -> tuple[Shard | None, str]:
        try:
            if self._folder.read_manifest(position) is not None:
                # This attempt ran before and came by here: what is published is never written again.
                shard = self._folder.described_shard(position, gang.rank)
                return (shard, "") if shard is not None else (None, "published before, but this shard is gone")
            return write_shard(
                self._folder, position, state, rank=gang.rank, world_size=gang.world_size, where=gang.where
            ), ""
        except Exception as error:
            # A full disk, a folder that went away: none may end the training.
            return None, f"{type(error).__name__}: {error}"

    def _publish(self, gang: Gang, manifest: Manifest) -> str:
        error, fenced = "", False
        if self._keeps(gang):
            try:
                fenced = self._folder.fenced(self._settings.attempt)
                if not fenced and self._folder.read_manifest(manifest.position) is None:
                    self._folder.publish(manifest)
            except OSError as problem:
                error = f"{type(problem).__name__}: {problem}"
        results = gang.gather((error, fenced))
        if any(fenced for _, fenced in results):
            refuse(
                f"a newer attempt has begun in {self._folder.root}; attempt {self._settings.attempt} stops, "
                "nobody would read what it saves"
            )
        return "; ".join(f"rank {rank}: {error}" for rank, (error, _) in enumerate(results) if error)

    def _collect(self, gang: Gang) -> None:
        if not self._keeps(gang):
            return
        try:
            self._folder.collect(self._settings.attempt, self._settings.keep)
        except OSError as error:
            self._reporter.warn(f"old checkpoints could not be deleted: {error}")

    def _keeps(self, gang: Gang) -> bool:
        return gang.rank == 0 or (gang.leads_node and not self._settings.one_folder)
