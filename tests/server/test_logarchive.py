"""Logs that are partly here and partly in a bucket: always the same bytes, whenever the server dies."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.blobs import open_blobs
from everstep.model import handshake as hs
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobPhase
from everstep.server import logs as logs_module
from everstep.server.buckets import Bucket, BucketTrouble, Place
from everstep.server.logarchive import LogArchive
from everstep.server.logs import LogBook, LogKey
from tests.server import fakes
from tests.server.fakes import Rig

JOB = JobId("j-1")
KEY = LogKey(1, InstanceId("i-1"), "0")


def memory() -> Place:
    return Place(Bucket("memory://", open_blobs("memory://")), "folder", 900.0)


class Killed(BaseException):
    """Here the server died."""


class Home:
    """What a server has that may die at any time: its disk, and a bucket."""

    def __init__(self, folder: Path, *, segment_bytes: int = 16, job_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.place = memory()
        self._sizes = {"segment_bytes": segment_bytes, "job_bytes": job_bytes}
        self.restart()

    def restart(self) -> None:
        self.book = LogBook(self.folder, **self._sizes)
        self.archive = LogArchive(self.book, self.place, {})

    async def all(self, limit: int = 1000, key: LogKey = KEY) -> bytes:
        got = b""
        while piece := (await self.archive.read(JOB, key, len(got), limit))[1]:
            got += piece
        return got

    def here(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*.log"))

    async def send(self, *, idle_s: float = -60.0) -> None:
        await self.archive.send(idle_s=idle_s)


@contextmanager
def dying(home: Home, where: str, at: int) -> Iterator[None]:
    """Kills the server at the ``at``-th time that it does this."""
    left = [at]

    def after(call: Callable[..., Any]) -> Callable[..., Any]:
        def go(*args: Any, **more: Any) -> Any:
            found = call(*args, **more)
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return found

        return go

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **more: (after(lambda: None)(), call(*args, **more))[1]

    blobs = home.place.bucket.blobs
    with pytest.MonkeyPatch.context() as patch:
        if where == "before it is there":
            patch.setattr(blobs, "put", before(blobs.put))
        elif where == "before it is noted":
            patch.setattr(logs_module, "_leave_behind", before(logs_module._leave_behind))
        elif where == "before it is gone here":
            patch.setattr(logs_module, "_leave_behind", after(logs_module._leave_behind))
        elif where == "after it is gone here":
            patch.setattr(Path, "unlink", after(Path.unlink))
        yield


WHERE = ["", "before it is there", "before it is noted", "before it is gone here", "after it is gone here"]
MARK = hs.LOG_MARK_BEGIN + b"at;script;12" + hs.LOG_MARK_END
PIECES = st.sampled_from([b"x", b"some words\n", "žluťoučký".encode(), MARK, MARK[:9], MARK[9:], b"\xff"])
STEPS = st.one_of(
    st.lists(PIECES, min_size=1, max_size=4).map(b"".join),
    st.tuples(st.sampled_from(WHERE), st.integers(0, 2), st.booleans()),
)


@given(steps=st.lists(STEPS, max_size=12), limit=st.integers(4, 40))
def test_wherever_the_server_dies_nothing_is_lost_and_nothing_doubled(
    steps: Sequence[bytes | tuple[str, int, bool]], limit: int
) -> None:
    async def run(folder: Path) -> None:
        home, plain = Home(folder / "home"), LogBook(folder / "plain")
        text = b""
        for step in steps:
            if isinstance(step, bytes):
                assert home.book.append(JOB, KEY, len(text), step) == len(text) + len(step)
                plain.append(JOB, KEY, len(text), step)
                text += step
                continue
            where, at, is_over = step
            try:
                with dying(home, where, at):
                    await home.send(idle_s=-60.0 if is_over else 1e9)
            except Killed:
                home.restart()
            if not where and at:
                home.restart()
            assert home.book.end(JOB, KEY) == len(text)
            assert home.book.marks(JOB, KEY)[0] == plain.marks(JOB, KEY)[0]
        assert await home.all(limit) == text
        await home.send()
        assert home.here() == 0 or plain.marks(JOB, KEY)[1] < len(text)
        assert await home.all(limit) == text

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@pytest.mark.parametrize("cut", range(len(MARK) + 1))
@pytest.mark.parametrize("is_over", [False, True])
async def test_marks_are_found_wherever_a_segment_ends(tmp_path: Path, cut: int, is_over: bool) -> None:
    home, plain = Home(tmp_path / "home"), LogBook(tmp_path / "plain")
    pieces = [b"x" * 20 + MARK[:cut], MARK[cut:] + b"y" * 20, MARK + b"z"]
    for number, piece in enumerate(pieces):
        for book in (home.book, plain):
            book.append(JOB, KEY, len(b"".join(pieces[:number])), piece)
        await home.send(idle_s=-60.0 if is_over else 1e9)
        home.restart()
        assert home.book.marks(JOB, KEY) == plain.marks(JOB, KEY)
    assert len(home.book.marks(JOB, KEY)[0]) == 2
    assert home.here() == 0 or not is_over
    assert await home.all() == b"".join(pieces)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("where", WHERE[1:])
async def test_a_server_that_died_sends_the_rest_when_it_is_back(tmp_path: Path, where: str, at: int) -> None:
    home = Home(tmp_path)
    text = b"0123456789" * 8
    for start in range(0, 80, 8):
        home.book.append(JOB, KEY, start, text[start : start + 8])
    with dying(home, where, at), pytest.raises(Killed):
        await home.send()
    home.restart()
    assert await home.all() == text
    await home.send()
    assert home.here() == 0
    assert await home.all() == text
    assert sum(info.size for info in await home.place.listed("")) == 80


async def test_what_is_sealed_goes_and_what_grows_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    text = b"0123456789" * 4
    for at in range(0, 40, 8):
        home.book.append(JOB, KEY, at, text[at : at + 8])
    await home.send(idle_s=60.0)
    assert home.here() == 8
    assert [(info.key, info.size) for info in await home.place.listed("")] == [
        (f"logs/j-1/1/i-1/0/{start:015d}.log", 16) for start in (0, 16)
    ]
    await home.send()
    assert home.here() == 0
    assert home.book.unsent == set()
    assert await home.all() == text
    # Bytes that come late go on where the log ended.
    assert home.book.append(JOB, KEY, 0, text) == 40
    assert home.book.append(JOB, KEY, 36, text[36:] + b"late") == 44
    assert home.book.unsent == {JOB}
    assert await home.all() == text + b"late"
    home.restart()
    assert home.book.unsent == {JOB}
    assert await home.all() == text + b"late"


async def test_a_log_of_a_job_that_lives_is_not_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.book.append(JOB, KEY, 0, b"x")
    home.archive = LogArchive(home.book, home.place, {JOB: fakes.job(JOB, phase=JobPhase.RUNNING)})
    await home.send()
    assert home.here() == 1
    home.archive = LogArchive(home.book, home.place, {JOB: fakes.job(JOB, phase=JobPhase.SUCCEEDED)})
    await home.send(idle_s=3600.0)
    assert home.here() == 1
    await home.send()
    assert home.here() == 0


async def test_a_log_that_grows_while_it_is_sent_goes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    home.book.append(JOB, KEY, 0, b"first")
    blobs = home.place.bucket.blobs
    put = blobs.put

    async def slow(*args: Any, **more: Any) -> None:
        await put(*args, **more)
        home.book.append(JOB, KEY, 5, b" second")

    monkeypatch.setattr(blobs, "put", slow)
    await home.send()
    monkeypatch.undo()
    assert home.here() == 12
    assert await home.all() == b"first second"
    await home.send()
    assert home.here() == 0
    assert await home.all() == b"first second"


async def test_a_segment_that_cannot_be_removed_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    home.book.append(JOB, KEY, 0, b"first")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not this one")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        await home.send()
    assert home.here() == 5
    home.book.append(JOB, KEY, 5, b" second")
    for _ in range(2):
        assert await home.all() == b"first second"
        home.restart()
    await home.send()
    assert home.here() == 0
    for _ in range(2):
        assert await home.all() == b"first second"
        home.restart()


async def test_while_the_bucket_is_away_the_oldest_is_dropped_and_the_rest_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path, segment_bytes=10, job_bytes=40)
    home.book.append(JOB, KEY, 0, b"a" * 10)
    await home.send()
    with monkeypatch.context() as patch:

        async def fail(*_: object, **__: object) -> None:
            raise OSError("no way")

        patch.setattr(home.place.bucket.blobs, "put", fail)
        for at in range(10, 100, 10):
            home.book.append(JOB, KEY, at, b"b" * 10)
            with pytest.raises(BucketTrouble):
                await home.send()
    for _ in range(2):
        assert await home.archive.read(JOB, KEY, 0, 1000) == (0, b"a" * 10)
        assert await home.archive.read(JOB, KEY, 10, 1000) == (60, b"b" * 40)
        await home.send()
        home.restart()
    assert home.here() == 0


@pytest.mark.parametrize("what", ["deleted", "changed"])
async def test_what_somebody_took_from_the_bucket_is_passed_over(tmp_path: Path, what: str) -> None:
    home = Home(tmp_path, segment_bytes=10)
    for at in range(0, 40, 10):
        home.book.append(JOB, KEY, at, bytes([97 + at // 10]) * 10)
    await home.send()
    keys = [info.key for info in await home.place.listed("")]
    for key in (keys[0], keys[2]):
        await (home.place.delete([key]) if what == "deleted" else home.place.put(key, b"other"))
    assert await home.archive.read(JOB, KEY, 0, 100) == (10, b"b" * 10)
    assert await home.archive.read(JOB, KEY, 20, 100) == (30, b"d" * 10)
    assert await home.archive.read(JOB, KEY, 40, 100) == (40, b"")


async def test_a_restored_server_finds_in_the_bucket_what_went_there(tmp_path: Path) -> None:
    """Its agents send what they have, as ever; some of them before it has looked, and some machines are gone."""
    home, lost = Home(tmp_path / "old"), tmp_path / "lost"
    text = b"0123456789" * 8
    keys = [LogKey(1, InstanceId(name), "0") for name in ("gone", "machine 2", "quick")]
    for key in keys:
        for start in range(0, 80, 8):
            home.book.append(JOB, key, start, text[start : start + 8])
    await home.send()
    await home.place.put("logs/j-1/x/y", b"")
    await home.place.put("logs/j-1/1/i-1/-/000.log", b"of nobody")
    home.folder = tmp_path / "new"
    home.restart()
    home.archive = LogArchive(home.book, home.place, {}, lost=lost)
    await home.archive.adopt()
    assert home.book.keys(JOB) == []
    lost.touch()
    with dying(home, "before it is noted", 2), pytest.raises(Killed):
        await home.archive.adopt()
    home.restart()
    home.archive = LogArchive(home.book, home.place, {}, lost=lost)
    assert home.book.append(JOB, keys[2], 0, text[:30]) == 30
    await home.archive.adopt()
    assert not lost.exists()
    for _ in range(2):
        assert await home.all(key=keys[0]) == await home.all(key=keys[1]) == text
        assert await home.all(key=keys[2]) == text[:30]
        home.restart()
    assert home.book.append(JOB, keys[1], 0, text + b"more") == 84
    assert home.book.append(JOB, keys[2], 30, text[30:]) == 80
    await home.send()
    home.restart()
    assert [await home.all(key=key) for key in keys] == [text, text + b"more", text]


async def test_readers_of_a_job_do_not_see_where_its_log_is(rig: Rig, tmp_path: Path) -> None:
    home = Home(tmp_path / "logs", segment_bytes=100)
    rig.context.logs, rig.context.log_archive = home.book, home.archive
    rig.add(fakes.job(JOB, fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),), phase=JobPhase.SUCCEEDED))
    lines = b"".join(b"line %d\n" % number for number in range(200))
    for at in range(0, len(lines), 50):
        home.book.append(JOB, KEY, at, lines[at : at + 50])
    found = []
    for send in (False, True):
        if send:
            await home.send()
            assert home.here() == 0
        async with rig.client() as client:
            told = (await client.get("/api/v1/jobs/j-1/logs")).json()
            tail = (await client.get("/api/v1/jobs/j-1/logs", params={"offset": -30})).json()
        found.append(("".join(part["text"] for part in told["parts"]), tail["parts"]))
    assert found[0][0] == lines.decode()
    assert found[0] == found[1]


async def test_a_bucket_that_is_away_is_told_to_readers(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "logs")
    rig.context.logs, rig.context.log_archive = home.book, home.archive
    rig.add(fakes.job(JOB, fakes.machine("i-1"), attempts=(fakes.attempt(1, "i-1"),), phase=JobPhase.SUCCEEDED))
    home.book.append(JOB, KEY, 0, b"x")
    await home.send()

    async def fail(*_: object) -> None:
        raise OSError("no way")

    monkeypatch.setattr(home.place.bucket.blobs, "get", fail)
    async with rig.client() as client:
        answer = await client.get("/api/v1/jobs/j-1/logs")
    assert answer.status_code == 503
    assert "memory://" in answer.json()["error"]["message"]
