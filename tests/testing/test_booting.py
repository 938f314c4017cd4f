"""Machines that boot: nothing gets away, nothing of ours gets in, disks behave like disks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.model.handshake import BOOT_ADDRESS
from everstep.testing.booting import Machines
from tests.agent.conftest import until

#: Two processes: one leaves its group and session and ignores SIGTERM, one stays.
ESCAPE = """#!/bin/sh
(setsid sh -c 'trap "" TERM; touch away; while :; do sleep 0.1; done' >/dev/null 2>&1 &)
touch here
exec sleep 600
"""


@pytest.fixture
def machines(tmp_path: Path, leak_guard: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("EVERSTEP_HOME", "/nowhere")
    made = Machines(tmp_path / "cloud")
    yield made
    made.close()


def wait_for(machines: Machines, machine: str, *names: str) -> None:
    until(lambda: all((machines.root(machine) / name).exists() for name in names), f"{names} on {machine}")


def test_power_off_ends_what_ran_away(machines: Machines) -> None:
    machines.boot("m1", ESCAPE, variables={})
    machines.boot("m2", "touch here; sleep 600", variables={})
    wait_for(machines, "m1", "here", "away")
    wait_for(machines, "m2", "here")
    machines.shut_down("m1")
    until(lambda: len(machines.processes("m1")) <= 2, "the end of who listens to SIGTERM")
    assert machines.processes("m1"), "one of them ignores it"
    machines.destroy("m1")
    assert not machines.processes("m1")
    assert not machines.booted("m1")
    assert machines.processes("m2"), "the other machine is another machine"
    assert machines.close() == ["m2"]


def test_a_machine_knows_itself_and_nothing_of_us(machines: Machines) -> None:
    told = {"EVERSTEP_METADATA": "aws=http://127.0.0.1:1/m"}
    machines.boot("m1", "#!/bin/sh\nenv > new; mv new env; python3 -c 'print(1)'", variables=told)
    machines.boot("m2", "#!/bin/sh\nexit 3", variables={})
    wait_for(machines, "m1", "env")
    env = dict(line.split("=", 1) for line in (machines.root("m1") / "env").read_text().splitlines())
    assert env["EVERSTEP_METADATA"] == told["EVERSTEP_METADATA"]
    assert env[BOOT_ADDRESS] == machines.address("m1") != machines.address("m2")
    assert not {"AWS_SECRET_ACCESS_KEY", "EVERSTEP_HOME", "VIRTUAL_ENV"} & set(env)
    assert "planted" not in (machines.root("m1") / "env").read_text()
    until(lambda: machines.boot_script_ended("m2") == 3, "the end of the script")
    until(lambda: machines.console("m1").read_text() == "1\n", "what it printed")
    assert (machines.home / "machines" / "m1" / "user-data").stat().st_mode & 0o077 == 0, "it holds a token"


def test_what_was_on_the_disk_survives_power_off_and_on(machines: Machines) -> None:
    machines.boot("m1", "echo x >> boots; touch up; sleep 600", variables={})
    wait_for(machines, "m1", "up")
    machines.destroy("m1")
    (machines.root("m1") / "up").unlink()
    machines.boot("m1", "echo x >> boots; touch up; sleep 600", variables={})
    wait_for(machines, "m1", "up")
    assert (machines.root("m1") / "boots").read_text() == "x\nx\n"
    root = machines.root("m1")
    machines.destroy("m1")
    machines.discard("m1")
    assert not root.exists()


MOUNT = """#!/bin/sh
set -eu
device="$EVERSTEP_DEVICES/data"
until [ -e "$device" ]; do sleep 0.02; done
mkdir early
mount "$device" early 2>/dev/null && exit 9
blkid "$device" >/dev/null || mkfs.ext4 -q "$device"
mkdir -p vol
mountpoint -q vol || mount "$device" vol
echo "$1" >> vol/who
touch mounted
"""


def test_a_disk_moves_from_one_machine_to_the_next(machines: Machines) -> None:
    for name in ("m1", "m2"):
        machines.boot(name, MOUNT.replace("$1", name), variables={})
        machines.plug(name, "data", "disk-1")
        if name == "m1":
            wait_for(machines, name, "mounted")
            machines.destroy(name)
            machines.unplug(name, "data")
        else:
            until(lambda: machines.boot_script_ended("m2") == 9, "a mount of a formatted disk")
    # The second machine finds a file system: mounting it at once works, so formatting it would lose what is there.
    assert (machines.disk("disk-1") / "who").read_text() == "m1\n"
    machines.delete_disk("disk-1")
    assert not (machines.home / "disks" / "disk-1").exists()


def test_a_frozen_machine_stands_still_with_all_it_runs(machines: Machines) -> None:
    machines.boot("m1", "while :; do date +%s%N > tick.new; mv tick.new tick; sleep 0.02; done", variables={})
    wait_for(machines, "m1", "tick")
    machines.freeze("m1")

    def states() -> set[str]:
        stats = [Path(f"/proc/{key.pid}/stat").read_text() for key in machines.processes("m1")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    # What waits for the disk stops once that has answered.
    until(lambda: states() == {"T"}, "a machine that stands still")
    tick = (machines.root("m1") / "tick").read_bytes()
    machines.thaw("m1")
    until(lambda: (machines.root("m1") / "tick").read_bytes() != tick, "the next tick")


def test_something_more_runs_inside(machines: Machines) -> None:
    machines.boot("m1", "touch up; sleep 600", variables={"GREETING": "it's me"})
    wait_for(machines, "m1", "up")
    machines.execute("m1", f"echo $GREETING > {shlex.quote('said it')}; exec sleep 600")
    wait_for(machines, "m1", "said it")
    assert (machines.root("m1") / "said it").read_text() == "it's me\n"
    before = machines.processes("m1")
    machines.destroy("m1")
    assert before
    assert not machines.processes("m1")
    assert not any(os.path.exists(f"/proc/{key.pid}/exe") for key in before)
