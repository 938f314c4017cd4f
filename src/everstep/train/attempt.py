"""The running attempt as the training script sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch

from everstep.model import handshake
from everstep.train import randomness
from everstep.train.beside import Beside
from everstep.train.feed import END, Feed, WrongData, length
from everstep.train.reports import numbers
from everstep.train.saves import Fenced, Saves
from everstep.train.surroundings import Surroundings
from everstep.train.unsaved import Unsaved

_HOLD_LOOK_S = 0.1
_MIRROR_PATIENCE_S = 300.0
_MIRROR_STOP_PATIENCE_S = 10.0


trained: set[Path] = set()
"""The checkpoint folders of the trainings of which this process has done a step."""


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


class Run:
    """One attempt at training: saves when a save is due, stops when asked to, knows where it is.

    Made by `everstep.train.attach`. All ranks must call the same methods in the same order, as they do for training.

    Attributes:
        step: number of steps done, over all attempts. A step is one pass through the body of the loop.
    """

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        around: Surroundings,
        restored: dict[str, Any] | None,
        *,
        gradients: bool = False,
    ) -> None:
        self._objects = dict(objects)
        self._around = around
        self._feed: Feed | None = None
        self._restored_feed = restored["feed"] if restored is not None else None
        self._restored_random = restored["random"] if restored is not None else None
        self.step: int = restored["step"] if restored is not None else 0
        off = os.environ.get(handshake.ENV_CHECKPOINT_MODE) == handshake.MODE_OFF
        made = Unsaved if off else Saves
        self._saves: Saves = made(objects, around, self._name, self.step if restored is not None else None)
        self._finished = False
        self._stopping = False
        self._trained = False
        self._beside = Beside(self._objects, self.refuse, gradients=gradients)
        if restored is not None and "beside" in restored:
            self._beside.restore(restored.pop("beside"))

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

        At the end of the loop the state is saved; leaving it early (``break``, an exception) begins no save.

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
        each = length(loader) if epochs is not None else None
        if epochs is not None and each is not None:
            known = epochs * each if total is None else min(total, epochs * each)
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
            return Feed(loader, epochs, self._restored_feed, attached=self._objects.values())
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
        if not self._trained:
            self._trained = True
            trained.add(self._around.folder.root.resolve())
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
        """Save now, and return when it is published.

        Returns:
            False, with a warning, if it failed: training goes on and the older checkpoint stays.
        """
        try:
            return self._saves.now(self.step, self._state)
        except Fenced:
            raise self._fenced() from None

    def finish(self) -> None:
        """Save the final state, unless that is done, and stop listening. `steps` and ``with`` do it by themselves."""
        if self._finished:
            return
        self._finished = True
        if self.step > 0:
            self.save()
            self._saves.mirror_all(_MIRROR_PATIENCE_S)
        self._close()

    def refuse(self, text: str) -> Refused:
        """Tell everybody why training does not go on; raise what comes back."""
        self._around.reporter.refuse(text)
        self._close()
        return Refused(text)

    def _close(self) -> None:
        self._saves.close()
        if self._around.mirror is not None:
            self._around.mirror.close()
        if not self._stopping:
            self._around.terminations.release()
        self._around.reporter.flush()

    # --- step boundaries ----------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        around, saves = self._around, self._saves
        due = around.pace.due(time.monotonic(), pending=saves.pending)
        self._look()
        due, save, stop, hold, busy = around.gang.agree(
            due and around.gang.rank == 0,
            around.requests.save,
            around.requests.stop or around.terminations.asked,
            around.requests.holding,
            saves.busy(),
        )
        if saves.pending and not busy:
            self._advance()
        if save or stop or (due and around.pace.each_step):
            # What somebody asked for may be all that is left of this machine's time: training waits for it.
            done = self.save()
            around.requests.saved()
            if stop:
                self._stop(done)
        elif due and not saves.pending:
            saves.begin(self.step, self._state)
        if hold:
            self._hold()

    def _advance(self) -> None:
        try:
            self._saves.advance()
        except Fenced:
            raise self._fenced() from None

    def _look(self) -> None:
        around = self._around
        around.requests.look(around.reporter.utc(), around.pace.margin_s(pending=self._saves.pending))
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
        # All is saved: another SIGTERM while the interpreter leaves must not turn that into a death by signal.
        self._stopping = saved
        if saved:
            self._saves.mirror_all(_MIRROR_STOP_PATIENCE_S)
        self._close()
        if saved:
            raise Saved
        raise SystemExit(f"everstep: asked to stop, {self._saves.missing}")

    # --- what is saved ------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "objects": {name: thing.state_dict() for name, thing in self._objects.items()},
            "step": self.step,
            "beside": self._beside.state(),
            "random": randomness.capture(),
            "feed": self._feed.state() if self._feed is not None else None,
            "save_cost_s": self._around.pace.save_cost_s,
        }

    def _name(self, tensor: torch.Tensor) -> str:
        """What the user calls a tensor, as far as that is known."""
        for name, thing in self._objects.items():
            if isinstance(thing, torch.nn.Module):
                for inner, parameter in thing.named_parameters(prefix=name):
                    if parameter is tensor:
                        return inner
        return "a tensor of an optimizer"

    def _fenced(self) -> Refused:
        return self.refuse(
            f"a newer attempt has begun in {self._around.folder.root}; attempt {self._around.attempt} stops, "
            "nobody would read what it saves"
        )
