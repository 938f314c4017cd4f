"""Where a check happens: folders, commands and variables of its runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from everstep.client.check.command import Command
from everstep.client.check.launch import Launch, Start, StartUp, end_marked
from everstep.client.check.workfolder import Original, WorkFolder
from everstep.model import handshake

#: What the agent sets; the order of sets of strings depends on it.
_HASH_SEED = "0"


class Mode(StrEnum):
    """Who saves and resumes; the values of ``checkpoint.mode`` in a task file, but for ``auto``."""

    SCRIPT = handshake.MODE_SCRIPT
    LIBRARY = handshake.MODE_LIBRARY
    OFF = handshake.MODE_OFF


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user may choose.

    Attributes:
        kills: how often the script is killed.
        nproc: ranks, started by torchrun if more than one.
        grace_s: time between SIGTERM and SIGKILL.
        steps: look at that many steps; None: at all, or at what a minute holds.
        mode: None: the script itself if it attaches to the library, else everstep from outside.
        rate_per_h: expected preemptions per hour, for the advice.
        seed: of the initial random state and of the moments of the kills.
    """

    kills: int = 3
    nproc: int = 1
    grace_s: float = 5.0
    steps: int | None = None
    mode: Mode | None = None
    rate_per_h: float = 0.1
    seed: int = 0


class Scene:
    """One check's folder, with ``runs/NAME`` for each run and the start-up hook.

    Args:
        command: the user's.
        cwd: where it is run.
        folder: of the check; exists and is empty.
        settings: the user's.
    """

    def __init__(self, command: Command, cwd: Path, folder: Path, settings: Settings) -> None:
        self.command = command
        self.settings = settings
        self.folder = folder
        self._cwd = cwd.resolve()
        self.original = Original(self._cwd, apart=folder.resolve())
        self._startup = StartUp(folder / "startup")
        self._mark = uuid.uuid4().hex

    def close(self) -> None:
        """End whatever a check that was broken off has left running."""
        end_marked(self._mark)

    @property
    def script(self) -> Path | None:
        """The script's file; None for a module."""
        return None if len(self.command.target) == 2 else self._cwd / self.command.target[0]

    def run_folder(self, name: str) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / name

    def work(self, name: str) -> WorkFolder:
        """A fresh working folder for a run."""
        return self.original.make(self.run_folder(name) / "work")

    def plain(self, name: str, work: WorkFolder, witness: dict[str, Any]) -> Launch:
        """Start the script as it is."""
        words = (*self._target(), *self.command.arguments)
        return self._launch(self.run_folder(name), 1, work, words=words, witness=witness)

    def drilled(
        self, name: str, number: int, work: WorkFolder, *, mode: Mode, witness: dict[str, Any], every: tuple[int, float]
    ) -> Launch:
        """Start the script so that it saves, for the ``number``-th time on the same checkpoints.

        Args:
            name: of the run.
            number: from 1.
            work: its working folder.
            mode: who saves.
            witness: what the witness is told.
            every: how often to save: in steps, and about the same in seconds for those who count these.
        """
        folder = self.run_folder(name)
        words = (*self._target(), *self.command.arguments)
        if mode is Mode.SCRIPT:
            runner = ("everstep.train.run", "--dir", str(self.checkpoints(name)), "--every-steps", str(every[0]))
            return self._launch(folder, number, work, words=("-m", *runner, *words), witness=witness, ours=True)
        env = {handshake.ENV_CHECKPOINT_EVERY: f"{every[1]:.6f}", handshake.ENV_CHECKPOINT_MODE: mode.value}
        return self._launch(folder, number, work, words=words, witness=witness, more=env)

    def checkpoints(self, name: str) -> Path:
        """Checkpoint folder of a run."""
        return self.run_folder(name) / "checkpoints"

    def _target(self) -> tuple[str, ...]:
        """The script as seen from a working folder."""
        if len(self.command.target) == 2:
            return self.command.target
        path = os.path.realpath(self._cwd / os.path.dirname(self.command.target[0]))
        inside = os.path.relpath(path, self._cwd)
        if inside.startswith(os.pardir):
            return (str(self._cwd / self.command.target[0]),)
        return (os.path.normpath(os.path.join(inside, os.path.basename(self.command.target[0]))),)

    def _launch(
        self,
        folder: Path,
        number: int,
        work: WorkFolder,
        *,
        words: tuple[str, ...],
        witness: dict[str, Any],
        more: Mapping[str, str] | None = None,
        ours: bool = False,
    ) -> Launch:
        env = {handshake.ENV_CHECKPOINT_DIR: str(folder / "checkpoints"), **(more or {})}
        if ours or number == 1:
            # The agent fixes it for scripts that everstep resumes; any other has a new one on the next machine.
            env["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", _HASH_SEED)
        told = {"seed": None, "steps": None, "seconds": None, "plain": None, "reached": 0, "reported": False, **witness}
        told.update(work=str(work.path), linked=list(work.linked))
        return Launch(
            Start(
                command=self.command,
                words=words,
                nproc=self.settings.nproc,
                cwd=work.path,
                folder=folder / f"launch-{number}",
                witness=told,
                env=env,
                startup=self._startup,
                mark=self._mark,
                ours=ours,
            )
        )
