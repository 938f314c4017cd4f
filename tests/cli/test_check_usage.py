"""Bad command lines of `everstep check`: one clear line, exit code 2, nothing run and nothing written."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from everstep.cli.check import Bars
from tests.cli.conftest import Cli

CASES = [
    ("check", "everstep check: the command is missing; write everstep check -- python train.py"),
    ("check --", "everstep check: the command is missing after --; write everstep check -- python train.py"),
    ("check train.py", "everstep check: unexpected: train.py; write everstep check -- python train.py"),
    ("check --kills 0 -- PY train.py", "everstep check: --kills: expected 1 or more"),
    ("check --kills some -- PY train.py", "everstep check: --kills: expected a whole number"),
    ("check --grace -1 -- PY train.py", "everstep check: --grace: expected 0 or more"),
    ("check --steps 2 -- PY train.py", "everstep check: --steps: expected 3 or more"),
    ("check --nproc 0 -- PY train.py", "everstep check: --nproc: expected 1 or more"),
    ("check --rate -1 -- PY train.py", "everstep check: --rate: expected 0 or more"),
    (
        "check --mode all -- PY train.py",
        "everstep check: --mode: 'all' is not one of 'auto', 'script', 'library', 'off'",
    ),
    ("check --kils 1 -- PY train.py", "everstep check: there is no option --kils; did you mean --kills?"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "project"
    work.mkdir()
    (work / "train.py").write_text("raise SystemExit('must not run')\n")
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize(("line", "text"), CASES, ids=[line for line, _ in CASES])
def test_one_clear_line_and_nothing_run(cli: Cli, folder: Path, line: str, text: str) -> None:
    done = cli(*(sys.executable if word == "PY" else word for word in shlex.split(line)))
    assert (done.code, done.err, done.out) == (2, f"{text}\n", "")
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_folder_that_holds_something_is_not_taken(cli: Cli, folder: Path) -> None:
    done = cli("check", "--dir", ".", "--", sys.executable, "train.py")
    assert done.code == 2
    assert "everstep check: --dir: " in done.err
    assert "holds something; name a new or empty folder" in done.err


def test_the_bars_learn_the_length_from_the_first_run() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console) as bars:
        show = Bars(bars, None)
        for what, steps in (("plain", 7), ("plain", 40), ("again", 3), ("kill 1", 12), ("kill 1", 20)):
            show(what, steps)
        told = [(task.description, task.completed, task.total) for task in bars.tasks]
    assert told == [("plain run", 40, 40), ("plain run, again", 3, 40), ("kill 1", 20, 40)]
