"""A gang on a cloud whose files move between its nodes and a bucket, of which no node has a key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.blobs.strict_s3 import StrictS3, serving
from tests.e2e.ec2 import KEY, SECRET, Ec2Rig
from tests.e2e.planted import Watchman, check_shown, environments, holders

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-ec2")]

BUCKET = "of-the-server"
STEPS = 60
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def s3() -> Iterator[StrictS3]:
    """The server's own credentials are the only ones that it takes."""
    with serving(KEY, SECRET) as started:
        started.make_bucket(BUCKET)
        yield started


@pytest.fixture
def rig(tmp_path: Path, s3: StrictS3, take_in: Callable[[Ec2Rig], Ec2Rig]) -> Ec2Rig:
    buckets = {f"s3://{BUCKET}": {"endpoint": s3.url, "region": "us-east-1"}}
    made = take_in(Ec2Rig(tmp_path / "rig", buckets=buckets, files=f"s3://{BUCKET}/files"))
    made.start()
    return made


@pytest.mark.expensive(family="clouds end to end")
def test_a_gang_comes_back_in_another_zone_from_a_bucket_that_no_node_has_a_key_of(rig: Ec2Rig, s3: StrictS3) -> None:
    watchman = Watchman()
    brought = rig.folder / "brought"
    brought.mkdir()
    (brought / "data.bin").write_bytes(CONTENT)
    job = rig.trainer(
        nodes=2,
        options=f"--steps {STEPS} --step-s 0.05 --until-attempt 2",
        checkpoint={"every": "1s", "mirror": f"s3://{BUCKET}/run"},
        workdir=str(brought),
    )
    rig.wait_saved(job, 1)
    members = rig.members(job)
    inside = [env for machine in members for env in environments(rig.machines, machine)]
    credentials = [
        json.loads((rig.machines.root(machine) / "agent" / "credential.json").read_text())["credential"]
        for machine in members
    ]
    during = {word: holders(rig.folder, word) for word in (SECRET, "X-Amz-Signature")}
    zone = rig.ec2.zone(members[0])
    rig.ec2.dry(zone)
    s3.expire()
    for machine in members:
        rig.fake.lose(machine)
    detail = rig.wait_phase(job, "succeeded")
    commands = watchman.close()

    assert [attempt.cause for attempt in detail.attempts] == ["node_loss", "success"]
    assert str(detail.attempts[1].base).startswith("1:")
    assert rig.digest_file.read_text() == rig.undisturbed(nodes=2, steps=STEPS)
    # What went which way: bytes by URLs of this job's place, and what must happen only once through the server.
    rig.wait_for(lambda: rig.client.outputs(job), "output that came home")
    moved = s3.seen()
    run = f"/{BUCKET}/run/{job}/"
    assert any(path.startswith(run) and path.endswith("shard-00001.pt") for _, path, how in moved if how == "url")
    (folder,) = {path for method, path, how in moved if how == "url" and method == "GET" and "/uploads/" in path}
    others = {path for _, path, how in moved if how == "url" and path != folder and not path.startswith(run)}
    outputs = folder[: folder.index("/uploads/")] + f"/outputs/{job}/"
    assert others
    assert all(path.startswith(outputs) for path in others)
    written = {path for method, path, how in moved if method == "PUT" and how == "header" and path.count("/") > 2}
    written = {path for path in written if "/logs/" not in path}  # they go when it suits the server
    records = {f"{run}attempts/00000{number}.json" for number in (1, 2)}
    assert {path for path in written if "probe" not in path} == {*records, folder}
    # Where the keys are, and where a URL is: nowhere but in memory.
    assert during == {SECRET: set(), "X-Amz-Signature": set()}
    assert holders(rig.folder, SECRET) == holders(rig.folder, "X-Amz-Signature") == set()
    assert inside
    for env in inside:
        assert SECRET.encode() not in env
        assert b"AWS_" not in env
        assert b"X-Amz" not in env
        assert not any(credential.encode() in env for credential in credentials)
    shown = check_shown(
        rig, job, {"bucket": SECRET, **dict(zip(("first", "second"), credentials, strict=True))}, commands
    )
    assert "X-Amz" not in shown
    assert b"X-Amz-Signature" not in commands
    rig.check_settled()
