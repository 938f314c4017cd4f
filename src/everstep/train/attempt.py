"""The running attempt as the training script sees it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch

from everstep.model import handshake
from everstep.train import randomness
from everstep.train.feed import END, Feed, WrongData
from everstep.train.folder import Folder, Manifest, Shard
from everstep.train.gang import Gang
from everstep.train.lineage import Position
from everstep.train.pace import Pace
from everstep.train.reports import Reporter, numbers
from everstep.train.requests import Requests, Terminations
from everstep.train.shard import write_shard

_HOLD_LOOK_S = 0.1


class Stateful(Protocol):
    """What can be attached: models, optimizers, schedulers, scalers, averages, counters of your own."""

    def state_dict(self) -> Any:
        """All that must come back."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take back what `state_dict` gave."""


class Saved(SystemExit):
    """Raised in `Run.steps` or `Run.step_done` when training was asked to stop and its state is saved: exit code 75."""

    def __init__(self) -> None:
        super().__init__(handshake.EXIT_SAVED)


class Refused(SystemExit):
    """Raised when training on would not be exact, or nobody would ever read its result: exit code 76.

    Attributes:
        text: what is wrong and what helps.
    """

    def __init__(self, text: str) -> None:
        super().__init__(handshake.EXIT_REFUSED)
        self.text = text


@dataclass(frozen=True)
class Surroundings:
    """What a run works with; made by `everstep.train.attach`.

    ``one_folder``: all ranks see the same checkpoint folder; only then is a checkpoint durable.
    """

    gang: Gang
    folder: Folder
    reporter: Reporter
    requests: Requests
    terminations: Terminations
    pace: Pace
    attempt: int
    base: Position | None
    keep: int
    one_folder: bool


class Run:
    """One attempt at training: saves when a save is due, stops when asked to, knows where it is.

    Made by `everstep.train.attach`. All ranks must call the same methods in the same order, as they do for training.

    Attributes:
        step: number of steps done, over all attempts. A step is one pass through the body of the loop.
    """

    def __init__(self, objects: Mapping[str, Stateful], around: Surroundings, restored: dict[str, Any] | None) -> None:
        self._objects = dict(objects)
        self._around = around
        self._feed: Feed | None = None
        self._restored_feed = restored["feed"] if restored is not None else None
        self._restored_random = restored["random"] if restored is not None else None
        self.step: int = restored["step"] if restored is not None else 0
        self._saved_step: int | None = self.step if restored is not None else None
        self._finished = False

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self._around.attempt

    @property
    def base(self) -> str | None:
        """The checkpoint this attempt began from, as ``attempt:step``; None if it began from nothing."""
        return None if self._around.base is None else str(self._around.base)

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._around.gang.rank

    # --- the loop -----------------------------------------------------------------------------------------------

    def steps(
        self, loader: Iterable[Any], *, total: int | None = None, epochs: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The rest of the training loop: (number of the step, from 1; its batch), until ``total`` steps or ``epochs``.

        The order of batches is the loader's own, over all epochs; ``set_epoch`` of its samplers is called. After a
        restart it continues behind the last saved step, in the middle of an epoch if need be: no batch is trained on
        twice or left out, and all random states are those of an undisturbed run. A ``DataLoader`` over a map-style
        dataset skips by drawing indices, without fetching; an ``IterableDataset`` or another iterable is fetched and
        dropped. The replay is checked; `Refused` if it gives other data. State that a dataset keeps for itself beside
        its random draws must be attached.

        At the end of the loop the state is saved; leaving it early (``break``, an exception) saves nothing.

        Args:
            loader: a ``DataLoader``, or any iterable that can be iterated once per epoch.
            total: number of steps over all attempts; makes the work known to whoever estimates its end.
            epochs: number of passes over the loader. At least one of the two.

        Raises:
            Saved: training was asked to stop; its state is saved. Let it pass.
        """
        if total is None and epochs is None:
            raise TypeError("steps() needs total= or epochs=, to know where training ends")
        if self._feed is not None:
            raise RuntimeError("steps() was called before: one run has one loop; epochs= passes over the loader often")
        self._feed = self._resume_feed(loader, epochs)
        known = total
        if epochs is not None and hasattr(loader, "__len__"):
            planned = epochs * len(loader)  # type: ignore[arg-type]
            known = planned if total is None else min(total, planned)
        return self._loop(self._feed, total, known)

    def _loop(self, feed: Feed, total: int | None, known: int | None) -> Iterator[tuple[int, Any]]:
        self._restore_random()
        self._restored_random = None
        try:
            while total is None or self.step < total:
                batch = feed.next()
                if batch is END:
                    break
                yield self.step + 1, batch
                del batch
                self.step_done(total=known)
            self.finish()
        finally:
            # Also after a break: nobody looks at a swallowed SIGTERM any more.
            self._close()

    def _resume_feed(self, loader: Iterable[Any], epochs: int | None) -> Feed:
        if self.step > 0 and self._restored_feed is None:
            raise self.refuse(f"checkpoint {self.base} has no data position: it was written by a loop without steps()")
        try:
            return Feed(loader, epochs, self._restored_feed)
        except WrongData as error:
            raise self.refuse(f"cannot resume from checkpoint {self.base}: {error}") from error

    def _restore_random(self) -> None:
        # Whatever was drawn since attach() (building loaders, warming up, replaying data) must not shift the loop.
        if self._restored_random is not None:
            randomness.restore(self._restored_random)

    def step_done(self, *, total: int | None = None, **metrics: float) -> None:
        """For those who own their loop: a step is done. Saves, holds or stops here if that is due.

        Args:
            total: number of steps over all attempts, if known.
            metrics: numbers to report, e.g. ``loss=0.3``.

        Raises:
            Saved: training was asked to stop; its state is saved. Let it pass.
        """
        self.step += 1
        self._around.reporter.progress(self.step, total, numbers(metrics), stepped=True)
        self._boundary()

    def __enter__(self) -> Run:
        self._restore_random()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self._close()

    def progress(self, step: int | None = None, total: int | None = None, **metrics: float) -> None:
        """Report numbers (``loss=...``), and the position where `steps` does not know it. Cheap; never fails."""
        where = self.step if step is None else step
        self._around.reporter.progress(where, total, numbers(metrics))

    def save(self) -> bool:
        """Save now. False, with a warning, if it failed: training goes on and the older checkpoint stays."""
        if self._saved_step == self.step:
            return True
        return self._save()

    def finish(self) -> None:
        """Save the final state, unless that is done, and stop listening. `steps` and ``with`` do it by themselves."""
        if self._finished:
            return
        self._finished = True
        if self.step > 0:
            self.save()
        self._close()

    def refuse(self, text: str) -> Refused:
        """Tell everybody why training does not go on; raise what comes back."""
        self._around.reporter.refuse(text)
        self._close()
        return Refused(text)

    def _close(self) -> None:
        self._around.terminations.release()
        self._around.reporter.flush()

    # --- step boundaries ----------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        around = self._around
        now = time.monotonic()
        due = around.pace.due(now)
        self._look()
        save, stop, hold = around.gang.agree(
            around.requests.save or (due and around.gang.rank == 0),
            around.requests.stop or around.terminations.asked,
            around.requests.holding,
        )
        if save or stop:
            done = self.save()
            around.requests.saved()
            if stop:
                self._stop(done)
        if hold:
            self._hold()

    def _look(self) -> None:
        around = self._around
        around.requests.look(around.reporter.utc(), around.pace.margin_s())
        around.pace.expect(around.requests.hazard_per_h)

    def _hold(self) -> None:
        """Stand still with a saved state until killed, stopped, or told to go on by a later request."""
        self._around.reporter.flush()
        while True:
            time.sleep(_HOLD_LOOK_S)
            self._look()
            around = self._around
            stop, hold = around.gang.agree(around.requests.stop or around.terminations.asked, around.requests.holding)
            if stop:
                self._stop(self.save())
            if not hold:
                return

    def _stop(self, saved: bool) -> None:
        self._close()
        if saved:
            raise Saved
        raise SystemExit("everstep: asked to stop, but the last save failed; the older checkpoint stays")

    # --- saving -------------------------------------------------------------------------------------------------

    def _save(self) -> bool:
        """Save at this step, all ranks together. Any failure of any rank leaves no trace but a warning."""
        around, gang = self._around, self._around.gang
        began = time.monotonic()
        position = Position(around.attempt, self.step)
        results = gang.gather(self._write(position))
        failures = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(results) if error]
        outcome = ""
        if failures:
            around.folder.discard(position)
            outcome = "; ".join(failures)
        else:
            shards = tuple(shard for shard, _ in results)
            manifest = Manifest(position, gang.world_size, shards, torch=torch.__version__)
            outcome = self._publish(manifest)
            if outcome:
                around.folder.discard(position)
        now = time.monotonic()
        around.pace.saved(now, now - began)
        around.reporter.stall_s += now - began
        if outcome:
            self._warn_first(f"saving at step {self.step} failed ({outcome}); training goes on, older checkpoints stay")
            return False
        self._saved_step = self.step
        if gang.rank == 0:
            around.reporter.fact(
                handshake.FACT_SAVED,
                step=self.step,
                bytes=manifest.bytes,
                save_s=now - began,
                stall_s=now - began,
                durable=around.one_folder,
            )
        self._collect()
        return True

    def _write(self, position: Position) -> tuple[Shard | None, str]:
        """Write this rank's shard: (shard, "") or (None, what went wrong)."""
        around, gang = self._around, self._around.gang
        try:
            if around.folder.read_manifest(position) is not None:
                # This attempt ran before and came by here: what is published is never written again.
                shard = around.folder.described_shard(position, gang.rank)
                return (shard, "") if shard is not None else (None, "published before, but this shard is gone")
            state = {
                "objects": {name: thing.state_dict() for name, thing in self._objects.items()},
                "step": self.step,
                "random": randomness.capture(),
                "feed": self._feed.state() if self._feed is not None else None,
                "save_cost_s": around.pace.save_cost_s,
            }
            shard = write_shard(
                around.folder, position, state, rank=gang.rank, world_size=gang.world_size, where=gang.where
            )
        except Exception as error:
            # A full disk, an object that cannot be pickled, a folder that went away: none may end the training.
            return None, f"{type(error).__name__}: {error}"
        return shard, ""

    def _publish(self, manifest: Manifest) -> str:
        """Publish on every disk; returns "" or what went wrong, the same on all ranks.

        Raises:
            Refused: a newer attempt began.
        """
        around, gang = self._around, self._around.gang
        error, fenced = "", False
        if gang.rank == 0 or (gang.leads_node and not around.one_folder):
            try:
                fenced = around.folder.fenced(around.attempt)
                if not fenced and around.folder.read_manifest(manifest.position) is None:
                    around.folder.publish(manifest)
            except OSError as problem:
                error = f"{type(problem).__name__}: {problem}"
        results = gang.gather((error, fenced))
        if any(fenced for _, fenced in results):
            raise self.refuse(
                f"a newer attempt has begun in {around.folder.root}; attempt {around.attempt} stops, "
                "nobody would read what it saves"
            )
        return "; ".join(f"rank {rank}: {error}" for rank, (error, _) in enumerate(results) if error)

    def _collect(self) -> None:
        around, gang = self._around, self._around.gang
        if gang.rank == 0 or (gang.leads_node and not around.one_folder):
            try:
                around.folder.collect(around.attempt, around.keep)
            except OSError as error:
                around.reporter.warn(f"old checkpoints could not be deleted: {error}")

    def _warn_first(self, text: str) -> None:
        if self._around.gang.rank == 0:
            self._around.reporter.warn(text)
