"""Load what the agent and the training library load on the oldest Pythons they promise, where those are installed.

``scripts/check_floor.py`` judges the same files everywhere, without running them.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.check_floor import FLOORS, loaded_by
from scripts.source_tree import Source, imports, sources
from tests.architecture.planted import REPOSITORY


@functools.cache
def by_module() -> dict[str, Source]:
    """Every module of everstep, parsed when somebody asks: most workers of a test run do not."""
    return {source.module: source for source in sources(REPOSITORY)}


def interpreter(minor: int) -> str:
    """A Python 3.`minor` that really runs (version managers leave shims on PATH that do not)."""
    candidates = [shutil.which(f"python3.{minor}"), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")]
    for candidate in candidates:
        if candidate is not None:
            command = [str(candidate), "-c", "import sys; print(sys.version_info[1])"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() == str(minor):
                return str(candidate)
    pytest.skip(f"no Python 3.{minor} on this machine")


@functools.cache
def imports_torch(module: str) -> bool:
    return any(found.module.partition(".")[0] == "torch" for found in imports(by_module()[module]))


def needs_torch(module: str) -> bool:
    return any(map(imports_torch, loaded_by(module, by_module())))


@pytest.mark.expensive(family="old Pythons")
@pytest.mark.parametrize("part", FLOORS)
def test_it_loads_on_its_oldest_python(part: str, tmp_path: Path) -> None:
    modules = sorted(loaded_by(f"everstep.{part}", by_module()))
    if f"everstep.{part}" not in modules:
        pytest.skip(f"everstep.{part} does not exist yet")
    python = interpreter(FLOORS[part])
    # Without torch there (it is not ours to install), what needs it is compiled and the rest is run.
    runnable = [name for name in modules if not name.endswith("__main__") and not needs_torch(name)]
    lines = ["import sys", f"sys.path.insert(0, {str(REPOSITORY / 'src')!r})"]
    lines += [f"compile(open({str(by_module()[name].path)!r}).read(), {name!r}, 'exec')" for name in modules]
    lines += [f"import {name}" for name in runnable]
    command = [python, "-I", "-B", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
