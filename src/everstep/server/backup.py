"""Backups of a server: its journal and what proves that it is the same server, in a folder or a bucket.

With both a server that lost its disk comes back elsewhere: it knows its jobs, its tags are found on their machines, and
the machines know its certificate and its key. Below the URL:

    DEPLOYMENT/00000042.tar.gz      the journal as of one moment, the keys, the token, the configuration, the lists of
                                    outputs that are in a bucket
    DEPLOYMENT/uploads/SHA256.tar.gz    the folders that jobs brought along

Numbers grow by one, whatever the clock says. Values of secrets, logs and outputs stay on the server's own disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from everstep.blobs import open_blobs
from everstep.client.home import Home, write_private
from everstep.model.errors import BadInput, EverstepError, Problem
from everstep.model.units import format_duration
from everstep.ports import BlobExists, Blobs
from everstep.store import sqlite

log = logging.getLogger(__name__)

KEPT = 48
"""So many backups stay; older ones are deleted."""
_LAST_S = 20.0
_PATIENCE_S = 600.0
_JOURNAL, _ABOUT = "journal.db", "about.json"
_IDENTITY = (
    "deployment",
    "agents.key",
    "token",
    "address.json",
    "config.yaml",
    "tls/certificate.pem",
    "tls/key.pem",
)
LOGS_LOST = "logs.lost"
"""A file beside the journal: which logs are in a bucket is not known any more."""
_LISTS = "files/in-bucket"
_LIST = re.compile(rf"{_LISTS}/[^/]+\.jsonl")
_FORMAT = 1
_COPYING = ".backup-"
_BEYOND = 100
"""Lines that may have been written since: a server that comes back does not reuse what they gave out."""


class CanBackUp(Protocol):
    """A journal that can be copied while it is written."""

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Copies it as of now to a new file."""
        ...


class Backups:
    """Makes backups for a running server."""

    def __init__(
        self,
        url: str,
        *,
        store: CanBackUp,
        home: Home,
        deployment: str,
        every_s: float,
        seq: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        """Opens the place.

        Args:
            url: folder or bucket (see ``open_blobs``).
            store: the journal.
            home: whose keys and uploads go along.
            deployment: UUID of the installation.
            every_s: pause between two, seconds.
            seq: how far the journal is; nothing is copied while it does not move.
            now: UTC seconds.

        Raises:
            BadInput: the URL is not understood.
        """
        self._blobs = _opened(url)
        self._store = store
        self._home = home
        self._deployment = deployment
        self._every_s = every_s
        self._seq = seq
        self._now = now
        self._number: int | None = None
        self._copied = -1
        self._at: float | None = None
        self._trouble = ""
        for left in home.path.glob(f"{_COPYING}*"):
            shutil.rmtree(left, ignore_errors=True)  # of a server that was killed meanwhile

    @property
    def text(self) -> str:
        """For people: when the last one was made, and what is wrong if something is."""
        last = "none yet" if self._at is None else f"{format_duration(max(self._now() - self._at, 0.0))} ago"
        return f"{last}; failing: {self._trouble}" if self._trouble else last

    async def run(self) -> None:
        """Makes one after every pause in which the journal moved, until cancelled. Failures are told, not raised."""
        while True:
            await self._try(_PATIENCE_S)
            await asyncio.sleep(self._every_s)

    async def last(self) -> None:
        """One more, when the server stops; gives up after 20 s."""
        await self._try(_LAST_S)

    async def make(self) -> str:
        """Copies what is new; the key of the copy, empty if nothing moved."""
        seq = self._seq()
        if seq == self._copied:
            return ""
        await self._copy_uploads()
        data = await self._pack(seq)
        if self._number is None:
            self._number = max(_numbers(await self._blobs.list(f"{self._deployment}/")), default=0)
        while True:
            self._number += 1
            key = f"{self._deployment}/{self._number:08d}.tar.gz"
            with contextlib.suppress(BlobExists):
                await self._blobs.put(key, data, if_absent=True)
                break
        self._copied, self._at = seq, self._now()
        for number in _numbers(await self._blobs.list(f"{self._deployment}/")):
            if number <= self._number - KEPT:
                await self._blobs.delete(f"{self._deployment}/{number:08d}.tar.gz")
        return key

    async def _try(self, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await self.make()
            self._trouble = ""
        except Exception as error:
            self._trouble = " ".join(str(error).split()) or type(error).__name__
            log.error("the backup failed: %s", self._trouble)

    async def _pack(self, seq: int) -> bytes:
        with tempfile.TemporaryDirectory(dir=self._home.path, prefix=_COPYING) as folder:
            copy = Path(folder) / _JOURNAL
            await self._store.backup(copy)
            return await asyncio.to_thread(self._packed, copy, seq)

    def _packed(self, copy: Path, seq: int) -> bytes:
        held = io.BytesIO()
        digests = {}
        with tarfile.open(fileobj=held, mode="w:gz", compresslevel=3) as archive:
            for name in (_JOURNAL, *_IDENTITY, *_lists(self._home)):
                path = copy if name == _JOURNAL else self._home.path / name
                if path.is_file():
                    archive.add(path, arcname=name)
                    digests[name] = _digest(path)
            about = {"format": _FORMAT, "deployment": self._deployment, "seq": seq, "at": self._now(), "files": digests}
            entry = tarfile.TarInfo(_ABOUT)
            text = json.dumps(about).encode()
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        return held.getvalue()

    async def _copy_uploads(self) -> None:
        prefix = f"{self._deployment}/uploads/"
        there = {info.key for info in await self._blobs.list(prefix)}
        for path in sorted(_uploads(self._home).glob("*.tar.gz")):
            if not path.name.startswith(".") and prefix + path.name not in there:
                with contextlib.suppress(BlobExists, FileNotFoundError):
                    await self._blobs.put(prefix + path.name, await asyncio.to_thread(path.read_bytes), if_absent=True)


async def restore(home: Home, url: str, *, deployment: str = "") -> Mapping[str, object]:
    """Puts the newest sound backup into an empty folder. The old server must be gone for good.

    Args:
        home: where no journal is.
        url: where the backups are.
        deployment: whose; empty = the only one there.

    Returns:
        What the backup says about itself: ``deployment``, ``seq``, ``at`` (UTC seconds).

    Raises:
        BadInput: there is a journal already, no backup, or several deployments' and none was named.
        EverstepError: none of the backups is sound.
    """
    if home.journal_file.exists():
        raise BadInput(Problem("everstep server restore", "", f"there is a journal already: {home.journal_file}"))
    blobs = _opened(url)
    found = sorted(_numbered(info.key for info in await blobs.list("")), reverse=True)
    owners = sorted({owner for _, owner in found if deployment in ("", owner)})
    if len(owners) != 1:
        message = f"there are backups of {len(owners)} servers" if owners else "there is no backup"
        fix = f"say which with --deployment: {', '.join(owners)}" if owners else "look at the URL again"
        raise BadInput(Problem("everstep server restore", "URL", message, fix))
    faults = []
    for number, owner in found:
        if owner != owners[0]:
            continue
        data = await blobs.get(f"{owner}/{number:08d}.tar.gz")
        try:
            about = await asyncio.to_thread(_unpack, home, data)
        except (EverstepError, OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
            faults.append(f"{number}: {' '.join(str(error).split())}")
            log.warning("backup %s is not sound: %s", number, error)
            continue
        await _fetch_uploads(home, blobs, owner)
        return about
    raise EverstepError(f"none of the backups of {owners[0]} is sound ({'; '.join(faults[:3])})")


def _unpack(home: Home, data: bytes) -> Mapping[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        read: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                known = member.name in (_JOURNAL, _ABOUT, *_IDENTITY) or _LIST.fullmatch(member.name)
                if known and member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    read[member.name] = file.read()
        about = json.loads(read.pop(_ABOUT))
        if about["format"] != _FORMAT:
            raise ValueError(f"format {about['format']}, this everstep knows {_FORMAT}")
        for name, digest in about["files"].items():
            if hashlib.sha256(read[name]).hexdigest() != digest:
                raise ValueError(f"{name} is damaged")
        journal = Path(folder) / _JOURNAL
        journal.write_bytes(read.pop(_JOURNAL))
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in read.items():
            (home.path / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(home.path / name, text.decode())
        # Beyond every line that the lost journal may have had: what those gave out is not given out again.
        write_private(home.path / "journal.high", f"{int(about['seq']) + _BEYOND}\n")
        write_private(home.path / LOGS_LOST, "")
        # The journal last: a folder with a journal is whole.
        sqlite.restore(journal, home.journal_file)
    return {key: about[key] for key in ("deployment", "seq", "at")}


async def _fetch_uploads(home: Home, blobs: Blobs, deployment: str) -> None:
    folder = _uploads(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for info in await blobs.list(f"{deployment}/uploads/"):
        name = info.key.rpartition("/")[2]
        data = await blobs.get(info.key)
        if hashlib.sha256(data).hexdigest() == name.partition(".")[0]:
            (folder / name).write_bytes(data)
        else:
            log.warning("%s is damaged and was left out", info.key)


def _opened(url: str) -> Blobs:
    try:
        return open_blobs(url)
    except BadInput as error:
        raise BadInput(*(Problem("--backup", "", p.message, p.fix) for p in error.problems)) from None


def _uploads(home: Home) -> Path:
    return home.path / "files" / "uploads"


def _lists(home: Home) -> list[str]:
    """The lists of outputs that are in a bucket."""
    return sorted(f"{_LISTS}/{path.name}" for path in (home.path / _LISTS).glob("*.jsonl"))


def _numbered(keys: Iterable[str]) -> list[tuple[int, str]]:
    found = []
    for key in keys:
        owner, _, name = key.rpartition("/")
        digits = name.removesuffix(".tar.gz")
        if owner and "/" not in owner and digits.isdigit() and len(digits) == 8 and name != digits:
            found.append((int(digits), owner))
    return found


def _numbers(infos: Iterable[object]) -> list[int]:
    return [number for number, _ in _numbered(str(getattr(info, "key", "")) for info in infos)]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
