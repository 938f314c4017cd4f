"""Runs what a page of the documentation shows.

A fenced block of yaml or python whose first line is a comment with a file name is written to that file. One of python
that begins with ``>>>`` is a doctest. One of console is a session: each ``$ `` line (with the lines up to the next one
that a shell needs to complete it) is run by bash, and what follows is what it must print, stderr included; ``...``
stands for anything.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# ([\w.-]+)\n")
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_END = "@@@ end of a command"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The file it is, empty if it is none."""
        named = _NAME.match(self.text) if self.language in ("python", "yaml") else None
        return named[1] if named else ""


@dataclass(frozen=True)
class Exchange:
    """A command of a session and what it prints."""

    command: str
    output: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(language, text) for language, text in _BLOCK.findall(page.read_text())]


def exchanges(text: str) -> Iterator[Exchange]:
    """The commands of a session."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        size = 1
        while not _complete("".join(lines[:size])):
            size += 1
            assert size <= len(lines), f"not a command: {part}"
        yield Exchange("".join(lines[:size]), "".join(lines[size:]))


def _complete(command: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True, check=False)
    return done.returncode == 0


def run(page: Path, folder: Path) -> int:
    """Runs a page in ``folder``; how many commands and examples it had. AssertionError at the first that differs."""
    count = 0
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TZ": "UTC"}
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            count += _doctest(block.text, page)
        elif block.language == "console":
            count += _session(list(exchanges(block.text)), folder, env)
    return count


def _session(session: list[Exchange], folder: Path, env: dict[str, str]) -> int:
    # One shell for all of them: variables live on.
    script = "".join(f"{exchange.command}\necho {_END}\n" for exchange in session)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, text=True, timeout=TIMEOUT_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = done.stdout.split(f"{_END}\n")
    for exchange, got in zip(session, said, strict=False):
        _compare(exchange, got)
    assert len(said) == len(session) + 1, f"the session ended early: {done.stdout}"
    return len(session)


def _doctest(text: str, page: Path) -> int:
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=_LOOSE).run(test, out=said.append)
    assert result.failed == 0, "".join(said)
    return result.attempted


def _compare(exchange: Exchange, got: str) -> None:
    same = doctest.OutputChecker().check_output(exchange.output, got, _LOOSE)
    assert same, f"$ {exchange.command}expected:\n{exchange.output}got:\n{got}"
