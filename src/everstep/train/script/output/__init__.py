"""What the script writes: its standard output and its files, put back at the safe point to what they were at the save.

Standard output: see `stdout`. Files: `watch` sees each file before it is first changed, `journal` keeps what it was
then over all relaunches, `aside` moves what the run had written out of the way before the script starts again, so that
its setup sees the world of its first start, and `files` puts everything back at the safe point. Whatever the script
writes during the replay does not survive.

Seen are files that Python opens, renames, removes or truncates, in this process and in its forked children (loader
workers), and those of ``torch.save`` and ``torch.jit.save``. **Not seen** are files written by programs that the script
starts and by C libraries (HDF5, sqlite, safetensors): where they lie in a folder that the run made they are kept as the
others are, and what was made after the save stays as it was at the crash, but must not be read; elsewhere they are not
touched, and do not follow the run to another machine.

What a save needs of bigger files lies beside the checkpoints (see `store`), so that a relaunch on another machine, or
in another folder, finds all that the run wrote. A file for which there was no room (256 MiB in all) must be where it
was: one that was written otherwise than at its end after the save cannot be put back then. It is *tainted*, and reading
it before it is written anew ends the process with code 76, as does its absence on another machine.
"""

from __future__ import annotations

from typing import Any

from everstep.train.script.output.files import Files, Launch, damage
from everstep.train.script.output.place import Place
from everstep.train.script.output.stdout import Stdout

__all__ = ["Launch", "Output", "Place", "damage"]


class Output:
    """All that one rank writes."""

    def __init__(self, launch: Launch) -> None:
        self._stdout = Stdout(launch.folder, launch.rank)
        self._files = Files(launch)

    def begin(self, replaying: dict[str, Any] | None) -> None:
        """Before the script starts: with what `position` gave at the save that it goes on from, or None.

        Its files are those of its first start. With a save, standard output is muted until `restored`.
        """
        # In this order: cutting the file that standard output goes to does not make it one of the script's files.
        self._stdout.begin(None if replaying is None else replaying["stdout"])
        self._files.begin(None if replaying is None else replaying["files"])

    def position(self) -> dict[str, Any]:
        """At a save: everything is flushed; where the output is. Picklable."""
        return {"stdout": self._stdout.position(), "files": self._files.position()}

    def sync(self) -> None:
        """Make durable what was written until now of the log, and of what is known of the files. In any thread."""
        self._stdout.sync()
        self._files.sync()

    def restored(self, saved: dict[str, Any]) -> None:
        """At the safe point: the files and the log are those of the save; what is written from now on counts."""
        self._files.unwatch()
        # A file of another machine may have the same number as one of this.
        here = self._files.is_here(saved["files"])
        self._stdout.restored(saved["stdout"] if here else {**saved["stdout"], "file": None})
        self._files.restored(saved["files"])

    def end(self) -> None:
        """Nothing more is watched; standard output is the process's own again. For tests."""
        self._files.unwatch()
        self._stdout.end()
