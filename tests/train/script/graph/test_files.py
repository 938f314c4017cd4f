"""Open files in globals of the script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.script.graph.relaunch import Script


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("0123456789")
    return path


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """What is in it is closed at the end."""
    files: list[Any] = []
    yield files
    for one in files:
        one.close()


def go_on(file: Any, mode: str, path: Path) -> str:
    new = b"xy" if "b" in mode else "xy"
    said = file.read(2) if "r" in mode else file.write(new)
    if file.writable():
        file.flush()
    return f"{said} {path.read_text()}"


@pytest.mark.parametrize("relaunch_opens_it", [True, False])
@pytest.mark.parametrize("mode", ["w", "a", "r", "r+", "wb", "ab", "rb", "r+b"])
def test_an_open_file_comes_back(file: Path, opened: list[Any], mode: str, relaunch_opens_it: bool) -> None:
    opens = f"f = open({str(file)!r}, {mode!r})"
    script = Script(opens if relaunch_opens_it else f"def step(i):\n    global f\n    {opens}\nf = None")
    if not relaunch_opens_it:
        script.run(0, 1)
    go_on(script.module.f, mode, file)
    captured = script.capture()
    assert captured.problems == []
    contents = file.read_text()
    expected = go_on(script.module.f, mode, file)
    script.module.f.close()
    again = Script(opens if relaunch_opens_it else "f = None")
    file.write_text(contents)  # as the launcher puts files back
    again.restore(captured)
    opened.append(again.module.f)
    assert go_on(again.module.f, mode, file) == expected


def test_a_closed_file_comes_back_closed(file: Path) -> None:
    script = Script(f"f = open({str(file)!r})\ndef step(i):\n    f.close()")
    script.run(0, 1)
    captured = script.capture()
    again = Script(f"f = open({str(file)!r})")
    before = again.module.f
    assert again.restore(captured).module.f.closed
    before.close()


def test_a_pipe_is_a_problem(opened: list[Any]) -> None:
    reader, writer = os.pipe()
    script = Script("f = None")
    script.module.f = os.fdopen(reader, "rb")
    opened += [script.module.f, os.fdopen(writer, "wb")]
    [problem] = script.capture().problems
    assert "a pipe or a file without a path cannot be opened again" in str(problem)


def test_a_file_in_the_middle_of_its_lines_is_a_problem(file: Path, opened: list[Any]) -> None:
    file.write_text("a\nb\n")
    script = Script(f"f = open({str(file)!r})\nfirst = next(f)")
    opened.append(script.module.f)
    [problem] = script.capture().problems
    assert "telling position disabled by next() call" in str(problem)
