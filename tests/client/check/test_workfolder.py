from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.client.check import workfolder
from everstep.client.check.workfolder import Original


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    for name in ("train.py", "data/small.txt", ".git/HEAD", "__pycache__/x.pyc", ".everstep/old", "env/pyvenv.cfg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_the_script_finds_its_folder_as_it_is(user: Path, tmp_path: Path) -> None:
    work = Original(user, tmp_path / "apart").make(tmp_path / "work")
    assert (work.path / "data" / "small.txt").read_text() == "data/small.txt"
    assert not (work.path / "train.py").is_symlink()
    assert (work.path / ".git").is_symlink()
    assert (work.path / "env").is_symlink()
    assert not (work.path / ".everstep").exists()
    assert not (work.path / "__pycache__").exists()
    assert work.written() == {}


def test_large_files_are_links(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workfolder, "_COPIED_FILE", 10)
    work = Original(user, tmp_path / "apart").make(tmp_path / "work")
    assert work.linked == ("data/small.txt",)
    assert (work.path / "data/small.txt").resolve() == user / "data/small.txt"


def test_what_a_run_wrote_changed_and_deleted(user: Path, tmp_path: Path) -> None:
    original = Original(user, tmp_path / "apart")
    work = original.make(tmp_path / "work")
    (work.path / "out" / "deep").mkdir(parents=True)
    (work.path / "out" / "deep" / "weights").write_text("w")
    (work.path / "train.py").write_text("other")
    (work.path / "data" / "small.txt").unlink()
    assert set(work.written()) == {"out/deep/weights", "train.py"}
    assert work.missing() == ("data/small.txt",)
    assert original.disturbed() is None


def test_checkpoints_of_everstep_are_not_compared(user: Path, tmp_path: Path) -> None:
    work = Original(user, tmp_path / "apart").make(tmp_path / "work")
    (work.path / "checkpoints" / "attempts").mkdir(parents=True)
    (work.path / "checkpoints" / "attempts" / "000001.json").write_text("{}")
    assert work.written() == {}


def test_a_write_to_the_users_file_is_noticed(user: Path, tmp_path: Path) -> None:
    original = Original(user, tmp_path / "apart")
    os.utime(user / "train.py", ns=(1, 1))
    assert original.disturbed() == "train.py"


def test_the_report_inside_the_folder_is_not_part_of_it(user: Path, tmp_path: Path) -> None:
    (user / "report").mkdir()
    (user / "report" / "x").write_text("")
    work = Original(user, user / "report").make(tmp_path / "work")
    assert not (work.path / "report").exists()
