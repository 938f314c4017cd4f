"""The user's command taken apart: which Python, which of its options, which script."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.model.errors import BadInput, EverstepError, Problem

_WHERE = "everstep check"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?")
#: Options of Python whose value is the next word, unless it is glued on.
_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: With these Python looks at no variable or runs no start-up hook.
_DEAF = frozenset("IES")
_OLDEST = (3, 10)
_PROBE = """
import importlib.util, json, sys
found = importlib.util.find_spec("torch")
print(json.dumps([list(sys.version_info[:3]), found is not None]))
"""


@dataclass(frozen=True, slots=True)
class Command:
    """``python -u train.py --lr 1`` as ``python``, ``("-u",)``, ``("train.py",)``, ``("--lr", "1")``.

    Attributes:
        python: absolute path of the interpreter, not resolved: a virtual environment is found by its link.
        options: of the interpreter.
        target: the script, or ``-m`` and a module.
        arguments: of the script.
    """

    python: str
    options: tuple[str, ...]
    target: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """``train`` for ``train.py`` and for ``-m pkg.train``."""
        last = self.target[-1]
        return Path(last).stem if len(self.target) == 1 else last.rpartition(".")[2]

    @property
    def text(self) -> str:
        """As one would type it."""
        return shlex.join(["python", *self.options, *self.target, *self.arguments])


def read_command(words: Sequence[str], cwd: Path) -> Command:
    """Take the words after ``--`` apart.

    Args:
        words: the command.
        cwd: where it is run.

    Raises:
        BadInput: it is no Python command, or the program or script is not there.
    """
    if not words:
        raise _bad("the command is missing after --", f"write {_WHERE} -- python train.py")
    if not _PYTHON.fullmatch(Path(words[0]).name):
        fix = "write -- python train.py ARGS, with the Python of your environment; several ranks: --nproc N"
        raise _bad(f"the command must begin with a Python interpreter, found '{words[0]}'", fix)
    python = shutil.which(words[0], path=None if os.sep not in words[0] else str(cwd))
    if python is None and os.sep in words[0] and os.access(cwd / words[0], os.X_OK):
        python = str(cwd / words[0])
    if python is None:
        raise _bad(f"there is no program '{words[0]}'", "name the Python that trains")
    options, rest = _options(list(words[1:]))
    if not rest:
        raise _bad("the script is missing", f"write {_WHERE} -- {words[0]} train.py")
    size = 2 if rest[0] == "-m" else 1
    command = Command(os.path.abspath(python), tuple(options), tuple(rest[:size]), tuple(rest[size:]))
    _check_target(command, cwd)
    return command


def _options(words: list[str]) -> tuple[list[str], list[str]]:
    """Options of the interpreter, and what follows them."""
    options: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-"):
        word = words.pop(0)
        if word == "-c":
            raise _bad("a command given with -c cannot be resumed", "put it into a file")
        if not word.startswith("--") and word[:2] not in _TAKES_VALUE and _DEAF & set(word[1:]):
            raise _bad(f"with {word} Python takes no start-up hook, by which a run is watched", f"leave {word} out")
        options.append(word)
        if word in _TAKES_VALUE and words:
            options.append(words.pop(0))
    return options, words


def _check_target(command: Command, cwd: Path) -> None:
    if command.target[0] == "-":
        raise _bad("a script read from standard input cannot be resumed", "put it into a file")
    if command.target[0] == "-m":
        if len(command.target) == 1:
            raise _bad("the module is missing after -m", "write -m package.module")
        return
    if not (cwd / command.target[0]).exists():
        raise _bad(f"there is no file '{command.target[0]}' in {cwd}", "")


def probe(command: Command) -> str:
    """The version of the user's Python, ``3.12.1``.

    Raises:
        EverstepError: it does not start, is too old, or has no torch.
    """
    try:
        done = subprocess.run(
            [command.python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        version, has_torch = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise EverstepError(f"{command.python} does not run: {error}") from None
    text = ".".join(map(str, version))
    if tuple(version[:2]) < _OLDEST:
        raise EverstepError(f"{command.python} is Python {text}; resuming needs 3.10 or newer")
    if not has_torch:
        raise EverstepError(f"{command.python} has no torch; name the Python of the environment that trains")
    return text


def _bad(message: str, fix: str) -> BadInput:
    return BadInput(Problem(_WHERE, "", message, fix))
