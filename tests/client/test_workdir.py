from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.agent.unpack import unpack
from everstep.client import workdir
from everstep.client.workdir import Packed, list_files, list_workdir, pack_workdir
from everstep.model.errors import BadInput


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "archives"
    folder.mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _members(packed: Packed) -> list[tarfile.TarInfo]:
    with tarfile.open(packed.archive) as tar:
        return tar.getmembers()


def _names(packed: Packed) -> list[str]:
    return [m.name for m in _members(packed)]


def _said(caught: pytest.ExceptionInfo[BadInput]) -> str:
    return "\n".join(str(p) for p in caught.value.problems)


# --- the archive -----------------------------------------------------------------------------------------------------


def test_the_archive_is_sorted_and_anonymous(root: Path, out: Path) -> None:
    _write(root, {"b.py": "bb", "a/z.txt": "z", "a.sh": "#!/bin/sh", "empty": ""})
    (root / "a.sh").chmod(0o750)
    (root / "b.py").chmod(0o600)
    (root / "hollow").mkdir()
    packed = pack_workdir(root, into=out)
    members = _members(packed)
    assert [(m.name, m.mode) for m in members] == [
        ("a.sh", 0o755),
        ("a/z.txt", 0o644),
        ("b.py", 0o644),
        ("empty", 0o644),
    ]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert (packed.files, packed.total_bytes, packed.skipped) == (4, 12, ())
    assert packed.digest == hashlib.sha256(packed.archive.read_bytes()).hexdigest()
    assert packed.archive == out / f"{packed.digest}.tar.gz"
    assert packed.archive_bytes == packed.archive.stat().st_size
    assert list(out.iterdir()) == [packed.archive]


def test_equal_folders_give_equal_bytes(tmp_path: Path, out: Path) -> None:
    files = {f"f{i}": str(i) for i in range(20)} | {"d/x": "x"}
    for name, order in (("one", list(files)), ("two", list(reversed(files)))):
        _write(tmp_path / name, {key: files[key] for key in order})
    os.utime(tmp_path / "one" / "f3", (1, 1))
    one, two = pack_workdir(tmp_path / "one", into=out), pack_workdir(tmp_path / "two", into=out)
    assert one.digest == two.digest
    _write(tmp_path / "two", {"f3": "other"})
    assert pack_workdir(tmp_path / "two", into=out).digest != one.digest


def test_an_empty_folder(root: Path, out: Path) -> None:
    packed = pack_workdir(root, into=out)
    assert (_names(packed), packed.files, packed.total_bytes) == ([], 0, 0)


def test_odd_names_survive(root: Path, out: Path) -> None:
    names = ["ü.txt", "with space", "-dash", "a" * 200, "new\nline", os.fsdecode(b"\xff\xfe")]
    for name in names:
        (root / name).write_text(name, errors="surrogateescape")
    target = out / "unpacked"
    packed = pack_workdir(root, into=out)
    target.mkdir()
    with tarfile.open(packed.archive) as tar:
        unpack(tar, target)
    assert sorted(os.listdir(target)) == sorted(names)


# --- ignore files ----------------------------------------------------------------------------------------------------


def test_ignore_files_nested_with_negation(root: Path, out: Path) -> None:
    _write(
        root,
        {
            ".gitignore": "*.log\n!keep.log\nbuild/\n/top-only\n# a comment\n\\#odd\n!\n[z-a]\n",
            "a.log": "",
            "keep.log": "",
            "build/x": "",
            "src/build/y": "",
            "top-only": "",
            "src/top-only": "",
            "#odd": "",
            "src/.gitignore": "!b.log\nlocal\n",
            "src/b.log": "",
            "src/local": "",
            "local": "",
            "data/.gitignore": "*\n!.gitignore\n",
            "data/huge": "",
            ".git/config": "",
            "sub/.git": "gitdir: elsewhere",
            "sub/x": "",
        },
    )
    assert _names(pack_workdir(root, into=out)) == [
        ".gitignore",
        "data/.gitignore",
        "keep.log",
        "local",
        "src/.gitignore",
        "src/b.log",
        "src/top-only",
        "sub/x",
    ]


def test_nothing_inside_an_excluded_folder_comes_back(root: Path, out: Path) -> None:
    _write(root, {".gitignore": "logs/\n!logs/keep\n", "logs/keep": "", "logs/.gitignore": "!*\n", "x": ""})
    assert _names(pack_workdir(root, into=out)) == [".gitignore", "x"]


def test_a_skyignore_counts_alone(root: Path, out: Path) -> None:
    _write(
        root,
        {".gitignore": "*.bin\n", ".skyignore": "*.md\n", "a.bin": "", "a.md": "", "d/.gitignore": "x\n", "d/x": ""},
    )
    assert _names(pack_workdir(root, into=out)) == [".gitignore", ".skyignore", "a.bin", "d/.gitignore", "d/x"]


def test_reports_of_checks_stay_here(root: Path, out: Path) -> None:
    _write(root, {"train.py": "", ".everstep/check/train-1/report.html": "", "sub/.everstep/check/x": "", "sub/x": ""})
    assert _names(pack_workdir(root, into=out)) == ["sub/x", "train.py"]


def test_data_folders_are_packed_whole(root: Path, out: Path) -> None:
    _write(root, {".gitignore": "*.bin\n", "a.bin": "", ".git/x": "", ".everstep/x": ""})
    assert _names(list_workdir(root, honour_ignore_files=False).pack(into=out)) == [
        ".everstep/x",
        ".gitignore",
        "a.bin",
    ]


_PATTERNS = [
    "*.log",
    "!a.log",
    "build/",
    "/x",
    "d/*",
    "!d/a.log",
    "**/x",
    "a*",
    "d/**/x",
    "*",
    "!*/",
    "!d/e/x",
    "e",
    "[ab].log",
    "[!a].log",
    "?.log",
    "**/",
    "d/**",
    "!d/**",
    "**",
    "d/e/",
    "\\x",
    "x ",
    "[[:alpha:]].log",
    "[",
    "a.log\\",
    "d**x",
    "/d/*/x",
]
_FILES = ["x", "a.log", "b.log", "build/x", "d/a.log", "d/x", "d/e/x", "d/e/a.log", "d/build/x", "e"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git as the judge")
@settings(max_examples=60, deadline=None)
@given(top=st.lists(st.sampled_from(_PATTERNS), max_size=4), inner=st.lists(st.sampled_from(_PATTERNS), max_size=3))
def test_git_agrees(tmp_path_factory: pytest.TempPathFactory, top: list[str], inner: list[str]) -> None:
    root, out = tmp_path_factory.mktemp("judged"), tmp_path_factory.mktemp("out")
    _write(root, dict.fromkeys(_FILES, "") | {".gitignore": "\n".join(top), "d/.gitignore": "\n".join(inner)})
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(out)}
    subprocess.run(["git", "init", "-q"], cwd=root, check=True, env=environment)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert _names(pack_workdir(root, into=out)) == sorted(listed.stdout.splitlines())


# --- links and special files -----------------------------------------------------------------------------------------


def test_links_are_kept_when_they_stay_inside(root: Path, out: Path, tmp_path: Path) -> None:
    _write(root, {"a/file": "x", "b/other": "y"})
    (tmp_path / "outside").write_text("secret")
    links = {
        "good": "a/file",
        "a/up": "../b/other",
        "folder": "a",
        "absolute": str(root / "a/file"),
        "out": "../outside",
        "a/far": "../../outside",
        "round": "../code/a/file",
        "gone": "nowhere",
        "loop": "loop",
    }
    for name, aim in links.items():
        (root / name).symlink_to(aim)
    os.mkfifo(root / "pipe")
    packed = pack_workdir(root, into=out)
    kept = {m.name: m.linkname for m in _members(packed) if m.issym()}
    assert kept == {name: links[name] for name in ("good", "a/up", "folder")}
    assert packed.skipped == ("a/far", "absolute", "gone", "loop", "out", "pipe", "round")
    target = tmp_path / "unpacked"
    target.mkdir()
    with tarfile.open(packed.archive) as tar:
        unpack(tar, target)  # the agent accepts all of it
    assert (target / "folder" / "up").read_text() == "y"


def test_a_link_to_the_folder_itself_is_fine_as_workdir(root: Path, out: Path, tmp_path: Path) -> None:
    _write(root, {"x": "x"})
    (tmp_path / "alias").symlink_to(root)
    assert pack_workdir(tmp_path / "alias", into=out).digest == pack_workdir(root, into=out).digest


# --- refusals --------------------------------------------------------------------------------------------------------


def test_too_large_names_the_five_largest(root: Path, out: Path) -> None:
    for i in range(7):
        (root / f"f{i}").write_bytes(b"x" * 1024 * (i + 1))
    with pytest.raises(BadInput) as caught:
        pack_workdir(root, into=out, limit_bytes=20 * 1024)
    assert _said(caught) == (
        f"{root}: workdir: has 28.0 KiB, at most 20.0 KiB; the largest files are f6 (7.0 KiB), f5 (6.0 KiB), "
        "f4 (5.0 KiB), f3 (4.0 KiB), f2 (3.0 KiB); list what is not needed in .gitignore or .skyignore"
    )
    assert list(out.iterdir()) == []
    assert pack_workdir(root, into=out, limit_bytes=28 * 1024).files == 7


def test_too_many_files(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir, "MAX_FILES", 2)
    _write(root, {"a": "", "b": "", "c": ""})
    with pytest.raises(BadInput, match=r"has 3 files, at most 2 are packed"):
        pack_workdir(root, into=out)


def test_unreadable_files_are_named(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(root, {"open": "", "closed": "", "d/closed": ""})
    # As root every file is readable, so the answer of the operating system is played.
    monkeypatch.setattr(workdir.os, "access", lambda path, _mode: path.name != "closed")
    with pytest.raises(BadInput, match=r"workdir: cannot be read: closed, d/closed; list what is not needed"):
        pack_workdir(root, into=out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_folder_is_named(root: Path, out: Path) -> None:
    _write(root, {"d/x": ""})
    (root / "d").chmod(0)
    try:
        with pytest.raises(BadInput, match=r"cannot be read: d;"):
            pack_workdir(root, into=out)
    finally:
        (root / "d").chmod(0o700)


def test_a_file_that_vanishes_while_packing_leaves_nothing_behind(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(root, {"a": "x", "b": "y"})
    monkeypatch.setattr(workdir.os, "access", lambda path, _mode: not path.unlink(missing_ok=True))
    with pytest.raises(BadInput, match=r"workdir: cannot be read: a \(no such file or directory\)"):
        pack_workdir(root, into=out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_no_folder(root: Path, out: Path, name: str) -> None:
    (root / "file").write_text("")
    with pytest.raises(BadInput, match=r"workdir: there is no such folder"):
        pack_workdir(root / name, into=out)


# --- single files ----------------------------------------------------------------------------------------------------


def test_single_files_get_their_new_names(root: Path, out: Path) -> None:
    _write(root, {"a.json": "A", "b.json": "B"})
    packed = list_files({"two/b": root / "b.json", "one": root / "a.json"}).pack(into=out)
    assert _names(packed) == ["one", "two/b"]
    with tarfile.open(packed.archive) as tar:
        file = tar.extractfile("two/b")
        assert file is not None
        assert file.read() == b"B"


def test_a_missing_single_file_is_named(root: Path) -> None:
    with pytest.raises(BadInput) as caught:
        list_files({"x": root / "gone"}, key="file_mounts./d")
    assert _said(caught).startswith(f"file_mounts: file_mounts./d: cannot be read: {root}/gone")
