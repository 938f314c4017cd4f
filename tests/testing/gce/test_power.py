"""Machines that boot: real processes, their metadata, their disks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from everstep.testing.booting import Machines
from everstep.testing.gce import FakeGce, Timing

from .conftest import ZONE, machine

QUICK = Timing(notice_s=20.0, stop_s=20.0, provision_s=0.0, stage_s=0.05, operation_s=0.0, hidden_s=0.0, repair_s=0.3)
LIVES = """#!/bin/sh
trap 'echo ended >>"$EVERSTEP_ROOT/told"; exit 0' TERM
for device in "$EVERSTEP_DEVICES"/*; do [ -e "$device" ] && date >>"$device/seen"; done
echo booted >>"$EVERSTEP_ROOT/told"
while :; do sleep 0.05; done
"""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeGce]:
    with FakeGce(timing=QUICK, machines=Machines(tmp_path)) as made:
        yield made
    assert made.power is not None
    assert made.server.crashes + made.power.crashes == []


def call(fake: FakeGce, verb: str, path: str, body: Any = None) -> None:
    target = f"/compute/v1/projects/{fake.project}/zones/{ZONE}/{path}"
    data = b"" if body is None else json.dumps(body).encode()
    answer = fake.server.answer(verb, target, {"authorization": "Bearer any"}, data)
    assert answer is not None
    assert answer[0] == 200, answer


def insert(fake: FakeGce, name: str, script: str = LIVES, **changes: Any) -> None:
    body = machine(name, metadata={"items": [{"key": "startup-script", "value": script}]}, **changes)
    call(fake, "POST", "instances", body)


def until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def boot_disk(fake: FakeGce, name: str) -> Path:
    assert fake.machines is not None
    made = fake.machine(name)
    return fake.machines.disk(str(fake.cloud.disk(ZONE, made.disks[0].disk).id))


def test_a_preempted_machine_shuts_down_and_its_successor_has_the_disk(fake: FakeGce) -> None:
    assert fake.machines is not None
    call(fake, "POST", "disks", {"name": "d", "sizeGb": "10"})
    disk = fake.machines.disk(str(fake.cloud.disk(ZONE, "d").id))
    kept = [machine()["disks"][0], {"source": f"zones/{ZONE}/disks/d", "deviceName": "mine"}]
    insert(fake, "m1", disks=kept)
    root = boot_disk(fake, "m1")
    until(lambda: "booted" in text(root / "told"))
    assert text(disk / "seen"), "it was attached before the machine booted"
    begins = time.time()
    fake.preempt("m1")
    until(lambda: fake.left() == ["d"])
    assert time.time() - begins < 15.0, "it stopped by itself, sooner than it was forced to"
    assert fake.machines.processes(str(fake.machine("m1").id)) == set()
    assert text(root / "told") == "", "its own disk went with it"
    insert(fake, "m2", disks=kept)
    until(lambda: len(text(disk / "seen").splitlines()) == 2)
    call(fake, "DELETE", "instances/m2")
    until(lambda: fake.left() == ["d"])


def test_a_kept_boot_disk_is_what_the_successor_boots_from(fake: FakeGce) -> None:
    call(fake, "POST", "disks", {"name": "b", "sourceImage": "projects/debian-cloud/global/images/family/debian-12"})
    boot = [{"boot": True, "source": f"zones/{ZONE}/disks/b", "autoDelete": False}]
    for count, name in enumerate(("m1", "m2"), 1):
        insert(fake, name, disks=boot)
        root = boot_disk(fake, name)
        until(lambda root=root, count=count: text(root / "told").count("booted") == count)
        call(fake, "DELETE", f"instances/{name}")
        until(lambda: fake.left() == ["b"])
        assert text(root / "told").count("ended") == count


def test_a_lost_host_has_no_last_words_and_a_repaired_one_boots_again(fake: FakeGce) -> None:
    assert fake.machines is not None
    insert(fake, "m1", scheduling={"automaticRestart": True})
    root = boot_disk(fake, "m1")
    until(lambda: text(root / "told") == "booted\n")
    fake.lose("m1")
    until(lambda: text(root / "told") == "booted\nbooted\n")
    fake.machine("m1").scheduling["automaticRestart"] = False
    fake.lose("m1")
    until(lambda: not fake.machines.processes(str(fake.machine("m1").id)))  # type: ignore[union-attr]
    assert "ended" not in text(root / "told")
    assert fake.machine("m1").status(time.time()) == "TERMINATED"
