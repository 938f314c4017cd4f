"""A database that is put back to an earlier hour must not cost anybody a live machine (rule 1)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from everstep.cli.main import execute
from everstep.model.errors import BadInput
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-restored-database")]


@pytest.mark.expensive(family="servers and agents lost")
def test_machines_that_a_restored_database_does_not_know_are_listed_and_left_alone(rig: Rig) -> None:
    known = rig.stepper(options="--steps 400 --step-s 0.1")
    rig.wait_step(known, 3)
    _copy(rig.home.journal_file, rig.folder / "earlier.db")
    (kept,) = rig.members(known)
    rig.submit("sleep 600")
    later = rig.jobs[-1]
    rig.wait_phase(later, "running")
    (forgotten,) = rig.members(later)

    rig.kill_server()
    _put_back(rig.folder / "earlier.db", rig.home.journal_file)
    rig.start()
    rig.jobs.remove(later)  # nobody remembers it
    (unknown,) = rig.wait_for(rig.client.unknown, "list of the unknown")
    assert (unknown.kind, unknown.id, unknown.job) == ("instance", forgotten, later)
    step = max(line.step for line in rig.trail("step"))
    rig.wait_step(known, step + 80)  # several sweeps long
    assert {r["id"] for r in rig.alive()} == {kept, forgotten}, "a sweep ended a live machine"
    assert len(rig.detail(known).attempts) == 1

    with pytest.raises(BadInput):
        rig.client.end_unknown([kept])  # what is known is not ended by this door
    rig.client.end_unknown([forgotten])
    rig.wait_for(lambda: {r["id"] for r in rig.alive()} == {kept}, "end of the unknown machine")
    rig.wait_for(lambda: not rig.client.unknown(), "empty list of the unknown")
    rig.client.cancel(known)
    rig.client.wait(known, timeout_s=90)
    rig.wait_for(lambda: not rig.alive(), "end of every machine")


@pytest.mark.expensive(family="servers and agents lost")
def test_job_goes_on_from_a_database_of_before_its_recovery(rig: Rig) -> None:
    job = rig.stepper(nodes=2, options="--steps 150 --step-s 0.1")
    rig.wait_step(job, 3)
    _copy(rig.home.journal_file, rig.folder / "earlier.db")
    rig.box("kill", instance=rig.members(job)[1], detect_s=0.0, silent=False)
    rig.wait_for(lambda: [x for x in rig.trail("step") if x.attempt == 2], "second attempt")

    rig.kill_server()
    _put_back(rig.folder / "earlier.db", rig.home.journal_file)
    rig.start()
    detail = rig.wait_phase(job, "succeeded")
    assert detail.step == 150
    rig.check_exclusive()
    # The replacement of the forgotten recovery is either known again by its token, or still listed: never both lost.
    known = {m.instance for m in detail.machines}
    listed = {u.id for u in rig.client.unknown()}
    assert {line["resource"] for line in rig.meter()} == known | listed
    assert not known & listed
    if listed:
        rig.client.end_unknown(sorted(listed))
    rig.wait_for(lambda: not rig.alive(), "end of every machine")


@pytest.mark.expensive(family="servers and agents lost")
def test_a_server_that_lost_its_disk_comes_back_from_its_backup(
    make_rig: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machines know it again and train on; one that was leased after the backup is listed and left alone."""
    bucket = tmp_path / "bucket"
    rig = make_rig(config=f"backup: file://{bucket}\nbackup_s: 0.2\n")
    rig.start()
    known = rig.stepper(options="--steps 400 --step-s 0.1")
    rig.wait_step(known, 3)
    numbers = _numbers(bucket)
    rig.wait_for(lambda: _numbers(bucket) - numbers, "a backup of a job that trains")
    earlier = tmp_path / "earlier"
    shutil.copytree(bucket, earlier, ignore=shutil.ignore_patterns(".everstep-staging"))
    (kept,) = rig.members(known)
    rig.submit("sleep 600")
    later = rig.jobs[-1]
    rig.wait_phase(later, "running")
    (forgotten,) = rig.members(later)

    rig.kill_server()
    for path in rig.home.path.iterdir():  # the disk is lost; the box is the vendor's, and goes on
        if path != rig.box_home:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setenv("EVERSTEP_HOME", str(rig.home.path))
    assert execute(["server", "restore", f"file://{earlier}"]) == 0
    assert execute(["server", "restore", f"file://{earlier}"]) == 2, "a journal is never overwritten"
    rig.start()
    rig.jobs.remove(later)  # nobody remembers it
    (unknown,) = rig.wait_for(rig.client.unknown, "list of the unknown")
    assert (unknown.kind, unknown.id, unknown.job) == ("instance", forgotten, later)
    step = max(line.step for line in rig.trail("step"))
    rig.wait_step(known, step + 40)
    assert {r["id"] for r in rig.alive()} == {kept, forgotten}, "a sweep ended a live machine"
    assert len(rig.detail(known).attempts) == 1
    rig.wait_for(lambda: "failing" not in rig.client.health().backup, "backups of the new server")
    rig.client.end_unknown([forgotten])
    rig.wait_for(lambda: {r["id"] for r in rig.alive()} == {kept}, "end of the unknown machine")
    rig.client.cancel(known)
    rig.client.wait(known, timeout_s=90)
    rig.wait_for(lambda: not rig.alive(), "end of every machine")


def _numbers(bucket: Path) -> set[str]:
    return {path.name for path in bucket.glob("*/*.tar.gz")}


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def _put_back(copy: Path, target: Path) -> None:
    for name in ("-wal", "-shm"):
        target.with_name(target.name + name).unlink(missing_ok=True)
    target.write_bytes(copy.read_bytes())
