"""Fetches uploaded folders: checked by digest, unpacked without leaving the target."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import BinaryIO

from everstep.agent import transfer
from everstep.agent.link import Backoff, LinkDown, Session
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


class BadArchive(Exception):
    """The archive is not what was promised; the text says how."""


def fetch(session: Session, sha256: str, target: Path) -> None:
    """Download the folder ``sha256`` and unpack it over ``target``. Files that are not in the archive stay.

    Raises:
        LinkDown, Refused: see :mod:`everstep.agent.link`.
        BadArchive: an entry would be written outside of ``target``, or it is no archive at all.
    """
    target.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".tar.gz.tmp")
    try:
        with open(temporary, "w+b") as file:
            if not _by_url(session, sha256, file):
                session.request("GET", hs.PATH_WORKDIR + sha256, timeout_s=300.0, sink=file)
                found = _digest(file)
                if found != sha256:
                    raise LinkDown(f"the folder arrived with digest {found[:12]}, expected {sha256[:12]}")
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                unpack(archive, target)
    except (tarfile.TarError, EOFError) as error:
        raise BadArchive(f"the uploaded folder is not a .tar.gz: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _by_url(session: Session, sha256: str, file: BinaryIO) -> bool:
    """Download it from a bucket, if that is where the server has it; False, with an empty file: ask the server."""
    backoff = Backoff()
    with transfer.Bucket() as bucket:
        for _ in range(transfer.TRIES):
            found = transfer.folder(session, sha256)
            if found is None:
                break
            try:
                bucket.fetch(found[0], file, found[1])
                if _digest(file) == sha256:
                    return True
                raise transfer.Failed("it arrived with another digest")
            except transfer.Failed as error:
                log.warning("folder %s by URL: %s", sha256[:12], error)
                time.sleep(backoff.next_s())
    file.seek(0)
    file.truncate()
    return False


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


def unpack(archive: tarfile.TarFile, target: Path) -> None:
    """Unpack folders, regular files and links that stay inside; anything else is refused before anything is written."""
    top = os.path.realpath(target)
    members = archive.getmembers()
    links = set()
    for member in members:
        name = os.path.normpath(member.name)
        if os.path.isabs(member.name) or name.split(os.sep)[0] == os.pardir:
            raise BadArchive(f"{member.name!r} would be written outside of the folder")
        parts = name.split(os.sep)
        if any(os.sep.join(parts[:depth]) in links for depth in range(1, len(parts))):
            raise BadArchive(f"{member.name!r} would be written through a link")
        if member.issym():
            aim = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
            if os.path.isabs(member.linkname) or aim.split(os.sep)[0] == os.pardir:
                raise BadArchive(f"{member.name!r} links outside of the folder")
            links.add(name)
        elif not (member.isfile() or member.isdir()):
            raise BadArchive(f"{member.name!r} is neither a file nor a folder nor a symbolic link")
    for member in members:
        _write(archive, member, Path(top) / os.path.normpath(member.name), top)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, top: str) -> None:
    # A link that an earlier unpacking left in the way must not lead outside either.
    parent = os.path.realpath(path.parent)
    if parent != top and not parent.startswith(top + os.sep):
        raise BadArchive(f"{member.name!r} would be written outside of the folder")
    if member.isdir():
        if path.is_symlink():
            path.unlink()
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    if member.issym():
        os.symlink(member.linkname, path)
        return
    source = archive.extractfile(member)
    assert source is not None
    with source, open(path, "wb") as file:
        shutil.copyfileobj(source, file)
    os.chmod(path, (member.mode & 0o777) | 0o600)
    os.utime(path, (member.mtime, member.mtime))
