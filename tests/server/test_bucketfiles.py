"""Working folders and outputs by signed URLs: what machines move, and what is left when something does not work."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from everstep.agent import outputs, transfer, unpack
from everstep.agent.link import LinkDown, Session
from everstep.client.home import NoServer
from everstep.client.wire import Wire
from everstep.model.errors import BadInput, NotFound
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.task import CheckpointSpec, Task
from everstep.server import agents, bucketfiles
from everstep.server.bucketfiles import BucketFiles, BucketList, Listed
from everstep.server.buckets import Buckets
from tests.blobs.strict_s3 import StrictS3
from tests.server import fakes
from tests.server.fakes import Rig
from tests.train.signing import buckets

pytestmark = pytest.mark.xdist_group("s3")

JOB, MACHINE = JobId("j-1"), InstanceId("i-1")
PATH = "node-0/model/weights.pt"


def packed(**files: bytes) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return held.getvalue()


@dataclass
class Wired:
    """A server with a bucket for files, and machine ``i-1`` of job ``j-1``."""

    rig: Rig
    s3: StrictS3
    folder: Path
    name: str

    @property
    def files(self) -> BucketFiles:
        found = self.rig.context.bucket_files
        assert found is not None
        return found

    def restart(self, made: Buckets | None = None) -> None:
        """The server's memory of the bucket is gone; with ``made``, it goes to other buckets from now on."""
        place = (made or buckets(self.s3, "s3://bucket")).reserve("s3://bucket/files", self.name)
        self.rig.context.bucket_files = BucketFiles(place, self.folder / "in-bucket", self.rig.context.files.upload)

    async def bring(self, archive: bytes) -> str:
        """A packed folder that the job names."""

        async def body() -> AsyncIterator[bytes]:
            yield archive

        digest = await self.rig.context.files.store_upload(body(), digest="")
        state = self.rig.controller.states[JOB]
        task = dataclasses.replace(state.task, workdir_digest=digest)
        self.rig.controller.states[JOB] = dataclasses.replace(state, task=task)
        return digest

    def seen(self, since: int = 0) -> list[tuple[str, str, str]]:
        """What went to and from this test's own place in the bucket; paths below it."""
        above = f"/bucket/files/{self.name}/"
        return [(m, p.removeprefix(above), how) for m, p, how in self.s3.seen()[since:] if p.startswith(above)]

    @asynccontextmanager
    async def machine(self, name: str = MACHINE) -> AsyncIterator[Callable[[], Session]]:
        async with self.rig.served() as url:
            yield lambda: Session(url, fingerprint="", credential=f"credential-of-{name}")

    async def fetched(self, digest: str) -> Path:
        target = self.folder / "workdir"
        async with self.machine() as new_session:
            session = new_session()
            await asyncio.to_thread(unpack.fetch, session, digest, target)
            session.close()
        return target

    async def stored(self, content: bytes, *, machine: str = MACHINE) -> outputs.Stored:
        file = self.folder / "weights.pt"
        file.write_bytes(content)
        async with self.machine(machine) as new_session:
            paths = [("model/weights.pt", file)]
            return await asyncio.to_thread(outputs.store, new_session, paths, stopping=lambda: False)

    async def listed(self) -> dict[str, int]:
        async with self.rig.client() as client:
            told = (await client.get("/api/v1/jobs/j-1/outputs")).json()
        return {one["path"]: one["bytes"] for one in told["outputs"]}

    async def read(self, path: str = PATH) -> tuple[int, bytes]:
        async with self.rig.client() as client:
            answer = await client.get(f"/api/v1/jobs/j-1/outputs/{path}")
        return answer.status_code, answer.content

    async def ask(self, what: str, asked: dict[str, Any], *, machine: str = MACHINE) -> tuple[int, Any]:
        async with self.rig.client(token=f"credential-of-{machine}") as client:
            answer = await client.post(f"/agent/v1/files/{what}", content=json.dumps(asked))
        return answer.status_code, answer.json()

    async def health(self) -> str:
        async with self.rig.client() as client:
            return str((await client.get("/api/v1/health")).json()["files"])

    def on_disk(self) -> list[Path]:
        return [path for path in self.rig.context.files.folder_of(JOB).rglob("*") if path.is_file()]


@pytest.fixture
def wired(rig: Rig, s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wired:
    monkeypatch.setattr(bucketfiles, "PART_BYTES", 1000)
    rig.add(fakes.job(JOB, fakes.machine(MACHINE), fakes.machine("i-2", 1), task=Task(name="t", run="true")))
    made = Wired(rig, s3, tmp_path, f"of-{tmp_path.name}")
    made.restart()
    return made


def dead(s3: StrictS3) -> Buckets:
    """Nobody answers there."""
    return buckets(dataclasses.replace(s3, url="http://127.0.0.1:1"), "s3://bucket")


def refusing(s3: StrictS3) -> Buckets:
    return buckets(dataclasses.replace(s3, secret="another"), "s3://bucket")


# --- Working folders --------------------------------------------------------------------------------------------------


async def test_a_folder_is_put_into_the_bucket_once_and_fetched_from_there(wired: Wired) -> None:
    digest = await wired.bring(packed(main=b"print(1)"))
    for _ in range(2):
        assert (await wired.fetched(digest) / "main").read_bytes() == b"print(1)"
    wired.restart()
    await wired.fetched(digest)
    key = f"uploads/{digest}.tar.gz"
    assert [one for one in wired.seen() if one[2] == "header"] == [("PUT", key, "header")]
    assert [one for one in wired.seen() if one[2] == "url"] == [("GET", key, "url")] * 3


async def test_it_is_on_its_way_once_a_job_needs_it(wired: Wired) -> None:
    digest = await wired.bring(packed(main=b"x"))
    wired.files.begin([digest])
    assert await wired.files.folder(digest) is not None
    assert [method for method, _, how in wired.seen() if how == "header"] == ["PUT"]


@pytest.mark.parametrize("how", ["nobody answers", "the keys are wrong"])
async def test_without_the_bucket_it_comes_from_the_server(wired: Wired, how: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(bucketfiles, "_PATIENCE_S", 0.5)
    wired.restart(dead(wired.s3) if how == "nobody answers" else refusing(wired.s3))
    digest = await wired.bring(packed(main=b"x"))
    assert (await wired.fetched(digest) / "main").read_bytes() == b"x"
    assert wired.seen() == []
    assert f"s3://bucket/files/{wired.name}; failing: " in await wired.health()
    wired.restart()
    await wired.fetched(digest)
    assert await wired.health() == f"s3://bucket/files/{wired.name}"


@pytest.mark.parametrize("what", ["is gone", "is shorter", "is longer", "has another digest"])
async def test_what_is_not_right_in_the_bucket_comes_from_the_server(wired: Wired, what: str) -> None:
    archive = packed(main=os.urandom(5000))
    digest = await wired.bring(archive)
    await wired.files.folder(digest)
    place = buckets(wired.s3, "s3://bucket").reserve("s3://bucket/files", wired.name)
    key = f"uploads/{digest}.tar.gz"
    if what == "is gone":
        await place.delete([key])
    else:
        wrong = {"is shorter": archive[:-1], "is longer": archive + b"x", "has another digest": bytes(len(archive))}
        await place.put(key, wrong[what])
    assert (await wired.fetched(digest) / "main").stat().st_size == 5000


async def test_a_url_that_has_run_out_is_replaced(
    wired: Wired, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digest = await wired.bring(packed(main=b"x"))
    right, given = wired.files.folder, []

    async def late(digest: str) -> tuple[str, int] | None:
        found = await right(digest)
        assert found is not None
        given.append(found[0])
        # The signature is made for another time: as good as run out.
        return (found[0].replace("X-Amz-Expires=9", "X-Amz-Expires=1") if len(given) < 3 else found[0]), found[1]

    monkeypatch.setattr(wired.files, "folder", late)
    assert (await wired.fetched(digest) / "main").read_bytes() == b"x"
    assert len(given) == 3
    assert [how for method, _, how in wired.seen() if method == "GET"] == ["url"]
    assert "HTTP 403 SignatureDoesNotMatch" in caplog.text
    assert "X-Amz" not in caplog.text


async def test_a_machine_gets_what_its_own_job_names_and_nothing_when_it_is_gone(wired: Wired) -> None:
    digest = await wired.bring(packed(main=b"x"))
    assert (await wired.ask("folder", {"sha256": "0" * 64}))[0] == 404
    status, told = await wired.ask("folder", {"sha256": digest})
    assert (status, told["by_url"]) == (200, True)
    assert urlsplit(told["url"]).path == f"/bucket/files/{wired.name}/uploads/{digest}.tar.gz"
    assert await wired.ask("folder", {"sha256": digest}, machine="i-unknown") == (200, {"by_url": False})
    wired.rig.desk.given_for[InstanceId("i-2")] = JobId("j-2")  # what it did before it came to this job
    assert await wired.ask("folder", {"sha256": digest}, machine="i-2") == (200, {"by_url": False})
    wired.rig.controller.job_of = lambda instance: None  # type: ignore[method-assign]
    assert await wired.ask("folder", {"sha256": digest}) == (200, {"by_url": False})
    told = await wired.ask("output", {"sha256": digest, "bytes": 1, "path": "a"})
    assert told == (200, {"by_url": False})


async def test_folders_that_the_server_gave_up_are_deleted(wired: Wired) -> None:
    kept, gone = await wired.bring(packed(a=b"1")), await wired.bring(packed(b=b"2"))
    for digest in (kept, gone):
        await wired.files.folder(digest)
    assert await wired.files.sweep_uploads(older_than_s=3600.0) == []
    path = wired.rig.context.files.upload(gone)
    assert path is not None
    path.unlink()
    assert await wired.files.sweep_uploads(older_than_s=3600.0) == []
    assert await wired.files.sweep_uploads(older_than_s=-60.0) == [f"uploads/{gone}.tar.gz"]
    assert await wired.files.sweep_uploads(older_than_s=-60.0) == []


# --- Outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 3500])
async def test_an_output_goes_to_the_bucket_and_comes_back(wired: Wired, size: int) -> None:
    content = os.urandom(size)
    assert await wired.stored(content) == outputs.Stored(1, size, None)
    assert wired.on_disk() == []
    wired.restart()
    assert await wired.listed() == {PATH: size}
    assert await wired.read() == (200, content)
    puts = [(path, how) for method, path, how in wired.seen() if method == "PUT"]
    assert len(puts) == max(1, -(-size // 1000))
    assert all(path.startswith(f"outputs/j-1/i-1/{PATH}/") and how == "url" for path, how in puts)


async def test_a_newer_output_takes_the_place_of_an_older_one(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketfiles, "_PATIENCE_S", 0.5)
    for number, made in enumerate([None, dead(wired.s3), None, None]):
        wired.restart(made)
        content = b"content %d" % number * 300
        assert (await wired.stored(content)).error is None
        wired.restart()
        assert await wired.listed() == {PATH: len(content)}
        assert await wired.read() == (200, content)
        assert len(wired.on_disk()) == (made is not None)


async def test_where_no_way_leads_to_the_bucket_the_server_is_asked_soon(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, asked = wired.files.output, []

    async def elsewhere(*args: Any) -> Any:
        asked.append(args)
        return [dataclasses.replace(put, url="http://127.0.0.1:1/x?y") for put in await right(*args) or ()]

    monkeypatch.setattr(wired.files, "output", elsewhere)
    many = wired.folder / "many"
    many.mkdir()
    for number in range(60):
        (many / f"{number}").write_bytes(b"x" * number)
    async with wired.machine() as new_session:
        stored = await asyncio.to_thread(outputs.store, new_session, [("many", many)], stopping=lambda: False)
    assert stored == outputs.Stored(60, 1770, None)
    assert len(asked) <= 3 * outputs._AT_ONCE < 60
    assert await wired.listed() == {f"node-0/many/{number}": number for number in range(60)}


async def test_what_never_arrives_goes_to_the_server(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(type(wired.files._place), "list", nothing)
    assert await wired.stored(b"x" * 1500) == outputs.Stored(1, 1500, None)
    assert len(wired.on_disk()) == 1
    assert await wired.read() == (200, b"x" * 1500)


@pytest.mark.parametrize("answer", [{"by_url": True}, {"by_url": True, "puts": 1, "url": None}], ids=str)
async def test_an_answer_without_sense_is_none(answer: dict[str, Any]) -> None:
    class Server:
        def post_json(self, *_: object, **__: object) -> dict[str, Any]:
            return answer

    with pytest.raises(LinkDown):
        transfer.missing(Server(), "a", 1, "0" * 64)  # type: ignore[arg-type]
    with pytest.raises(LinkDown):
        transfer.folder(Server(), "0" * 64)  # type: ignore[arg-type]


async def test_a_server_that_is_older_is_asked_as_ever(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = await wired.bring(packed(main=b"x"))
    monkeypatch.setattr(agents.hs, "PATH_FILES", "/agent/v1/not-yet-thought-of/")
    ask = transfer._ask
    monkeypatch.setattr(transfer, "hs", type("Newer", (), {"PATH_FILES": "/agent/v1/files/"}))
    async with wired.machine() as new_session:
        session = new_session()
        assert await asyncio.to_thread(ask, session, "folder", {"sha256": digest}) is None
        session.close()
    assert (await wired.fetched(digest) / "main").read_bytes() == b"x"
    assert (await wired.stored(b"x")).error is None
    assert wired.seen() == []


async def test_what_broke_off_goes_on_where_it_was(wired: Wired) -> None:
    content = os.urandom(3500)
    told = {"path": "a", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _, first = await wired.ask("output", told)
    assert [(put["start"], put["bytes"]) for put in first["puts"]] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
        (3000, 500),
    ]
    assert await wired.listed() == {}
    file = wired.folder / "a"
    file.write_bytes(content)
    with open(file, "rb") as opened, transfer.Bucket() as bucket:
        for put in (first["puts"][0], first["puts"][3]):
            await asyncio.to_thread(bucket.store, put["url"], opened, put["start"], put["bytes"])
    assert await wired.listed() == {}
    wired.restart()
    _, then = await wired.ask("output", told)
    assert [put["start"] for put in then["puts"]] == [1000, 2000]


async def test_machines_write_below_their_own_names_only(wired: Wired) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    told = {"path": "a", "bytes": 1, "sha256": digest}
    paths = set()
    for machine in (MACHINE, "i-2"):
        _, answer = await wired.ask("output", told, machine=machine)
        (put,) = answer["puts"]
        paths.add(urlsplit(put["url"]).path.removeprefix(f"/bucket/files/{wired.name}/"))
    assert paths == {f"outputs/j-1/i-1/node-0/a/{digest}.00000", f"outputs/j-1/i-2/node-1/a/{digest}.00000"}


@pytest.mark.parametrize("path", ["", ".", "../a", "a/../../b", "a\0b", "a\\b", "x" * 300, "\ud800"], ids=ascii)
async def test_paths_that_lead_elsewhere_are_refused(wired: Wired, path: str) -> None:
    told = {"path": path, "bytes": 1, "sha256": "0" * 64}
    assert (await wired.ask("output", told))[0] == 422
    assert wired.seen() == []


@pytest.mark.parametrize(
    "more",
    [{"sha256": "../../x"}, {"sha256": None}, {"bytes": -1}, {"bytes": True}, {"bytes": 1 << 50}, {"path": 1}],
    ids=str,
)
async def test_what_is_no_output_is_refused(wired: Wired, more: dict[str, Any]) -> None:
    status, _ = await wired.ask("output", {"path": "a", "bytes": 1, "sha256": "0" * 64, **more})
    assert status == (413 if more.get("bytes") == 1 << 50 else 422)
    assert wired.seen() == []


async def test_a_path_longer_than_a_key_goes_through_the_server(wired: Wired) -> None:
    told = {"path": "/".join(["x" * 200] * 5), "bytes": 1, "sha256": "0" * 64}
    assert await wired.ask("output", told) == (200, {"by_url": False})


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("what", ["gone", "shorter", "other"])
async def test_what_was_changed_in_the_bucket_is_not_given_out(wired: Wired, what: str, part: int) -> None:
    content = os.urandom(1500)
    await wired.stored(content)
    place = buckets(wired.s3, "s3://bucket").reserve("s3://bucket/files", wired.name)
    key = f"outputs/j-1/i-1/{PATH}/{hashlib.sha256(content).hexdigest()}.{part:05d}"
    size = (1000, 500)[part]
    if what == "gone":
        await place.delete([key])
    else:
        await place.put(key, bytes(size - (what == "shorter")))
    listed = wired.files.find(JOB, PATH)
    assert listed is not None
    with pytest.raises(NotFound):
        assert b"".join([piece async for piece in wired.files.read(listed)]) == b""

    def download(url: str) -> None:
        for _ in Wire(url, fakes.TOKEN).download(f"/api/v1/jobs/j-1/outputs/{PATH}"):
            pass

    async with wired.rig.served() as url:
        with pytest.raises((NotFound, NoServer)):
            await asyncio.to_thread(download, url)


async def test_a_file_that_changes_while_it_is_stored_is_refused(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    right = transfer.Bucket.store

    def grow(self: Any, url: str, file: Any, start: int, size: int) -> None:
        right(self, url, file, start, size)
        (wired.folder / "weights.pt").write_bytes(b"another content")

    monkeypatch.setattr(transfer.Bucket, "store", grow)
    stored = await wired.stored(b"x" * 1500)
    assert stored.error == "model/weights.pt: it changes while it is stored"
    assert await wired.listed() == {}


async def test_a_folder_that_cannot_be_read_is_told_and_the_others_arrive(wired: Wired) -> None:
    file = wired.folder / "a"
    file.write_bytes(b"x")

    def paths() -> Iterator[tuple[str, Path]]:
        yield "a", file
        raise PermissionError("not for you")

    async with wired.machine() as new_session:
        stored = await asyncio.to_thread(outputs.store, new_session, paths(), stopping=lambda: False)
    assert stored == outputs.Stored(1, 1, "not for you")
    assert await wired.listed() == {"node-0/a": 1}


def test_half_a_line_of_a_server_that_was_killed_is_nothing(tmp_path: Path) -> None:
    kept = BucketList(tmp_path)
    first, second = Listed("a", 1, "0" * 64, "f"), Listed("b", 2, "1" * 64, "f")
    kept.add(JOB, first)
    whole = (tmp_path / "j-1.jsonl").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "j-1.jsonl").write_bytes(whole + whole[:length])
        assert kept.read(JOB) == {"a": first}
        kept.add(JOB, second)
        assert kept.read(JOB) == {"a": first, "b": second}
        kept.drop(JOB, "a")
        assert kept.read(JOB) == {"b": second}


# --- Where it lies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "s3://other/files", "s3://bucketly", "gs://bucket/files", "s3://bucket/../x", "x"])
def test_a_place_outside_of_the_buckets_is_refused(s3: StrictS3, url: str) -> None:
    with pytest.raises(BadInput, match="none of the 'buckets'"):
        buckets(s3, "s3://bucket").reserve(url, "name")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b"])
async def test_no_mirror_of_a_job_lies_there(s3: StrictS3, url: str) -> None:
    made = buckets(s3, "s3://bucket")
    made.reserve(url, "name")
    whole = f"{url.rstrip('/')}/name"

    def with_mirror(mirror: str) -> JobState:
        return fakes.job(JOB, task=Task(name="t", run="true", checkpoint=CheckpointSpec(mirror=mirror)))

    for mirror in (whole, f"{whole}/", f"{whole}/outputs"):
        with pytest.raises(NotFound):
            made.place(with_mirror(mirror))
    assert made.place(with_mirror(f"{whole}s")).folder.endswith("names/j-1")
