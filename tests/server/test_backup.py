"""Backups: what is in them, what is not, and what a torn one does."""

from __future__ import annotations

import errno
import hashlib
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from everstep.blobs.folder import FolderBlobs
from everstep.client.home import Home
from everstep.model.errors import BadInput, EverstepError
from everstep.model.ids import StreamId
from everstep.ports import Append, NewRecord
from everstep.server import backup, installation, tls
from everstep.server.backup import Backups
from everstep.store.sqlite import SqliteStore
from tests.blobs import test_s3

endpoint, bucket = test_s3.endpoint, test_s3.bucket
"""Fixtures."""


class Server:
    """As much of one as backups see."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder)
        folder.mkdir()
        installation.token(self.home)
        installation.agents_key(self.home)
        self.deployment = installation.deployment(self.home)
        tls.own(self.home)
        (folder / "files" / "uploads").mkdir(parents=True)
        (folder / "secrets").mkdir()
        (folder / "secrets" / "j-1.json").write_text("hf_planted")
        self.store = SqliteStore(self.home.journal_file)
        self.seq = 0

    async def write(self, text: str) -> None:
        line = NewRecord(1.0, "Test", 1, {"text": text})
        self.seq = await self.store.append((Append(StreamId("job/j-1"), (line,)),), None)

    def backups(self, url: str, **more: Any) -> Backups:
        settings = {"every_s": 60.0, "seq": lambda: self.seq, "now": lambda: 1_900_000_000.0, **more}
        return Backups(url, store=self.store, home=self.home, deployment=self.deployment, **settings)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "home")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'bucket'}"


async def texts(home: Home) -> list[str]:
    store = SqliteStore(home.journal_file)
    found = [str(record.body["text"]) for record in await store.read()]
    await store.close()
    return found


async def test_what_comes_back_is_the_same_server(server: Server, url: str, tmp_path: Path) -> None:
    archive = b"\x1f\x8b workdir"
    digest = hashlib.sha256(archive).hexdigest()
    upload = Path("files", "uploads", f"{digest}.tar.gz")
    (server.home.path / upload).write_bytes(archive)
    listed = Path("files", "in-bucket", "j-1.jsonl")
    (server.home.path / listed).parent.mkdir()
    (server.home.path / listed).write_text("outputs")
    await server.write("first")
    assert await server.backups(url).make()
    await server.store.close()
    back = Home(tmp_path / "back")
    about = await backup.restore(back, url)
    assert about == {"deployment": server.deployment, "seq": 1, "at": 1_900_000_000.0}
    assert (back.path / listed).read_text() == "outputs"
    assert (back.path / backup.LOGS_LOST).exists()
    assert not (server.home.path / backup.LOGS_LOST).exists()
    assert await texts(back) == ["first"]
    assert (back.path / upload).read_bytes() == archive
    for name in ("token", "agents.key", "deployment", "tls/key.pem", "tls/certificate.pem"):
        assert (back.path / name).read_bytes() == (server.home.path / name).read_bytes()
    files = [p for p in back.path.rglob("*") if p.is_file() and p.parent.name != "uploads"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}
    assert installation.token(back) == installation.token(server.home)
    assert tls.own(back).certificate.read_bytes() == tls.own(server.home).certificate.read_bytes()
    assert int((back.path / "journal.high").read_text()) > 1, "it knows that lines may be missing"


async def test_secrets_of_jobs_stay_at_home(server: Server, url: str, tmp_path: Path) -> None:
    await server.write("first")
    await server.backups(url).make()
    await backup.restore(Home(tmp_path / "back"), url)
    assert not (tmp_path / "back" / "secrets").exists()
    await server.store.close()


async def test_nothing_is_copied_while_nothing_moves_and_old_ones_go(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "KEPT", 3)
    made = server.backups(url)
    keys = []
    for n in range(5):
        await server.write(str(n))
        keys += [await made.make(), await made.make()]
    assert [key for key in keys if key] == [f"{server.deployment}/{n:08d}.tar.gz" for n in range(1, 6)]
    # A server that starts anew goes on counting, and leaves what it does not know alone.
    await FolderBlobs(tmp_path / "bucket").put("somebody/else", b"x")
    await server.write("last")
    assert await server.backups(url).make() == f"{server.deployment}/00000006.tar.gz"
    there = [info.key for info in await FolderBlobs(tmp_path / "bucket").list("")]
    assert there == [*(f"{server.deployment}/{n:08d}.tar.gz" for n in (4, 5, 6)), "somebody/else"]
    await backup.restore(Home(tmp_path / "back"), url)
    assert (await texts(Home(tmp_path / "back")))[-1] == "last"
    await server.store.close()


@pytest.mark.parametrize("harm", ["torn", "flipped", "empty", "garbage"])
async def test_a_damaged_backup_is_passed_over_for_the_one_before(
    server: Server, url: str, tmp_path: Path, harm: str
) -> None:
    made = server.backups(url)
    for n in range(2):
        await server.write(str(n))
        await made.make()
    await server.store.close()
    first, newest = (tmp_path / "bucket" / server.deployment / f"0000000{n}.tar.gz" for n in (1, 2))
    data = newest.read_bytes()
    middle = len(data) // 2
    # Many bytes: a single one may be padding, and every file whole.
    flipped = data[:middle] + bytes([byte ^ 0xFF for byte in data[middle : middle + 300]]) + data[middle + 300 :]
    bad = {"torn": data[:-900], "flipped": flipped, "empty": b"", "garbage": b"\x00" * 5000}[harm]
    newest.write_bytes(bad)
    back = Home(tmp_path / "back")
    await backup.restore(back, url)
    assert await texts(back) == ["0"]
    first.write_bytes(bad)
    with pytest.raises(EverstepError, match=r"none of the backups of .* is sound"):
        await backup.restore(Home(tmp_path / "again"), url)
    assert not Home(tmp_path / "again").journal_file.exists()


async def test_a_bucket_of_s3_by_the_environment_alone(
    server: Server, endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As users have it: credentials and address are the environment's business."""
    given = {"ENDPOINT_URL": endpoint, "ALLOW_HTTP": "true", "REGION": "us-east-1"}
    for name, value in {**given, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    made = server.backups(f"s3://{bucket}/some/prefix")
    for n in range(2):
        await server.write(str(n))
        assert await made.make()
    await server.store.close()
    await backup.restore(Home(tmp_path / "back"), f"s3://{bucket}/some/prefix")
    assert await texts(Home(tmp_path / "back")) == ["0", "1"]


async def test_a_full_disk_is_told_and_leaves_nothing_half_made(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server.backups(url)
    await server.write("first")

    async def full(target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(server.store, "backup", full)
        await made.last()
    assert "No space left" in made.text
    assert not list((tmp_path / "bucket").glob("*/*.tar.gz"))
    assert not list(server.home.path.glob(".backup-*"))
    await made.last()
    assert "No space" not in made.text
    await server.store.close()


async def test_what_a_killed_server_was_copying_is_cleared_away(server: Server, url: str) -> None:
    left = server.home.path / ".backup-x1"
    left.mkdir()
    (left / "journal.db").write_text("half")
    server.backups(url)
    assert not left.exists()
    await server.store.close()


async def test_a_bucket_that_fails_is_told_and_the_server_goes_on(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bucket").mkdir()
    made = server.backups(f"file://{tmp_path / 'bucket'}")
    await server.write("first")
    assert made.text == "none yet"
    (tmp_path / "bucket" / str(server.deployment)).write_text("in the way")
    with caplog.at_level(logging.ERROR):
        await made.last()
    assert made.text.startswith("none yet; failing: ")
    assert "the backup failed" in caplog.text
    (tmp_path / "bucket" / str(server.deployment)).unlink()
    await made.last()
    assert "failing" not in made.text
    assert not list(server.home.path.glob(".backup-*"))
    await server.store.close()


async def test_what_cannot_be_restored_says_why(server: Server, url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is a journal already"):
        await backup.restore(server.home, url)
    with pytest.raises(BadInput, match="there is no backup"):
        await backup.restore(Home(tmp_path / "back"), url)
    with pytest.raises(BadInput, match="no object store is called 'ftp'"):
        await backup.restore(Home(tmp_path / "back"), "ftp://x/y")
    await server.write("mine")
    await server.backups(url).make()
    other = Server(tmp_path / "other")
    await other.write("theirs")
    await other.backups(url).make()
    with pytest.raises(BadInput, match="backups of 2 servers; say which with --deployment: "):
        await backup.restore(Home(tmp_path / "back"), url)
    await backup.restore(Home(tmp_path / "back"), url, deployment=other.deployment)
    assert await texts(Home(tmp_path / "back")) == ["theirs"]
    for one in (server, other):
        await one.store.close()
