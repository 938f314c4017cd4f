"""Folders that come and outputs that go by way of a bucket, of which only the server has the key."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.blobs.strict_s3 import KEY, SECRET, StrictS3, serving
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BUCKET = "of-the-server"
CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def s3() -> Iterator[StrictS3]:
    with serving() as started:
        started.make_bucket(BUCKET)
        yield started


@pytest.fixture
def rig(tmp_path: Path, s3: StrictS3, take_in: Callable[[Rig], Rig]) -> Rig:
    buckets = {f"s3://{BUCKET}": {"endpoint": s3.url, "region": "us-east-1"}}
    made = take_in(Rig(tmp_path / "rig", config=json.dumps({"buckets": buckets, "files": f"s3://{BUCKET}/files"})))
    made.start(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    return made


def test_a_folder_comes_from_the_bucket_and_outputs_go_there(rig: Rig, s3: StrictS3) -> None:
    brought = rig.folder / "brought"
    brought.mkdir()
    (brought / "data.bin").write_bytes(CONTENT)
    job = rig.stepper(
        options="--steps 3 --step-s 0.05",
        workdir=str(brought),
        setup="mkdir made && cp data.bin made && touch made/empty",
        outputs=["made"],
    )
    rig.wait_phase(job, "succeeded")
    names = ["node-0/made/data.bin", "node-0/made/empty"]
    rig.wait_for(lambda: [one.path for one in rig.client.outputs(job)] == names, "outputs that came home")
    rig.kill_server()
    rig.start()

    info = rig.home.server()
    assert info is not None
    above = f"/{BUCKET}/files/{info.deployment}/"
    moved = [(method, path.removeprefix(above), how) for method, path, how in s3.seen() if path.startswith(above)]
    moved = [one for one in moved if not one[1].startswith("logs/")]  # they go when it suits the server
    (folder,) = {path for method, path, how in moved if how == "url" and method == "GET"}
    assert [path for method, path, how in moved if (method, how) == ("PUT", "header")] == [folder]
    put = [path for method, path, how in moved if (method, how) == ("PUT", "url")]
    assert len(put) == 2
    assert all(path.startswith(f"outputs/{job}/") for path in put)

    assert [one.bytes for one in rig.client.outputs(job)] == [len(CONTENT), 0]
    for name, content in zip(names, (CONTENT, b""), strict=True):
        assert rig.client.fetch_output(job, name, rig.folder / "home.bin").read_bytes() == content
    assert [path for path in (rig.home.path / "files" / "outputs").rglob("*") if path.is_file()] == []


@pytest.mark.expensive(family="servers and agents lost")
def test_a_long_log_is_read_from_the_bucket_and_from_here_as_one(rig: Rig, s3: StrictS3) -> None:
    """Some of it went while the job printed, some of it after; the server dies in between, and when all has gone."""
    code = "import sys; [print(f'line {n:07d} ' + 'x' * 200) for n in range(50_000)]; sys.stdout.flush(); import time; "
    job = rig.submit(f'exec {sys.executable} -c "{code} time.sleep(1); print(0)"')
    whole = "".join(f"line {n:07d} {'x' * 200}\n" for n in range(50_000)) + "0\n"
    logs = rig.home.path / "logs" / job

    def here() -> int:
        return sum(path.stat().st_size for path in logs.rglob("*.log"))

    rig.wait_for(lambda: list(logs.rglob("*.away")), "segment in the bucket")
    rig.kill_server()
    rig.start()
    rig.wait_phase(job, "succeeded")
    rig.wait_for(lambda: rig.log(job) == whole, "whole log")
    rig.wait_for(lambda: here() < 4 << 20, "segments in the bucket")
    rig.kill_server()
    rig.start()
    assert rig.log(job) == whole
    assert "".join(part.text for part in rig.client.logs(job, follow=True)) == whole
    assert len({path for method, path, how in s3.seen() if f"/logs/{job}/" in path and method == "PUT"}) >= 2
