"""Faults around the saves of unmodified scripts: damaged files, other versions, bad disks, signals, clocks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.model import handshake
from everstep.train.folder import Folder
from everstep.train.lineage import Position, candidates
from tests.train.script import scripts_for_session as bodies
from tests.train.script.drill import Drill, survives
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    made = Drill(scripts, tmp_path)
    (made.place / "train.py").write_text(bodies.HEAD + bodies.NESTED)
    return made


def newest(drill: Drill) -> Path:
    """Folder of the newest checkpoint that a reader sees."""
    folder = Folder(drill.place / "saves", lambda text: None)
    return folder.path(candidates(folder.listing())[0])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "another byte": ("shard-00000.pt", flipped),
    "cut": ("shard-00000.pt", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "missing": ("shard-00000.pt", Path.unlink),
    "torn manifest": ("manifest.json", lambda path: os.truncate(path, 20)),
}


def test_a_damaged_save_is_skipped_with_a_warning_and_an_older_one_is_taken(drill: Drill) -> None:
    _, stdout = drill.plain()
    assert drill.launch(8) == -9
    for name, harm in DAMAGE.values():
        there = newest(drill)
        harm(there / name)
        # It continues three steps earlier, and gets as far again.
        assert drill.launch(4) == -9, drill.said()
        assert drill.resumed()
        position = Position(int(there.parent.name), int(there.name))
        assert f"checkpoint {position} is skipped: " in drill.said()
        assert newest(drill) != there
    assert drill.launch() == 0, drill.said()
    assert drill.log() == stdout


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "torch": ({"torch": "1.13.1"}, "was written with torch 1.13.1"),
    "a newer format": ({"format": 99}, "has format 99, this everstep reads up to"),
    "ranks": ({"world_size": 2}, "was written by 2 ranks, now there are 1"),
}


def test_a_save_of_something_else_is_refused_and_stays(drill: Drill) -> None:
    _, stdout = drill.plain()
    assert drill.launch(8) == -9
    manifest = newest(drill) / "manifest.json"
    whole = manifest.read_text()
    for changes, text in OTHERS.values():
        raw = {**json.loads(whole), **changes}
        raw["shards"] = [{**raw["shards"][0], "rank": rank} for rank in range(raw["world_size"])]
        manifest.write_text(json.dumps(raw))
        assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
        assert text in drill.said()
    manifest.write_text(whole)
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kept = []
for i in range(12):
    print(i, step(1.0), flush=True)
    if i == 5:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        kept.append(torch.rand(100_000))
"""


def test_a_disk_that_fills_up_stops_saves_and_not_training(drill: Drill) -> None:
    (drill.place / "train.py").write_text(bodies.HEAD + FULL)
    rc, stdout = drill.plain()
    assert drill.launch() == rc == 0, drill.said()
    assert "saving at step 6 failed" in drill.said()
    assert "File too large" in drill.said()
    assert drill.log() == stdout
    assert newest(drill).name == "000000003"
    assert not list((drill.place / "saves").rglob(".tmp-*"))
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


FULL_DISK = """
import glob, os, time
for i in range(9):
    print(i, step(1.0), "." * 3000, flush=True)
    if i == 4 and "DISK" in os.environ:
        while not glob.glob(os.environ["DISK"] + "/*/000000003/manifest.json"):
            time.sleep(0.01)  # it is written in the background
        try:
            with open(os.path.join(os.environ["DISK"], "automatic"), "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            assert "No space left" in str(error), error
"""


@pytest.mark.root
def test_a_disk_without_a_byte_left_ends_saves_and_log_and_not_training(drill: Drill, small_disk: Path) -> None:
    (drill.place / "train.py").write_text(bodies.HEAD + FULL_DISK)
    _, stdout = drill.plain()
    # The folder of saves is no place that the script's files are followed in.
    drill.env["DISK"] = str(small_disk)
    assert drill.launch() == 0, drill.said()
    assert "saving at step 6 failed" in drill.said()
    assert "the log of standard output ends here, No space left on device" in drill.said()
    assert [line for line in drill.said().splitlines() if line[:1].isdigit()] == stdout.splitlines()
    assert newest(drill).name == "000000003"


@pytest.mark.root
def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(drill: Drill, small_disk: Path) -> None:
    _, stdout = drill.plain()
    assert drill.launch(5) == -9
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    assert f"checkpoints cannot be kept in {small_disk}: Read-only file system" in drill.said()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert drill.launch() == 0, drill.said()
    assert drill.log() == stdout


STUCK = """
import os, time
for i in range(40):
    print(i, step(1.0), flush=True)
    while i == 7 and "STUCK" in os.environ:
        time.sleep(0.01)
"""


def test_a_second_sigterm_ends_a_script_that_comes_to_no_safe_point(drill: Drill) -> None:
    (drill.place / "train.py").write_text(bodies.HEAD + STUCK)
    _, stdout = drill.plain()
    drill.env["STUCK"] = "1"
    child = drill.start()
    deadline = time.monotonic() + 60
    while "\n7 " not in drill.said() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.terminate()
    time.sleep(0.05)
    child.terminate()
    assert child.wait() == -15
    del drill.env["STUCK"]
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


def test_training_goes_on_while_a_save_is_written(drill: Drill) -> None:
    """The save of step 3 is not on the disk before step 5: it would fail if the script waited for it."""
    _, stdout = drill.plain()
    drill.env["SLOW_UNTIL"] = "5"
    assert drill.launch() == 0, drill.said()
    assert "failed" not in drill.said()
    assert drill.log() == stdout
    saves = Folder(drill.place / "saves", lambda text: None).listing().manifests
    assert max(saves).step == 24


@pytest.mark.expensive(family="killed scripts")
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_change_of_the_folder(drill: Drill, seed: int) -> None:
    """In claims, shards, manifests, journals, collecting, while training goes on; the older saves stay."""
    _, stdout = drill.plain()
    chance, seen = random.Random(seed), ""
    for _ in range(5):
        drill.env["FAULT_AT"] = str(chance.randint(1, 60))
        assert drill.launch() in (-9, 0), drill.said()
        folder = Folder(drill.place / "saves", lambda text: None)
        there = candidates(folder.listing())
        assert there or not seen, "the older saves are lost"
        seen = str(there[0]) if there else ""
    del drill.env["FAULT_AT"]
    assert drill.launch() == 0, drill.said()
    assert drill.log() == stdout


def test_a_clock_that_is_set_back_changes_nothing(drill: Drill) -> None:
    drill.env["CLOCK_AT"] = "4"
    survives(drill, 8, 5)


def test_a_mirror_that_is_not_filled_is_told(drill: Drill) -> None:
    drill.env[handshake.ENV_CHECKPOINT_MIRROR] = "s3://somewhere/else"
    assert drill.launch() == 0
    assert drill.said().count("everstep: the mirror is not used") == 1
