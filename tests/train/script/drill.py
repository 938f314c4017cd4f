"""Runs a script plainly, and under everstep with kills; both in folders of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.train.zygote import Child, Zygote

DRIVER = Path(__file__).with_name("under_everstep.py")


@dataclass
class Drill:
    """One script in ``place``, with ``target`` as it stands on the command line.

    Attributes:
        env: of all runs.
        launches: how often it was started under everstep.
    """

    scripts: Zygote
    place: Path
    target: Sequence[str] = ("train.py",)
    every_steps: int = 3
    env: dict[str, str] = field(default_factory=dict)
    launches: int = 0

    def plain(self) -> tuple[int, str]:
        """Exit code and stdout of an undisturbed run."""
        log = self.place / "plain.log"
        rc = self.scripts.run([*self.target], cwd=self.place, log=log, env=self.env)
        # The log has stderr, too; only a traceback at the end is expected there.
        return rc, log.read_text().partition("Traceback ")[0]

    def launch(self, stop_at: int = 0, signal: str = "SIGKILL") -> int:
        """One launch under everstep; with ``stop_at`` it gets a signal at that step of its own."""
        return self.start(stop_at, signal).wait()

    def start(self, stop_at: int = 0, signal: str = "SIGKILL") -> Child:
        """Begin one launch."""
        self.launches += 1
        command = [DRIVER, "--dir", self.place / "saves", "--every-steps", str(self.every_steps), *self.target]
        env = {**self.env, **({"STOP_AT": str(stop_at), "SIGNAL": signal} if stop_at else {})}
        return self.scripts.start(command, cwd=self.place, log=self._log(), env=env)

    def said(self) -> str:
        """Stdout and stderr of the last launch."""
        return self._log().read_text() if self._log().exists() else ""

    def log(self) -> str:
        """Stdout over all launches."""
        return (self.place / "saves" / "stdout-0.log").read_text()

    def resumed(self) -> bool:
        """True if the last launch continued from a save."""
        return '"base": null' not in (self.place / "saves" / f"attempts/{self.launches:06d}.json").read_text()

    def _log(self) -> Path:
        return self.place / f"launch-{self.launches}.log"


def survives(drill: Drill, *stops: int, signal: str = "SIGKILL") -> None:
    """Killed at these steps of its launches, one after the other, the script ends as the plain run does."""
    rc, stdout = drill.plain()
    for stop_at in stops:
        ended = drill.launch(stop_at, signal)
        assert ended == (-9 if signal == "SIGKILL" else 75), drill.said()
    assert drill.launch() == rc, drill.said()
    assert drill.resumed(), drill.said()
    assert drill.log() == stdout
