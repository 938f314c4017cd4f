"""Which checkpoint folder belongs to which start of a script.

A job may run several scripts, and one of them several times: each has a lineage of its own, named by script and
arguments and, where the same command is run again after it came to its end, by the number of ends before. What ended is
noted per attempt, so that the same sequence in the next attempt finds the same folders. A process that was killed, or
that left with a refusal, did not end: what is started next is its continuation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping

from .command import Command


class Entry:
    """One start: ``folder`` of its checkpoints, ``file`` in which its end is noted ("" = nowhere)."""

    __slots__ = ("file", "folder")

    def __init__(self, folder: str, file: str) -> None:
        self.folder = folder
        self.file = file


def begin(command: Command, env: Mapping[str, str]) -> Entry:
    """The folder for a script that starts now."""
    name = f"{_stem(command)}-{_key(command)}"
    reports, file, ends = env.get("EVERSTEP_REPORT_DIR"), "", 0
    if reports:
        file = os.path.join(reports, f"ended-{name}-{env.get('RANK') or '0'}.json")
        known = _read(file)
        ends = known["ends"]
        if int(env.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0:
            ends = known["started"]  # ranks that ended before the others failed begin with them again
        _write(file, {"started": ends, "ends": ends})
    again = f"-{ends + 1}" if ends else ""
    return Entry(os.path.join(env.get("EVERSTEP_CHECKPOINT_DIR") or ".everstep", "automatic", name + again), file)


def end_with_process(file: str) -> None:
    """Note the end of the script when this process ends in the usual way: by itself, or by ``sys.exit``."""
    if not file:
        return
    import atexit

    pid = os.getpid()

    def note() -> None:
        # An exception that nobody caught is no end; a refusal and a stop after a save leave by `os._exit`.
        if os.getpid() == pid and getattr(sys, "last_type", None) is None:
            known = _read(file)
            _write(file, {"started": known["started"], "ends": known["started"] + 1})

    atexit.register(note)


def _stem(command: Command) -> str:
    name = command.target if command.is_module else os.path.splitext(os.path.basename(command.target))[0]
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in name)[:64]


def _key(command: Command) -> str:
    # Folders differ from machine to machine: what lies below the working folder is named from there.
    here = os.getcwd()
    words = [command.target, "-m" if command.is_module else "", *command.arguments]
    words = [word.replace(here + os.sep, "") for word in words]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]


def _read(file: str) -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(file, encoding="utf-8") as stream:
            known = json.load(stream)
        return {"started": int(known["started"]), "ends": int(known["ends"])}
    return {"started": 0, "ends": 0}


def _write(file: str, known: Mapping[str, int]) -> None:
    temporary = f"{file}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(known, stream)
        os.replace(temporary, file)
