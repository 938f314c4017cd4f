"""Files that come and go whole: uploaded folders by digest, outputs of jobs by path."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from everstep.model.errors import BadInput, NotFound, Problem
from everstep.model.ids import JobId
from everstep.server.problems import TooLarge, disk_trouble

UPLOAD_BYTES = 200 << 20
OUTPUT_BYTES = 1 << 40
"""An output may be a checkpoint: the disk is the limit."""
_BATCH = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a job: path below its outputs, ``/``-separated, and size in bytes."""

    path: str
    bytes: int


class Files:
    """Uploads and outputs below one folder."""

    def __init__(self, folder: Path, *, upload_bytes: int = UPLOAD_BYTES) -> None:
        self._uploads = folder / "uploads"
        self._outputs = folder / "outputs"
        self._upload_bytes = upload_bytes
        for place in (self._uploads, self._outputs):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Parts of files whose server died while they came in. They are hidden files with a random name of ours.
            for part in place.rglob(".*.part"):
                part.unlink(missing_ok=True)

    # --- Uploads ------------------------------------------------------------------------------------------------------

    def upload(self, digest: str) -> Path | None:
        """The archive with that sha256, None if it is not held."""
        path = self._uploads / f"{_digest(digest)}.tar.gz"
        return path if path.is_file() else None

    async def store_upload(self, body: AsyncIterator[bytes], *, digest: str) -> str:
        """Keeps an archive.

        Args:
            body: its bytes.
            digest: the sha256 they must have; empty = whatever they have.

        Returns:
            The sha256.

        Raises:
            BadInput: other bytes than promised, or not a gzip file. TooLarge, DiskFull: nothing was kept.
        """
        promised = _digest(digest) if digest else ""

        def place(found: str, head: bytes) -> Path:
            if promised and found != promised:
                raise BadInput(
                    Problem(
                        "", "sha256", f"the upload has sha256 {found}, not {promised}; it was cut or changed on its way"
                    )
                )
            if head[:2] != b"\x1f\x8b":
                raise BadInput(Problem("", "body", "the upload is not a .tar.gz file"))
            return self._uploads / f"{found}.tar.gz"

        return await self._store(body, self._uploads, place, limit=self._upload_bytes, what="the upload")

    def sweep_uploads(self, wanted: Iterable[str], *, older_than_s: float) -> list[str]:
        """Deletes archives that are not ``wanted`` and were not touched for ``older_than_s``; gives their digests."""
        keep, gone = set(wanted), []
        for file in sorted(self._uploads.glob("*.tar.gz")):
            digest = file.name.partition(".")[0]
            if digest not in keep and time.time() - file.stat().st_mtime > older_than_s:
                file.unlink(missing_ok=True)
                gone.append(digest)
        return gone

    # --- Outputs ------------------------------------------------------------------------------------------------------

    def folder_of(self, job: JobId) -> Path:
        """Where the outputs of a job are; may not exist yet."""
        return self._outputs / job

    async def store_output(self, body: AsyncIterator[bytes], *, job: JobId, path: str, digest: str) -> str:
        """Keeps one output file of a job, whole or not at all; an older one of that path is replaced. Returns its
        sha256.

        Raises:
            BadInput: the path leaves the job's folder, or the bytes are not those of ``digest`` (empty = not checked).
            DiskFull: nothing was kept.
        """
        target = self._inside(job, path)
        promised = _digest(digest) if digest else ""

        def place(found: str, head: bytes) -> Path:
            if promised and found != promised:
                raise BadInput(Problem("", "X-Everstep-Sha256", f"{path} has sha256 {found}, not {promised}"))
            return target

        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(Problem("", "path", f"'{path}' goes through a file")) from None
        except OSError as error:
            raise disk_trouble(error, str(self._outputs)) from None
        if target.is_dir():
            raise BadInput(Problem("", "path", f"'{path}' is a folder"))
        return await self._store(body, target.parent, place, limit=OUTPUT_BYTES, what=path)

    def outputs(self, job: JobId) -> list[StoredFile]:
        """The output files of a job by path."""
        root = self.folder_of(job)
        found = (p for p in root.rglob("*") if p.is_file() and not _is_part(p))
        return sorted(
            (StoredFile(p.relative_to(root).as_posix(), p.stat().st_size) for p in found), key=lambda f: f.path
        )

    def output(self, job: JobId, path: str) -> Path:
        """One output file. Raises NotFound; BadInput if the path leaves the job's folder."""
        target = self._inside(job, path)
        if not target.is_file() or _is_part(target):
            raise NotFound(f"job {job} has no output '{path}'")
        return target

    def drop_output(self, job: JobId, path: str) -> None:
        """There is a newer one of that path elsewhere. Folders stay."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._inside(job, path).unlink()

    def _inside(self, job: JobId, path: str) -> Path:
        root = self.folder_of(job)
        target = root / checked_path(path)
        # Only we write below root and we write no links, but the owner of the disk may have put one there.
        if not target.resolve().is_relative_to(root.resolve()):
            raise BadInput(Problem("", "path", f"'{path}' leads out of the outputs of the job"))
        return target

    async def _store(
        self,
        body: AsyncIterator[bytes],
        folder: Path,
        place: Callable[[str, bytes], Path],
        *,
        limit: int,
        what: str,
    ) -> str:
        """Writes beside the target and renames, so that no reader ever sees half a file."""
        part = folder / f".{secrets.token_hex(8)}.part"
        sha, size, head = hashlib.sha256(), 0, b""
        try:
            with await asyncio.to_thread(_create, part) as file:

                def keep(batch: bytes) -> Awaitable[None]:
                    def write() -> None:
                        sha.update(batch)
                        file.write(batch)

                    return asyncio.to_thread(write)

                async for batch in _batches(body):
                    size += len(batch)
                    if size > limit:
                        raise TooLarge(limit, what)
                    head = head or batch[:16]
                    await keep(batch)
                target = place(sha.hexdigest(), head)
                await asyncio.to_thread(_settle, file)
            part.replace(target)
        except OSError as error:
            raise disk_trouble(error, str(folder)) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        return sha.hexdigest()


def checked_path(path: str) -> str:
    """A path below the outputs of a job in its shortest form. Raises BadInput if it is none, or leads out of them."""
    parts = PurePosixPath(path).parts
    bad = not parts or path.startswith("/") or "\\" in path or "\0" in path or any(part == ".." for part in parts)
    if bad or _size(path) > 4000 or any(_size(part) > 255 for part in parts):
        raise BadInput(Problem("", "path", f"'{path[:200]}' is not a path inside the outputs of a job"))
    return "/".join(parts)


async def _batches(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces worth a trip to a thread."""
    held, size = [], 0
    async for piece in body:
        held.append(piece)
        size += len(piece)
        if size >= _BATCH:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _create(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _settle(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise BadInput(Problem("", "sha256", f"'{text[:80]}' is not a sha256", "write 64 digits 0-9 a-f"))
    return text


def _is_part(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix == ".part" and len(path.name) == 22
