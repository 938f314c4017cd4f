"""Standard output over relaunches. Each life is a process of its own, with standard output into a file."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.train.script.output import Launch, Output, Place

OUT = "../out.txt"


def life(work: Path, script: Callable[[Callable[[], None]], None], *, fresh: bool = False, rank: int = 0) -> None:
    """Run ``script(safe_point)``: in a relaunch the first call of ``safe_point`` restores, each later one saves."""
    work.mkdir(exist_ok=True)
    if (pid := os.fork()) == 0:
        try:
            os.chdir(work)
            out = os.open(OUT, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND), 0o644)
            os.dup2(out, 1)
            sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
            _run(script, rank)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def _run(script: Callable[[Callable[[], None]], None], rank: int) -> None:
    folder = Path(".ck")
    folder.mkdir(exist_ok=True)
    position = folder / f"position-{rank}.pickle"
    saved = pickle.loads(position.read_bytes()) if position.exists() else None
    output = Output(Launch(folder, rank, Place({"work": "."})))
    output.begin(saved)
    replaying = [saved is not None]

    def safe_point() -> None:
        if replaying.pop():
            output.restored(saved)
        else:
            position.write_bytes(pickle.dumps(output.position()))
        replaying.append(False)

    script(safe_point)


def log(work: Path, rank: int = 0) -> str:
    return (work / f".ck/stdout-{rank}.log").read_text()


def says(*words: str) -> Callable[[Callable[[], None]], None]:
    """A script that prints a header in its setup and words behind its safe points; ``!`` is a safe point."""

    def script(safe_point: Callable[[], None]) -> None:
        print("header")
        for word in words:
            safe_point() if word == "!" else print(word)

    return script


@pytest.mark.parametrize("fresh", [False, True])
def test_the_log_is_that_of_an_uninterrupted_run(tmp_path: Path, fresh: bool) -> None:
    work = tmp_path / "work"
    life(work, says("!", "lost, nothing was saved")) if fresh else None
    (work / ".ck/position-0.pickle").unlink(missing_ok=True)
    life(work, says("one", "!", "lost"), fresh=fresh)
    life(work, says("!", "two", "!", "lost too"))
    life(work, says("killed in the replay"))
    life(work, says("!", "three"))
    assert log(work) == "header\none\ntwo\nthree\n"
    # The file that standard output is appended to is cut back as the log is.
    assert (tmp_path / "out.txt").read_text() == log(work)


def test_standard_output_that_is_another_file_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    life(work, says("one", "!", "lost"))
    (tmp_path / "out.txt").rename(tmp_path / "first.txt")
    (tmp_path / "out.txt").write_text("of somebody else\n")
    life(work, says("!", "two"))
    assert (tmp_path / "out.txt").read_text() == "of somebody else\ntwo\n"
    assert (tmp_path / "first.txt").read_text() == "header\none\nlost\n"
    assert log(work) == "header\none\ntwo\n"


def test_all_that_goes_to_standard_output_is_muted_in_the_replay(tmp_path: Path) -> None:
    def script(safe_point: Callable[[], None]) -> None:
        logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)
        logging.warning("logged")
        sys.stdout.buffer.write("bytes ü\n".encode())
        print("no line end", end="")
        sys.stdout.flush()
        os.write(1, b"past Python\n")
        subprocess.run(["echo", "by a program"], check=True)
        sys.__stdout__.write("the other name\n")  # type: ignore[union-attr]
        safe_point()
        print("go on")

    work = tmp_path / "work"
    life(work, script)
    plain = (tmp_path / "out.txt").read_text()
    life(work, script)
    assert (tmp_path / "out.txt").read_text() == plain
    assert log(work) == "logged\nbytes ü\nno line endthe other name\ngo on\n"


def test_ranks_have_logs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    work = tmp_path / "work"
    for rank in (0, 1):
        life(work, says(f"rank {rank}", "!", "lost"), rank=rank)
    for rank in (0, 1):
        life(work, says("!", "on"), rank=rank)
    assert [log(work, rank) for rank in (0, 1)] == ["header\nrank 0\non\n", "header\nrank 1\non\n"]
    # Whose lines those in the shared file are is not known: nothing is cut.
    assert (tmp_path / "out.txt").read_text().count("lost") == 2


def test_children_do_not_write_the_log(tmp_path: Path) -> None:
    def script(safe_point: Callable[[], None]) -> None:
        print("parent", flush=True)
        if os.fork() == 0:
            print("child", flush=True)
            os._exit(0)
        os.wait()
        safe_point()

    life(tmp_path / "work", script)
    assert log(tmp_path / "work") == "parent\n"
    assert (tmp_path / "out.txt").read_text() == "parent\nchild\n"


def test_a_save_makes_the_log_and_the_journal_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    output = Output(Launch(tmp_path, 0, Place({"work": str(tmp_path)})))
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    output.begin(None)
    try:
        (tmp_path.parent / f"{tmp_path.name}.txt").write_text("seen")
        output.sync()
    finally:
        output.end()
    assert {"stdout-0.log", "files-0.jsonl"} <= {*synced}
