"""Files over relaunches: every life is a process of its own that is killed without a word."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from everstep.train.script.output import keeping
from tests.train.script.outputs import KILLED, Life

BIG = 3 << 20


@pytest.fixture
def life(tmp_path: Path) -> Life:
    work = tmp_path / "work"
    work.mkdir()
    return Life(work)


def text(life: Life, name: str) -> str:
    return (life.work / name).read_text()


def nothing() -> None:
    pass


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.expensive(family="script drills")
@pytest.mark.parametrize("mode", ["w", "a", "x"])
@pytest.mark.parametrize("before", [None, "old\n"])
def test_a_log_that_is_held_open_goes_on_where_it_was(life: Life, mode: str, before: str | None) -> None:
    if before is not None:
        if mode == "x":
            return
        (life.work / "log").write_text(before)

    def setup() -> TextIO:
        log = open("log", mode)  # noqa: SIM115
        print("header", file=log)
        return log

    def says(*words: str) -> Callable[[TextIO], None]:
        return lambda log: [print(word, file=log) for word in words] and log.flush()

    life(setup, says("one", "two"), says("lost"))
    life(setup, nothing, until="replay")
    life(setup, says("three"), says("lost too"))
    assert life(setup, says("four")) == 0
    assert text(life, "log") == (before if before and mode == "a" else "") + "header\none\ntwo\nthree\nfour\n"


@pytest.mark.parametrize("before", ["", "x" * BIG])
def test_a_big_log_is_cut_not_copied_into_the_save(life: Life, before: str) -> None:
    if before:
        (life.work / "log").write_text(before)

    def append(line: str) -> Callable[[], None]:
        def run() -> None:
            with open("log", "a") as log:
                log.write(line)

        return run

    life(nothing, append("y" * BIG), append("lost"))
    assert len(str(life.saved())) < BIG / 2
    assert life(lambda: print(os.path.exists("log")), append("z")) == 0
    assert text(life, "log") == before + "y" * BIG + "z"


def test_setup_sees_the_world_of_the_first_start(life: Life) -> None:
    (life.work / "state.txt").write_text("first")
    seen = life.folder / "seen"

    def setup() -> None:
        line = [Path("state.txt").read_text(), str(sorted(path.name for path in Path(".").iterdir()))]
        fd = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, (" ".join(line) + "\n").encode())
        os.close(fd)

    def work() -> None:
        Path("state.txt").write_text("second")
        Path("new.txt").write_text("made")
        os.makedirs("runs/a")
        torch.save([1], "runs/a/model.pt")

    assert life(setup, work, nothing) == 0
    assert life(setup, nothing) == 0
    first, again = seen.read_text().splitlines()
    assert first == again
    assert text(life, "state.txt") == "second"
    assert text(life, "new.txt") == "made"
    assert torch.load(life.work / "runs/a/model.pt") == [1]


def test_a_start_over_finds_the_first_world(life: Life) -> None:
    (life.work / "kept.txt").write_text("first")

    def work() -> None:
        Path("kept.txt").write_text("second")
        Path("made.txt").write_text("made")

    def look() -> None:
        assert text(life, "kept.txt") == "first"
        assert not os.path.exists("made.txt")

    life(nothing, work)
    assert life(look, nothing) == 0


# --- whole files ------------------------------------------------------------------------------------------------------


def test_small_files_are_those_of_the_save(life: Life) -> None:
    def before() -> None:
        Path("best.txt").write_text("epoch 1")
        Path("gone.txt").write_text("gone")
        Path("renamed.tmp").write_text("renamed")
        os.replace("renamed.tmp", "renamed.txt")
        torch.save({"epoch": 1}, "best.pt")

    def after() -> None:
        Path("best.txt").write_text("epoch 2")
        os.remove("gone.txt")
        Path("later.txt").write_text("later")
        os.rename("renamed.txt", "elsewhere.txt")
        torch.save({"epoch": 2}, "best.pt")
        os.symlink("best.pt", "latest")

    life(nothing, before, after)
    life(nothing, until="replay")
    assert life(nothing, nothing) == 0
    names = sorted(path.name for path in life.work.iterdir() if path.name != ".ck")
    assert names == ["best.pt", "best.txt", "gone.txt", "renamed.txt"]
    assert text(life, "best.txt") == "epoch 1"
    assert torch.load(life.work / "best.pt") == {"epoch": 1}


def test_a_folder_that_is_removed_after_the_save_is_there_again(life: Life) -> None:
    """`shutil.rmtree` names what it removes relative to an open folder."""

    def before() -> None:
        os.makedirs("deep/er")
        Path("deep/er/file").write_text("kept")

    (life.work / "old").mkdir()
    (life.work / "old/file").write_text("old")
    life(nothing, before, lambda: [shutil.rmtree(name) for name in ("deep", "old")])
    assert life(nothing, nothing) == 0
    assert text(life, "deep/er/file") == "kept"
    assert text(life, "old/file") == "old"
    assert sorted(os.listdir(life.work)) == [".ck", "deep", "old"]


def test_what_the_replay_writes_does_not_survive(life: Life) -> None:
    def setup() -> None:
        torch.save([0], "init.pt")
        Path("config.txt").write_text("written by the setup")
        Path(f"run-{os.getpid()}").write_text("named by the process")

    def work() -> None:
        Path("config.txt").write_text("by the training")
        torch.save([1], "init.pt")

    life(setup, work, nothing)
    names = sorted(os.listdir(life.work))
    for _ in range(2):
        life(setup, nothing, until="replay")
    assert life(setup, nothing) == 0
    assert sorted(os.listdir(life.work)) == names
    assert text(life, "config.txt") == "by the training"
    assert torch.load(life.work / "init.pt") == [1]


def rewritten(letter: str) -> Callable[[], None]:
    return lambda: Path("big").write_bytes(letter.encode() * BIG) and None


def test_a_big_file_is_that_of_the_save(life: Life) -> None:
    life(nothing, rewritten("a"), rewritten("b"))
    life(nothing, nothing, until="replay")
    assert life(nothing, lambda: Path("big").read_bytes()) == 0
    assert text(life, "big") == "a" * BIG


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Big files are too big to be kept."""
    monkeypatch.setattr(keeping, "IN_STORE", BIG // 2)


@pytest.mark.usefixtures("no_room")
def test_a_huge_file_rewritten_after_the_save_must_not_be_read(life: Life, capfd: Any) -> None:
    life(nothing, rewritten("a"), rewritten("b"))
    assert life(nothing, lambda: Path("big").read_bytes()) == 76
    said = capfd.readouterr().err
    assert said.count(f"big ({BIG} bytes) not kept in the checkpoints") == 1
    assert "big is needed, but it was rewritten after the save" in said


@pytest.mark.usefixtures("no_room")
def test_a_huge_file_rewritten_after_the_save_may_be_rewritten(life: Life) -> None:
    life(nothing, rewritten("a"), rewritten("b"))

    def work() -> None:
        rewritten("c")()
        assert Path("big").read_bytes()[:1] == b"c"

    assert life(nothing, work) == 0
    assert text(life, "big")[-1] == "c"


@pytest.mark.usefixtures("no_room")
def test_that_a_huge_file_was_rewritten_is_known_two_crashes_later(life: Life) -> None:
    same_end = b"e" * (1 << 17)
    life(nothing, lambda: Path("big").write_bytes(b"a" * BIG + same_end) and None, nothing)
    life(nothing, lambda: Path("big").write_bytes(b"b" * BIG + same_end) and None)
    assert life(nothing, nothing) == 0
    life(nothing, nothing, until="replay")
    assert life(nothing, lambda: Path("big").read_bytes()) == 76


def test_a_big_file_of_the_save_is_there_untouched(life: Life) -> None:
    life(nothing, rewritten("a"), nothing)
    life(nothing, nothing, until="replay")
    assert life(nothing, lambda: Path("big").read_bytes()) == 0
    assert text(life, "big") == "a" * BIG


def test_a_big_prepared_data_set_stays_in_place(life: Life) -> None:
    def setup() -> None:
        os.makedirs("data", exist_ok=True)
        if not os.path.exists("data/set"):
            Path("data/set").write_bytes(os.urandom(9 << 20))

    life(setup, nothing, nothing)
    inode = os.stat(life.work / "data/set").st_ino
    assert life(setup, lambda: len(Path("data/set").read_bytes())) == 0
    assert os.stat(life.work / "data/set").st_ino == inode


# --- killed on the way ------------------------------------------------------------------------------------------------


@pytest.mark.expensive(family="script drills")
def test_killed_at_any_moment_of_the_way_back(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relaunch after relaunch dies at its first change of the disk, its second, ...; nothing is lost."""

    def setup() -> TextIO:
        Path("fresh.txt").write_text("by the setup")
        return open("log", "w")

    def work(log: TextIO) -> None:
        log.write("y" * BIG)
        log.flush()
        Path("small.txt").write_text("small")
        Path("fresh.txt").write_text("by the training")
        os.makedirs("runs")
        rewritten("a")()

    life(setup, work, lambda log: log.write("lost"))
    left = [0]

    def deadly(plain: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)
            return plain(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "unlink", "truncate", "makedirs"):
            patched.setattr(os, name, deadly(getattr(os, name)))
        for at in range(100):
            left[0] = at
            if life(setup, lambda log: None) == 0:
                break
    assert at > 14
    assert life(setup, lambda log: log.write("z")) == 0
    assert text(life, "log") == "y" * BIG + "z"
    assert text(life, "small.txt") == "small"
    assert text(life, "fresh.txt") == "by the training"
    assert text(life, "big") == "a" * BIG
    assert os.path.isdir(life.work / "runs")
    assert not [*life.folder.glob("aside-*")]


# --- handles ----------------------------------------------------------------------------------------------------------


def test_a_log_named_by_the_process_goes_on_in_the_old_file(life: Life) -> None:
    def setup() -> TextIO:
        return open(f"log-{os.getpid()}.txt", "w")

    life(setup, lambda log: log.write("one\n"), lambda log: log.write("lost\n"))
    assert life(setup, lambda log: log.write("two\n")) == 0
    logs = list(life.work.glob("log-*.txt"))
    assert [log.read_text() for log in logs] == ["one\ntwo\n"]


def test_files_of_forked_children_are_seen(life: Life) -> None:
    def work() -> None:
        pid = os.fork()
        if pid == 0:
            Path("cache").write_text("by a worker")
            os._exit(0)
        os.waitpid(pid, 0)

    def setup() -> None:
        assert not os.path.exists("cache")

    life(setup, work, lambda: Path("cache").write_text("later") and None)
    assert life(setup, nothing) == 0
    assert text(life, "cache") == "by a worker"


def record(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"crc1" + data + b"crc2"


def test_event_files_hold_each_step_once(life: Life) -> None:
    def setup() -> str:
        name = f"events.out.tfevents.{os.getpid()}"
        Path(name).write_bytes(record(b"header") + record(b"graph"))
        return name

    def step(data: bytes) -> Callable[[str], None]:
        def run(name: str) -> None:
            with open(name, "ab") as file:
                file.write(record(data))

        return run

    life(setup, step(b"1"), step(b"lost"))
    assert life(setup, step(b"2")) == 0
    files = sorted(life.work.glob("events.*"), key=lambda path: path.stat().st_mtime_ns)
    assert [file.read_bytes() for file in files] == [
        record(b"header") + record(b"graph") + record(b"1"),
        record(b"header") + record(b"2"),
    ]
