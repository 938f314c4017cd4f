"""The witness: equal digests where values are equal and only there, links that become copies, hooks around imports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.train.script.witness.digest import Digests, flatten
from everstep.train.script.witness.imports import around_import
from everstep.train.script.witness.links import Links
from everstep.train.script.witness.state import Seen


def digests(value: object) -> Digests:
    found: Digests = {}
    flatten(value, "x", found)
    return found


class Thing:
    def __init__(self, at: int) -> None:
        self.at = at
        self.itself = self


BASE = torch.arange(6.0)
PAIRS: list[tuple[object, object]] = [
    (torch.zeros(2), torch.tensor([0.0, -0.0])),
    (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.5], dtype=torch.bfloat16)),
    (torch.tensor([1j]), torch.tensor([1j]).conj()),
    (torch.tensor([True]), torch.tensor([False])),
    ({"a": 1}, {"a": 1.0}),
    ([1, [2]], [1, [3]]),
    ({1, 2}, {1, 3}),
    (Thing(1), Thing(2)),
    (float("nan"), 0.0),
    (torch.eye(3).to_sparse(), torch.zeros(3, 3).to_sparse()),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[str(at) for at in range(len(PAIRS))])
def test_different_values_have_different_digests(one: object, other: object) -> None:
    assert digests(one) != digests(other)
    assert digests(one) == digests(one)


def test_views_and_copies_of_a_value_have_its_digest() -> None:
    strided = torch.stack([BASE, BASE], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert digests(strided) == digests(BASE.clone()) == digests(torch.nn.Parameter(BASE))


def test_digests_draw_nothing_and_change_nothing() -> None:
    seen = Seen()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 2)).sum().backward()
    optimizer.step()
    seen.optimizer(optimizer)
    before = torch.get_rng_state()
    first, second = seen.digests(), seen.digests()
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    (told,) = first["optimizers"]
    assert list(told["parameters"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert {"1.running_mean", "1.num_batches_tracked"} <= set(told["buffers"])
    assert {"0.weight.exp_avg", "0.weight.step"} <= set(told["state"])
    optimizer.param_groups[0]["lr"] = 0.5
    assert seen.digests()["optimizers"][0]["groups"] != told["groups"]


@pytest.mark.expensive(family="audits")
def test_many_optimizers_do_not_keep_all_their_models_alive() -> None:
    seen = Seen()
    for _ in range(30):
        model = torch.nn.Linear(1, 1)
        seen.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(seen.digests()["optimizers"]) == 8


def test_layers_that_come_later_have_the_names_that_a_resumed_process_sees() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    early, late = Seen(), Seen()
    early.optimizer(optimizer)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    for seen in (early, late):
        seen.optimizer(optimizer)
    assert early.digests() == late.digests()
    assert "1.weight" in early.digests()["optimizers"][0]["parameters"]


def test_files_of_torch_are_compared_by_content(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": "text"}, tmp_path / "one.pt")
    torch.save({"a": torch.ones(2), "b": "".join(["te", "xt"])}, tmp_path / "same.pt")
    torch.save({"a": torch.zeros(2), "b": "text"}, tmp_path / "other.pt")
    (tmp_path / "log.txt").write_text("1")
    found = Seen().torch_files(str(tmp_path))
    assert set(found) == {"one.pt", "same.pt", "other.pt"}
    assert found["one.pt"] == found["same.pt"] != found["other.pt"]


def test_calls_around_the_first_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brand_new_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    calls: list[str] = []
    around_import("brand_new_module", lambda: calls.append("before"), lambda: calls.append("after"))
    __import__("importlib.util").util.find_spec("brand_new_module")
    assert calls == []
    module: Any = __import__("brand_new_module")
    assert (calls, module.value) == (["before", "after"], 1)
    around_import("brand_new_module", lambda: calls.append("again"), lambda: None)
    assert calls[-1] == "again"
    monkeypatch.delitem(sys.modules, "brand_new_module")


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    original, work = tmp_path / "original", tmp_path / "work"
    original.mkdir()
    work.mkdir()
    (original / "data.bin").write_bytes(b"precious")
    (work / "data.bin").symlink_to(original / "data.bin")
    return original, work


WRITES = {
    "append": "open('data.bin', 'ab').write(b'!')",
    "truncate": "open('data.bin', 'wb')",
    "update": "open('data.bin', 'r+b').write(b'!')",
    "pathlib": "import pathlib; pathlib.Path('data.bin').write_bytes(b'new')",
    "descriptor": "import os; os.write(os.open('data.bin', os.O_RDWR), b'!')",
    "os.truncate": "import os; os.truncate('data.bin', 1)",
    "replace": "open('x', 'w').close(); import os; os.replace('x', 'data.bin')",
    "remove": "import os; os.remove('data.bin')",
}


@pytest.mark.parametrize("how", WRITES)
def test_what_the_script_writes_to_is_its_own(linked: tuple[Path, Path], how: str) -> None:
    original, work = linked
    # A hook cannot be taken out again: in a process of its own.
    guard = (
        "import sys; sys.path.insert(0, sys.argv[1]); from witness.links import Links; Links('.', ['data.bin']).guard()"
    )
    package = Path(__file__).parents[3] / "src" / "everstep" / "train" / "script"
    code = f"{guard}\n{WRITES[how]}\n"
    subprocess.run([sys.executable, "-c", code, str(package)], cwd=work, check=True)
    assert (original / "data.bin").read_bytes() == b"precious"
    assert not (work / "data.bin").is_symlink()


def test_reading_leaves_the_link(linked: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, work = linked
    monkeypatch.chdir(work)
    Links(str(work), ["data.bin"])._look("open", ("data.bin", "rb", os.O_RDONLY))
    assert (work / "data.bin").is_symlink()


def test_torch_save_over_a_link(linked: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    original, work = linked
    module = types.SimpleNamespace(save=lambda thing, file: Path(file).write_bytes(thing))
    Links(str(work), ["data.bin"]).guard_torch_save(module)
    module.save(b"weights", work / "data.bin")
    assert (original / "data.bin").read_bytes() == b"precious"
    assert (work / "data.bin").read_bytes() == b"weights"


def test_without_the_variable_the_hook_does_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import witness; witness.start(); print(sorted(sys.modules))"
    )
    package = Path(__file__).parents[3] / "src" / "everstep" / "train" / "script"
    env = {name: value for name, value in os.environ.items() if name != "EVERSTEP_WITNESS"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(package)], env=env, check=True, capture_output=True, text=True
    )
    assert "'witness'" in done.stdout
    assert "witness.process" not in done.stdout


def test_a_process_without_torch_leaves_its_evidence(tmp_path: Path) -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import witness; witness.start(); import random\n"
        "assert 'EVERSTEP_WITNESS' not in os.environ; print(random.random())"
    )
    package = Path(__file__).parents[3] / "src" / "everstep" / "train" / "script"
    told = {"folder": str(tmp_path), "ranks": False, "seed": 7, "steps": None, "seconds": None}
    env = {
        **os.environ,
        "EVERSTEP_WITNESS": json.dumps(
            {**told, "plain": None, "reached": 0, "reported": False, "work": str(tmp_path), "linked": []}
        ),
    }
    command = [sys.executable, "-c", code, str(package)]
    drawn = {subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout for _ in range(2)}
    assert len(drawn) == 1
    assert [line.split()[1] for line in (tmp_path / "rank-0.trail").read_text().splitlines()] == ["started"] * 2
    assert json.loads((tmp_path / "rank-0.json").read_text())["steps"] == 0


def test_the_sites_own_hook_still_runs(tmp_path: Path) -> None:
    package = Path(__file__).parents[3] / "src" / "everstep" / "train" / "script" / "witness"
    hook, site = tmp_path / "hook", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.of_the_site = True\n")
    shutil.copytree(package, hook / "everstep_witness")
    shutil.copyfile(package / "startup.py", hook / "sitecustomize.py")
    env = {**os.environ, "PYTHONPATH": f"{hook}{os.pathsep}{site}"}
    done = subprocess.run(
        [sys.executable, "-c", "print(of_the_site)"], env=env, check=True, capture_output=True, text=True
    )
    assert done.stdout == "True\n"
