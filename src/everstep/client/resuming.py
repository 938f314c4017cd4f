"""Who will save and resume a task's script, as far as that can be told from here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from everstep.agent.shim.command import read
from everstep.agent.shim.look import Findings, look
from everstep.model.task import CheckpointMode, Task

_SCRIPT = re.compile(r"[^\s'\"=;|&()<>$`]+\.py\b")
_MODULE = re.compile(r"\s-m\s+([A-Za-z_][\w.]*)")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BETWEEN_COMMANDS = ";&|\n"
#: Programs that start no others. Whatever is not here may run a script of the user's: a shell, make, an image's own.
_START_NOTHING = frozenset(
    ("cat", "date", "df", "echo", "false", "hostname", "ls", "nvidia-smi", "printf", "pwd", "sleep", "true", "uname")
)
_NOBODY = "nobody; a lost machine starts it anew"
_NOT_SEEN = "not to be told from here: everstep resumes PyTorch scripts, anything else starts anew"
_FIXED = {
    CheckpointMode.SCRIPT: "everstep, from outside (checkpoint.mode: script)",
    CheckpointMode.LIBRARY: "the script itself (checkpoint.mode: library)",
    CheckpointMode.OFF: "nobody (checkpoint.mode: off)",
}


def resumed_by(task: Task, workdir: Path | None) -> str:
    """Who saves and resumes, in words.

    Args:
        task: what will run.
        workdir: the local folder that will be brought to the machines.
    """
    if task.checkpoint.mode in _FIXED:
        return _FIXED[task.checkpoint.mode]
    plain = ""
    for script in _scripts(task, workdir):
        found = look(str(script), [str(script.parent), *([str(workdir)] if workdir else [])], ())
        if told := _in_words(script.name, found):
            return told
        if not found.torch:
            plain = plain or script.name
    if plain:
        return f"nobody, as far as is to be seen: {plain} imports no torch; a lost machine starts it anew"
    return _NOBODY if all(map(_trains_nothing, _commands(task))) else _NOT_SEEN


def _trains_nothing(words: list[str]) -> bool:
    """Whether a command certainly runs no script that could be resumed: a program given as text is none."""
    if not _PYTHON.fullmatch(words[0]):
        return words[0] in _START_NOTHING
    return read(words) is None


def _commands(task: Task) -> list[list[str]]:
    """The words of each command, without the variables set for it; one that cannot be told is ``[""]``."""
    if task.argv:
        return [list(task.argv)]
    lexer = shlex.shlex(task.run, posix=True, punctuation_chars=_BETWEEN_COMMANDS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set(_BETWEEN_COMMANDS):
                commands.append([])
            elif "$(" in word or "`" in word:
                return [[""]]
            elif commands[-1] or not _ASSIGNMENT.fullmatch(word):
                commands[-1].append(word)
    except ValueError:  # an open quote: the shell will say so
        return [[""]]
    return [words for words in commands if words] or [[""]]


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
