from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module, metadata

import pytest

import everstep


def test_the_public_names_are_pinned() -> None:
    assert set(everstep.__all__) == {"Client", "Task", "__version__", "load_task", "run"}


def test_the_version_is_the_one_that_is_installed() -> None:
    assert everstep.__version__ == metadata.version("everstep")


@pytest.mark.parametrize("name", everstep.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(everstep, name) is not None
    assert name in dir(everstep)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = everstep.nothing


def test_names_load_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everstep, "_EXPORTS", {"dumps": "json", "tool": "json.tool"})
    assert everstep.dumps is json.dumps
    assert everstep.tool is import_module("json.tool")
    for name in ("dumps", "tool"):
        monkeypatch.delitem(vars(everstep), name)


def test_import_loads_nothing_of_ours_and_no_package() -> None:
    script = "import sys; before = set(sys.modules); import everstep; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert tops - sys.stdlib_module_names == {"everstep"}
    assert [name for name in done.stdout.split() if name.startswith("everstep.")] == []
