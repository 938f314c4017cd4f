"""A full disk under the checkpoints, and a manifest that is torn: training goes on, from what is whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-checkpoint-faults")]

STEPS = 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.expensive(family="training through losses")
def test_full_disk_costs_a_checkpoint_and_nothing_else(rig: Rig, small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    job = rig.trainer(options=f"--steps {STEPS} --step-s 0.15", checkpoint={"every": "1s", "dir": str(folder)})
    (first,) = rig.wait_for(lambda: rig.events(job, "CheckpointSaved")[:1], "first checkpoint")
    ballast = small_disk / "ballast"
    _fill(ballast)
    full_at = max(line.step for line in rig.trail("step"))
    rig.wait_step(job, full_at + 15)  # two saves that cannot succeed, and training does not mind
    rig.box("kill", instance=rig.members(job)[0], detect_s=0.0, silent=False)
    ballast.unlink()
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["node_loss", "success"]
    base = detail.attempts[1].base
    assert base is not None
    assert first.body["step"] <= int(base.removeprefix("1:")) <= full_at + 1, "what was half written does not exist"
    assert rig.digest_file.read_text() == rig.undisturbed(steps=STEPS)
    rig.check_settled()


@pytest.mark.expensive(family="training through losses")
@pytest.mark.parametrize("damage", ["manifest cut", "manifest empty", "shard cut", "shard changed", "shard gone"])
def test_damaged_checkpoint_is_skipped_for_an_older_one(rig: Rig, damage: str) -> None:
    job = rig.trainer(options=f"--steps {STEPS} --step-s 0.1", checkpoint={"every": "1s", "keep": 5})
    rig.wait_for(lambda: len(rig.events(job, "CheckpointSaved")) >= 3, "three checkpoints")
    (machine,) = rig.members(job)
    rig.box("slow_boot", boot_s=3.0, zone="", times=1)  # time to do the damage before anybody reads
    rig.box("kill", instance=machine, detect_s=0.0, silent=False)
    rig.wait_for(lambda: not rig.pids(machine), "end of the machine")
    published = sorted((rig.box_home / "shared" / job / "checkpoints").glob("0*/*/manifest.json"))
    older, newest = (int(path.parent.name) for path in published[-2:])
    _damage(published[-1], damage)
    detail = rig.wait_phase(job, "succeeded")
    assert detail.attempts[1].base == f"1:{older}", f"step {newest} is damaged"
    assert rig.digest_file.read_text() == rig.undisturbed(steps=STEPS)
    rig.check_settled()


def _damage(manifest: Path, how: str) -> None:
    shard = next(manifest.parent.glob("shard-*.pt"))
    if how == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    elif how == "manifest empty":
        manifest.write_bytes(b"")
    elif how == "shard cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif how == "shard changed":
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(bytes(content))
    else:
        shard.unlink()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 1024)
        except OSError:
            return
