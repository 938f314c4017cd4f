"""Who will save and resume a task's script, as far as that can be told from here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from everstep.agent.shim.look import Findings, look
from everstep.model.task import CheckpointMode, Task

_SCRIPT = re.compile(r"[^\s'\"=;|&()<>$`]+\.py\b")
_MODULE = re.compile(r"\s-m\s+([A-Za-z_][\w.]*)")
_FIXED = {
    CheckpointMode.SCRIPT: "everstep, from outside (checkpoint.mode: script)",
    CheckpointMode.LIBRARY: "the script itself (checkpoint.mode: library)",
    CheckpointMode.OFF: "nobody (checkpoint.mode: off)",
}


def resumed_by(task: Task, workdir: Path | None) -> str:
    """Who saves and resumes, in words; "" if the scripts are not here to be looked at, or none of them trains.

    Args:
        task: what will run.
        workdir: the local folder that will be brought to the machines.
    """
    if task.checkpoint.mode in _FIXED:
        return _FIXED[task.checkpoint.mode]
    for script in _scripts(task, workdir):
        found = look(str(script), [str(script.parent), *([str(workdir)] if workdir else [])], ())
        if told := _in_words(script.name, found):
            return told
    return ""


def _in_words(name: str, found: Findings) -> str:
    if found.library:
        return f"{name} itself: everstep.train is used ({found.library})"
    if found.framework and not found.launches:
        return f"nobody: the loop of {name} is in the hands of {found.framework}, which everstep does not resume yet"
    return f"everstep, from outside: {name} stays as it is" if found.torch and not found.launches else ""


def _scripts(task: Task, workdir: Path | None) -> Iterator[Path]:
    """Files here that the task seems to run, in the order of its text."""
    text = " ".join(task.argv) or task.run
    named = [(match.start(), match[0]) for match in _SCRIPT.finditer(text)]
    for match in _MODULE.finditer(text):
        name = match[1].replace(".", "/")
        named += [(match.start(), f"{name}.py"), (match.start(), f"{name}/__main__.py")]
    for _, name in sorted(named):
        path = workdir / name if workdir is not None else Path(name)
        if path.is_absolute() and path.is_file():
            yield path
