"""Folders that come and outputs that go by way of a bucket, of which only the server has the key."""

from __future__ import annotations

import json
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
    (folder,) = {path for method, path, how in moved if how == "url" and method == "GET"}
    assert [path for method, path, how in moved if (method, how) == ("PUT", "header")] == [folder]
    put = [path for method, path, how in moved if (method, how) == ("PUT", "url")]
    assert len(put) == 2
    assert all(path.startswith(f"outputs/{job}/") for path in put)

    assert [one.bytes for one in rig.client.outputs(job)] == [len(CONTENT), 0]
    for name, content in zip(names, (CONTENT, b""), strict=True):
        assert rig.client.fetch_output(job, name, rig.folder / "home.bin").read_bytes() == content
    assert [path for path in (rig.home.path / "files" / "outputs").rglob("*") if path.is_file()] == []
