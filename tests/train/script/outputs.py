"""One run of a script in several processes, each a fork of the test: `Life` begins an `Output`, lets the script's setup
run, comes to the safe point and goes on until it is "killed" (``os._exit``)."""

from __future__ import annotations

import io
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.model.handshake import ENV_ATTEMPT
from everstep.train.gang import Gang
from everstep.train.script.output import Launch, Output, Place
from everstep.train.script.ranks import Meeting

Step = Callable[[], Any]

KILLED = 9


class Life:
    """The lives of one run in ``work``.

    Args:
        work: the working folder.
        folder: the checkpoint folder; ``work/.ck`` for None.
        rank: of the processes.
        ranks: that run together.
        attempt: of ranks that run together; grows from life to life.
    """

    def __init__(
        self, work: Path, folder: Path | None = None, *, rank: int = 0, ranks: int = 1, attempt: int = 0
    ) -> None:
        self.work = work
        self.folder = folder or work / ".ck"
        self.rank = rank
        self._ranks = ranks
        self._attempt = attempt
        self._saved = self.folder / f"position-{rank}.pickle"  # not a file of the run

    def elsewhere(self, work: Path) -> Life:
        """The same run in another working folder, which is made."""
        work.mkdir()
        return Life(work, self.folder)

    def saved(self) -> Any:
        return pickle.loads(self._saved.read_bytes()) if self._saved.exists() else None

    def __call__(self, setup: Step, *stretches: Step, until: str = "end") -> int:
        """One process. ``setup``, the safe point (in a relaunch), then stretches with a save after each but the last.

        Args:
            setup: gives the state that stretches get as their argument.
            stretches: what the script does.
            until: ``replay`` kills before the safe point, ``end`` behind the last stretch.

        Returns:
            The exit code, 0 if it came to the end.
        """
        return self.wait(self.start(setup, *stretches, until=until))

    def start(self, setup: Step, *stretches: Step, until: str = "end") -> int:
        """The same without waiting; the process."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = self._run(setup, stretches, until)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return pid

    @staticmethod
    def wait(pid: int) -> int:
        """The exit code of a process that was started."""
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _run(self, setup: Step, stretches: tuple[Step, ...], until: str) -> int:
        os.chdir(self.work)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 1)
        saved = self.saved()
        gang = Gang(self.rank, self._ranks)
        meet = Meeting(gang, self.folder, {ENV_ATTEMPT: f"{self._attempt}"})
        output = Output(Launch(self.folder, self.rank, Place({"work": self.work}), meet=meet))
        output.begin(None if saved is None else saved["output"])
        state = setup()
        if until == "replay":
            return KILLED
        if saved is not None:
            output.restored(saved["output"])
        for number, stretch in enumerate(stretches):
            stretch(state) if state is not None else stretch()
            if number < len(stretches) - 1:
                self._saved.write_bytes(pickle.dumps({"output": output.position()}))
        if isinstance(state, io.IOBase):
            state.flush()
        return 0
