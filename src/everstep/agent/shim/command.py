"""The command line of a Python process taken apart: what runs as ``__main__``, and whose it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

_WITH_VALUE = "WX"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_NO_SCRIPT = ("", "-")
_COMPILED = (".pyc", ".pyz", ".zip")


class Command:
    """``python OPTIONS TARGET ARGUMENTS``, or ``python OPTIONS -m TARGET ARGUMENTS``.

    Attributes:
        options: of the interpreter, as they can be given again.
        target: a file, or with ``is_module`` the name of a module.
        arguments: what the program gets.
    """

    __slots__ = ("arguments", "is_module", "options", "target")

    def __init__(self, options: Sequence[str], target: str, is_module: bool, arguments: Sequence[str]) -> None:
        self.options = tuple(options)
        self.target = target
        self.is_module = is_module
        self.arguments = tuple(arguments)


def read(argv: Sequence[str]) -> Command | None:
    """The command of an interpreter; None if it runs no file and no module, or stays for a dialogue (``-i``)."""
    options: list[str] = []
    rest = list(argv[1:])
    while rest and rest[0].startswith("-") and rest[0] not in _NO_SCRIPT:
        word = rest.pop(0)
        if word.startswith("--"):
            options.append(word)
            options += rest[:1] if word == _LONG_WITH_VALUE else []
            rest = rest[1:] if word == _LONG_WITH_VALUE else rest
            continue
        for place, letter in enumerate(word[1:], 1):
            value = [word[place + 1 :]] if word[place + 1 :] else rest[:1]
            if letter == "m" and value:
                arguments = rest if word[place + 1 :] else rest[1:]
                return Command([*options, *([word[:place]] if place > 1 else [])], value[0], True, arguments)
            if letter in "ci":
                return None
            if letter in _WITH_VALUE:
                rest = rest if word[place + 1 :] else rest[1:]
                word = word if word[place + 1 :] else f"{word}{''.join(value)}"
                break
        options.append(word)
    if not rest or rest[0] in _NO_SCRIPT:
        return None
    return Command(options, rest[0], False, rest[1:])


def file_of(command: Command, path: Iterable[str]) -> str | None:
    """The source file that runs as ``__main__``; None if there is none to be read.

    Args:
        path: where modules are found, in order.
    """
    if not command.is_module:
        found = os.path.isfile(command.target) and not command.target.endswith(_COMPILED)
        return os.path.abspath(command.target) if found else None
    parts = command.target.split(".")
    for folder in path:
        base = os.path.join(folder or os.curdir, *parts)
        for candidate in (os.path.join(base, "__main__.py"), base + ".py"):
            if os.path.isfile(candidate):
                return os.path.abspath(candidate)
        if os.path.isdir(os.path.join(folder or os.curdir, parts[0])):
            return None  # the package is here, and what is asked for is not in it as source
    return None


def foreign_roots() -> tuple[str, ...]:
    """Folders of the interpreter: its library, installed packages, and the scripts that came with these."""
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders += [os.path.join(prefix, "bin") for prefix in (sys.prefix, sys.base_prefix)]
    if getattr(site, "ENABLE_USER_SITE", False):
        folders += [site.getusersitepackages(), os.path.join(site.getuserbase(), "bin")]
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


def is_users(path: str, foreign: tuple[str, ...]) -> bool:
    """Whether a file is the user's own and no part of an installation."""
    real = os.path.realpath(path)
    parts = real.split(os.sep)
    return not real.startswith(foreign) and "site-packages" not in parts and "dist-packages" not in parts
