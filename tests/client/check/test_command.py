from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everstep.client.check.command import probe, read_command
from everstep.model.errors import BadInput, EverstepError

BAD = [
    ("", "the command is missing after --"),
    ("bash run.sh", "the command must begin with a Python interpreter, found 'bash'"),
    ("torchrun train.py", "the command must begin with a Python interpreter"),
    ("PY", "the script is missing"),
    ("PY -u", "the script is missing"),
    ("PY missing.py", "there is no file 'missing.py'"),
    ("PY -c pass", "a command given with -c cannot be resumed"),
    ("PY -", "a script read from standard input cannot be resumed"),
    ("PY -I train.py", "with -I Python takes no start-up hook"),
    ("PY -uE train.py", "with -uE Python takes no start-up hook"),
    ("PY -m", "the module is missing after -m"),
    ("/nowhere/python train.py", "there is no program '/nowhere/python'"),
]
GOOD = [
    ("PY train.py", (), ("train.py",), ()),
    ("PY train.py --lr 1 -u", (), ("train.py",), ("--lr", "1", "-u")),
    ("PY -u -X dev -Werror train.py", ("-u", "-X", "dev", "-Werror"), ("train.py",), ()),
    ("PY -O -m pkg.train --epochs 3", ("-O",), ("-m", "pkg.train"), ("--epochs", "3")),
]


def words(line: str) -> list[str]:
    return [sys.executable if word == "PY" else word for word in line.split()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(("line", "said"), BAD, ids=[line or "nothing" for line, _ in BAD])
def test_what_cannot_be_checked_is_told(folder: Path, line: str, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_command(words(line), folder)
    assert str(raised.value.problems[0]).startswith("everstep check: ")
    assert said in str(raised.value.problems[0])


@pytest.mark.parametrize(("line", "options", "target", "arguments"), GOOD)
def test_a_command_is_taken_apart(
    folder: Path, line: str, options: tuple[str, ...], target: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    command = read_command(words(line), folder)
    assert (command.options, command.target, command.arguments) == (options, target, arguments)
    assert command.name == "train"
    assert Path(command.python).is_absolute()


def test_a_python_without_torch_is_told_at_once(folder: Path) -> None:
    made = folder / "python"
    made.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    made.chmod(0o755)
    with pytest.raises(EverstepError, match="has no torch"):
        probe(read_command(["./python", "train.py"], folder))
