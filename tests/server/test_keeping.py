"""Logs, files, secrets, exec books: what is kept on the server's disk."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.errors import BadInput, NotFound
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobPhase
from everstep.server import files as files_module
from everstep.server import logs as logs_module
from everstep.server.execs import ExecBook
from everstep.server.files import Files
from everstep.server.logs import LogBook, LogKey, whole_characters
from everstep.server.problems import DiskFull
from everstep.server.secrets import KEEP_AFTER_FAILURE_S, SecretFiles
from tests.server import fakes

JOB = JobId("j-1")
KEY = LogKey(1, InstanceId("i-1"), "0")


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


# --- Logs -------------------------------------------------------------------------------------------------------------


@given(
    text=st.binary(min_size=1, max_size=200),
    sends=st.lists(st.tuples(st.integers(0, 220), st.integers(0, 60)), max_size=30),
    reopen=st.sets(st.integers(0, 30)),
)
def test_whatever_is_sent_what_is_held_is_a_beginning_of_the_log(
    text: bytes, sends: list[tuple[int, int]], reopen: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        book = LogBook(Path(folder), segment_bytes=16)
        held = 0
        for number, (offset, length) in enumerate(sends):
            if number in reopen:
                book = LogBook(Path(folder), segment_bytes=16)
            data = text[offset : offset + length]
            end = book.append(JOB, KEY, offset, data)
            held = max(held, offset + len(data)) if offset <= held else held
            assert end == held == book.end(JOB, KEY)
        got = b""
        while piece := book.read(JOB, KEY, len(got), 7)[1]:
            got += piece
        assert got == text[:held]


@given(text=st.text(max_size=60), limit=st.integers(4, 20))
def test_reading_in_pieces_never_cuts_a_character(text: str, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        book = LogBook(Path(folder), segment_bytes=10)
        data = text.encode()
        for at in range(0, len(data), 3):
            book.append(JOB, KEY, at, data[at : at + 3])
        offset, shown = 0, ""
        while piece := book.read(JOB, KEY, offset, limit)[1]:
            shown += piece.decode()
            offset += len(piece)
        assert shown == text


@given(st.binary(max_size=12))
def test_bytes_that_are_no_text_are_never_held_back_for_ever(data: bytes) -> None:
    kept = whole_characters(data)
    assert data.startswith(kept)
    assert len(data) - len(kept) < 4
    assert bool(kept) == bool(data)


def test_retention_drops_the_oldest_and_keeps_offsets(tmp_path: Path) -> None:
    book = LogBook(tmp_path, job_bytes=100, segment_bytes=10)
    old, new = LogKey(1, InstanceId("i-1"), "0"), LogKey(2, InstanceId("i-1"), "0")
    for at in range(0, 60, 10):
        book.append(JOB, old, at, b"a" * 10)
    for at in range(0, 90, 10):
        book.append(JOB, new, at, b"b" * 10)
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.log")) <= 100
    assert book.read(JOB, old, 0, 1000) == (50, b"a" * 10)
    assert book.read(JOB, new, 0, 1000) == (0, b"b" * 90)
    for at in range(90, 300, 10):
        book.append(JOB, new, at, b"b" * 10)
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.log")) <= 100
    for again in (book, LogBook(tmp_path, job_bytes=100, segment_bytes=10)):
        assert again.read(JOB, old, 0, 1000) == (50, b"a" * 10)
        assert again.read(JOB, new, 0, 1000) == (210, b"b" * 90)


def test_a_log_that_was_emptied_still_knows_where_it_ended(tmp_path: Path) -> None:
    def open_book() -> LogBook:
        return LogBook(tmp_path, job_bytes=15, segment_bytes=10)

    old, new = LogKey(1, InstanceId("i-1"), "0"), LogKey(2, InstanceId("i-1"), "0")
    book = open_book()
    book.append(JOB, old, 0, b"a" * 9)
    book.append(JOB, new, 0, b"b" * 9)
    for again in (book, open_book()):
        assert again.read(JOB, old, 0, 1000) == (9, b"")
        assert again.append(JOB, old, 0, b"a" * 9) == 9
        assert again.read(JOB, new, 0, 1000) == (0, b"b" * 9)
    assert open_book().append(JOB, old, 9, b"c") == 10
    assert open_book().read(JOB, old, 0, 1000) == (9, b"c")


@pytest.mark.parametrize("rank", ["", ".", "..", "a/b", "../x", "-1", "x" * 101, "0\n", "exec-/"])
def test_a_rank_that_could_be_a_path_is_refused(tmp_path: Path, rank: str) -> None:
    with pytest.raises(BadInput):
        LogBook(tmp_path).append(JOB, LogKey(1, InstanceId("i-1"), rank), 0, b"x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("instance", ["../../x", "a/b", "machine 1"])
def test_any_name_of_an_instance_stays_inside(tmp_path: Path, instance: str) -> None:
    book = LogBook(tmp_path / "logs")
    key = LogKey(1, InstanceId(instance), "0")
    book.append(JOB, key, 0, b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["logs"]
    assert LogBook(tmp_path / "logs").keys(JOB) == [key]


@pytest.mark.parametrize("instance", ["", ".", ".."])
def test_an_instance_of_dots_alone_is_refused(tmp_path: Path, instance: str) -> None:
    with pytest.raises(BadInput):
        LogBook(tmp_path).append(JOB, LogKey(1, InstanceId(instance), "0"), 0, b"x")


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = LogBook(tmp_path, segment_bytes=4)
    book.append(JOB, KEY, 0, b"abcd")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full_disk)
        with pytest.raises(DiskFull, match="disk is full"):
            book.append(JOB, KEY, 4, b"efgh")
    assert book.end(JOB, KEY) == 4
    assert book.append(JOB, KEY, 4, b"efgh") == 8
    assert book.read(JOB, KEY, 0, 10) == (0, b"abcdefgh")


def test_forgotten_logs_are_gone(tmp_path: Path) -> None:
    book = LogBook(tmp_path)
    book.append(JOB, KEY, 0, b"x")
    book.forget(JOB)
    assert book.keys(JOB) == []
    assert not list(tmp_path.iterdir())


def test_of_many_jobs_with_logs_only_so_many_are_remembered_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "_JOBS_OPEN", 3)
    book = LogBook(tmp_path, segment_bytes=4)
    jobs = [JobId(f"j-{n}") for n in range(20)]
    for offset in (0, 5):
        for job in jobs:
            assert book.append(job, KEY, offset, b"12345") == offset + 5
            assert len(book._jobs) <= 3
    assert [book.read(job, KEY, 0, 99) for job in jobs] == [(0, b"1234512345")] * 20


# --- Files ------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_keeps_no_half_of_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    monkeypatch.setattr(files_module, "_settle", full_disk)
    with pytest.raises(DiskFull):
        await files.store_upload(pieces(b"\x1f\x8b", b"x"), digest="")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


async def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"\x1f\x8b"
        raise ConnectionResetError

    files = Files(tmp_path)
    with pytest.raises(ConnectionResetError):
        await files.store_upload(broken(), digest="")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


async def test_what_a_killed_server_left_half_is_removed_at_the_next_start(tmp_path: Path) -> None:
    Files(tmp_path)
    half = tmp_path / "uploads" / ".0123456789abcdef.part"
    half.write_bytes(b"half")
    Files(tmp_path)
    assert not half.exists()


async def test_old_uploads_that_nobody_wants_are_swept(tmp_path: Path) -> None:
    files = Files(tmp_path)
    wanted = await files.store_upload(pieces(b"\x1f\x8b1"), digest="")
    old = await files.store_upload(pieces(b"\x1f\x8b2"), digest="")
    young = await files.store_upload(pieces(b"\x1f\x8b3"), digest="")
    for digest in (wanted, old):
        os.utime(tmp_path / "uploads" / f"{digest}.tar.gz", (1000.0, 1000.0))
    assert files.sweep_uploads([wanted], older_than_s=3600.0) == [old]
    assert [files.upload(d) is not None for d in (wanted, old, young)] == [True, False, True]


async def test_an_output_replaces_the_one_before_it(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for text in (b"one", b"two"):
        digest = hashlib.sha256(text).hexdigest()
        assert await files.store_output(pieces(text), job=JOB, path="a/b", digest=digest) == digest
    assert files.output(JOB, "a/b").read_bytes() == b"two"
    for path in ("a", "a/b/c"):
        with pytest.raises((BadInput, NotFound)):
            await files.store_output(pieces(b"x"), job=JOB, path=path, digest="")
    with pytest.raises(BadInput):
        files.output(JOB, "a/../../../x")


async def test_a_link_out_of_the_outputs_is_not_followed(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / "secret").write_text("s")
    root = files.folder_of(JOB)
    root.mkdir(parents=True)
    (root / "way").symlink_to(tmp_path)
    with pytest.raises(BadInput):
        files.output(JOB, "way/secret")
    with pytest.raises(BadInput):
        await files.store_output(pieces(b"x"), job=JOB, path="way/secret", digest="")
    assert (tmp_path / "secret").read_text() == "s"


# --- Secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_private_and_replaced_whole(tmp_path: Path) -> None:
    kept = SecretFiles(tmp_path / "s")
    kept.put(JOB, {"A": "1", "B": "2"})
    kept.put(JOB, {"A": "3"})
    assert kept.get(JOB) == {"A": "3"}
    assert [oct(p.stat().st_mode & 0o777) for p in (tmp_path / "s", *(tmp_path / "s").iterdir())] == ["0o700", "0o600"]
    kept.put(JOB, {})
    assert kept.get(JOB) == {}
    assert not list((tmp_path / "s").iterdir())
    for name in ("../x", "", "a/b"):
        with pytest.raises(ValueError, match="not a job id"):
            kept.get(JobId(name))


@pytest.mark.parametrize(
    ("phase", "age_s", "kept"),
    [
        (JobPhase.RUNNING, 1e9, True),
        (JobPhase.PAUSED, 1e9, True),
        (JobPhase.RELEASING, 0.0, True),
        (JobPhase.SUCCEEDED, 0.0, False),
        (JobPhase.CANCELLED, 0.0, False),
        (JobPhase.FAILED, KEEP_AFTER_FAILURE_S - 1, True),
        (JobPhase.FAILED, KEEP_AFTER_FAILURE_S + 1, False),
    ],
)
def test_secrets_live_as_long_as_the_job_may_need_them(
    tmp_path: Path, phase: JobPhase, age_s: float, kept: bool
) -> None:
    secrets = SecretFiles(tmp_path)
    secrets.put(JOB, {"A": "1"})
    now = 2e9
    state = fakes.job(JOB, phase=phase, ended_at=now - age_s if phase.ended else None)
    assert secrets.sweep({JOB: state}, now) == ([] if kept else [JOB])
    assert bool(secrets.get(JOB)) == kept


def test_secrets_of_a_submission_under_way_survive_the_sweep(tmp_path: Path) -> None:
    secrets = SecretFiles(tmp_path)
    secrets.put(JOB, {"A": "1"})
    written = (tmp_path / f"{JOB}.json").stat().st_mtime
    assert secrets.sweep({}, written + 60.0) == []
    assert secrets.sweep({}, written + 7200.0) == [JOB]


# --- Exec books -------------------------------------------------------------------------------------------------------


def test_an_exec_book_survives_a_restart_and_ignores_strangers(tmp_path: Path) -> None:
    one, two = InstanceId("i-1"), InstanceId("i-2")
    book = ExecBook(tmp_path)
    book.open(JOB, "x1", [one, two])
    book.ended(JOB, "x1", one, 3)
    book.ended(JOB, "x1", one, 0)
    book.ended(JOB, "x1", InstanceId("i-9"), 0)
    book.ended(JOB, "never-asked", one, 0)
    assert ExecBook(tmp_path).answers(JOB, "x1") == {one: 3, two: None}
    with pytest.raises(NotFound):
        book.answers(JOB, "never-asked")
