"""A second run for a few tests that failed: alone, and its verdict counts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.run_tests import MOST, main
from tests.conftest import without_group


class _Runs:
    """Answers prepared beforehand; keeps what was asked for."""

    def __init__(self, *answers: tuple[int, list[str]]) -> None:
        self._answers = list(answers)
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> tuple[int, list[str]]:
        self.asked.append(list(arguments))
        return self._answers.pop(0)


def test_what_failed_runs_again_alone_and_that_decides(capsys: pytest.CaptureFixture[str]) -> None:
    runs = _Runs((1, ["a::b", "a::c"]), (0, []))
    assert main(["tests"], runs) == 0
    assert runs.asked[1] == ["a::b", "a::c"]
    assert "PASSED ALONE" in capsys.readouterr().out
    assert main([], _Runs((1, ["a::b"]), (1, ["a::b"]))) == 1


@pytest.mark.parametrize(
    ("status", "failed"),
    [(0, []), (2, ["a::b"]), (3, []), (1, []), (1, [f"a::{number}" for number in range(MOST + 1)])],
    ids=["passed", "interrupted", "pytest broke", "nobody says which", "too many"],
)
def test_nothing_else_gets_a_second_run(status: int, failed: list[str]) -> None:
    runs = _Runs((status, failed))
    assert main([], runs) == status
    assert len(runs.asked) == 1


@pytest.mark.parametrize(
    ("reported", "named"),
    [
        ("tests/e2e/test_a.py::test_b[two words]@heavy end", "tests/e2e/test_a.py::test_b[two words]"),
        ("tests/test_a.py::test_b[me@home]", "tests/test_a.py::test_b[me@home]"),
        ("tests/test_a.py::test_b@heavy", "tests/test_a.py::test_b"),
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b"),
    ],
)
def test_a_test_is_named_without_its_group(reported: str, named: str) -> None:
    assert without_group(reported) == named


def test_tests_of_one_group_share_a_worker(tmp_path: Path) -> None:
    """pytest and xdist must fit: with some pairs of versions the groups are forgotten, silently."""
    tmp_path.joinpath("test_group.py").write_text(
        "import pytest, os\n"
        "@pytest.mark.xdist_group('one group')\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(number): open(os.environ['PYTEST_XDIST_WORKER'], 'a').close()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("gw*"))) == 1
