"""A local folder as one archive to upload: equal files give equal bytes, so uploads are found by their digest."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from everstep.client.gitignore import IgnoreRules, is_ignored, read_rules
from everstep.model.errors import BadInput, Problem
from everstep.model.units import format_size

DEFAULT_LIMIT_BYTES = 100 * 2**20
MAX_FILES = 50_000
IGNORE_FILE = ".gitignore"
SKY_IGNORE_FILE = ".skyignore"
#: Folder of our own beside a script: what a check found. It grows with each check and is no part of the work.
OWN_FOLDER = ".everstep"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive ready for upload.

    Attributes:
        digest: sha256 of the archive, hexadecimal.
        archive: a gzipped tar, named by its digest. In it paths are relative, modes are 755 or 644, owners and
            times are zero.
        archive_bytes: its size.
        files: number of files and links in it.
        total_bytes: size of the files before packing.
        skipped: links left out because they lead outside the folder or nowhere, and special files; relative paths.
    """

    digest: str
    archive: Path
    archive_bytes: int
    files: int
    total_bytes: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    path: Path
    size: int
    is_link: bool
    executable: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """What is to be packed: looked at and found good, and not read yet.

    Attributes:
        skipped: as in `Packed`.
    """

    _found: list[_Found]
    _aim: _Aim
    skipped: tuple[str, ...] = ()

    def pack(self, *, into: Path) -> Packed:
        """Writes the archive into an existing folder; the caller removes it. Raises BadInput: a file vanished."""
        archive, digest = _archive(self._found, self._aim, into)
        return Packed(
            digest=digest,
            archive=archive,
            archive_bytes=archive.stat().st_size,
            files=len(self._found),
            total_bytes=sum(f.size for f in self._found),
            skipped=self.skipped,
        )


def list_workdir(
    path: Path | str,
    *,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    honour_ignore_files: bool = True,
    key: str = "workdir",
) -> Contents:
    """Looks at a folder that is to be packed.

    What is left out: every ``.git`` and ``.everstep``; what ``.gitignore`` files in the folder and below it exclude, in
    a git repository or not, by git's own rules (files already tracked by git are no exception, and ignore files *above*
    the folder do not count); if there is a ``.skyignore`` at the top, it alone counts. Relative links are kept when
    they lead to something inside the folder, other links are listed in ``skipped``. Empty folders are not kept.

    Args:
        path: the folder.
        limit_bytes: of all files together, before packing.
        honour_ignore_files: False for data folders, which are wanted whole.
        key: how problems call it.

    Raises:
        BadInput: it is not there, too large (the five largest files are named) or not readable (the files are named).
    """
    root = Path(path)
    if not root.is_dir():
        raise BadInput(Problem(str(root), key, "there is no such folder"))
    walker = _Walker(root, honour_ignore_files)
    found = sorted(walker.walk(), key=lambda f: f.name)
    aim = _Aim(str(root), key)
    _check(found, walker.unreadable, aim, limit_bytes)
    return Contents(found, aim, tuple(sorted(walker.skipped)))


def list_files(files: Mapping[str, Path], *, limit_bytes: int = DEFAULT_LIMIT_BYTES, key: str = "") -> Contents:
    """Looks at single files, to be packed under the names (relative paths) that they are to have once unpacked.

    Raises:
        BadInput: as `list_workdir`.
    """
    found, missing = [], []
    for name, path in sorted(files.items()):
        try:
            status = path.stat()
        except OSError:
            missing.append(str(path))
            continue
        found.append(_Found(name, path, status.st_size, False, bool(status.st_mode & 0o100)))
    aim = _Aim("file_mounts", key)
    _check(found, missing, aim, limit_bytes)
    return Contents(found, aim)


def pack_workdir(path: Path | str, *, into: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Packed:
    """Packs a folder into the folder ``into``: `list_workdir` and `Contents.pack` in one."""
    return list_workdir(path, limit_bytes=limit_bytes).pack(into=into)


@dataclass(frozen=True, slots=True)
class _Aim:
    """What is packed: ``where`` and ``key`` in problems."""

    where: str
    key: str

    def problem(self, message: str, fix: str = "") -> BadInput:
        return BadInput(Problem(self.where, self.key, message, fix))


def _check(found: list[_Found], unreadable: list[str], aim: _Aim, limit_bytes: int) -> None:
    blind = [*unreadable, *(f.name for f in found if not f.is_link and not os.access(f.path, os.R_OK))]
    if blind:
        more = f" and {len(blind) - _NAMED} more" if len(blind) > _NAMED else ""
        named = ", ".join(_shown(name) for name in sorted(blind)[:_NAMED])
        raise aim.problem(f"cannot be read: {named}{more}", _HOW_TO_LEAVE_OUT)
    if len(found) > MAX_FILES:
        raise aim.problem(f"has {len(found):,} files, at most {MAX_FILES:,} are packed", _HOW_TO_LEAVE_OUT)
    total = sum(f.size for f in found)
    if total > limit_bytes:
        largest = sorted(found, key=lambda f: (-f.size, f.name))[:_NAMED]
        named = ", ".join(f"{_shown(f.name)} ({format_size(f.size)})" for f in largest)
        limit = format_size(limit_bytes)
        raise aim.problem(
            f"has {format_size(total)}, at most {limit}; the largest files are {named}", _HOW_TO_LEAVE_OUT
        )


_HOW_TO_LEAVE_OUT = "list what is not needed in .gitignore or .skyignore"


def _shown(name: str) -> str:
    """A file's name for a message: names that are not UTF-8 cannot be printed as they are."""
    return name.encode("utf-8", "backslashreplace").decode()


class _Walker:
    def __init__(self, root: Path, honour: bool) -> None:
        self._root = root
        self._real_root = root.resolve()
        self._honour = honour
        self._never = {".git", OWN_FOLDER} if honour else {".git"}
        self._sky_alone = honour and (root / SKY_IGNORE_FILE).is_file()
        self.unreadable: list[str] = []
        self.skipped: list[str] = []

    def walk(self) -> Iterator[_Found]:
        """Everything that is to be packed, in no special order."""
        yield from self._folder(self._root, "", ())

    def _folder(self, folder: Path, prefix: str, rules: tuple[IgnoreRules, ...]) -> Iterator[_Found]:
        rules = self._with_own(folder, prefix, rules)
        try:
            entries = list(os.scandir(folder))
        except OSError:
            self.unreadable.append(prefix.rstrip("/") or ".")
            return
        for entry in entries:
            name = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in self._never or is_ignored(name, rules, is_folder=is_folder):
                continue
            if is_folder:
                # Like git, we do not look into an excluded folder: a negation inside cannot bring anything back.
                yield from self._folder(folder / entry.name, f"{name}/", rules)
            elif entry.is_symlink():
                yield from self._link(folder / entry.name, name)
            elif entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield _Found(name, folder / entry.name, status.st_size, False, bool(status.st_mode & 0o100))
            else:
                self.skipped.append(name)

    def _with_own(self, folder: Path, prefix: str, rules: tuple[IgnoreRules, ...]) -> tuple[IgnoreRules, ...]:
        if not self._honour or (self._sky_alone and prefix):
            return rules
        file = folder / (SKY_IGNORE_FILE if self._sky_alone else IGNORE_FILE)
        try:
            lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except FileNotFoundError:
            return rules
        except OSError:
            self.unreadable.append(prefix + file.name)
            return rules
        return (*rules, read_rules(lines, prefix))

    def _link(self, path: Path, name: str) -> Iterator[_Found]:
        try:
            aim = os.readlink(path)
            inside = path.resolve(strict=True).is_relative_to(self._real_root)
        except (OSError, RuntimeError):
            aim, inside = "/", False
        # Inside by its text, too: whoever unpacks looks at that before anything is written.
        by_text = os.path.normpath(os.path.join(os.path.dirname(name), aim))
        if inside and not os.path.isabs(aim) and by_text.split(os.sep)[0] != os.pardir:
            yield _Found(name, path, 0, True, False)
        else:
            self.skipped.append(name)


def _archive(found: list[_Found], aim: _Aim, into: Path) -> tuple[Path, str]:
    with tempfile.NamedTemporaryFile(dir=into, prefix="packing-", delete=False) as out:
        written = Path(out.name)
        try:
            _write(found, out, aim)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
    with written.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return written.replace(into / f"{digest}.tar.gz"), digest


def _write(found: list[_Found], out: IO[bytes], aim: _Aim) -> None:
    # The name and time in gzip's header would change the digest from day to day.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for one in found:
            info = tarfile.TarInfo(one.name)
            info.mode = 0o755 if one.executable or one.is_link else 0o644
            try:
                if one.is_link:
                    info.type, info.linkname = tarfile.SYMTYPE, os.readlink(one.path)
                    tar.addfile(info)
                else:
                    with one.path.open("rb") as file:
                        # A file may have grown or shrunk since it was listed.
                        info.size = os.fstat(file.fileno()).st_size
                        tar.addfile(info, file)
            except OSError as error:
                reason = (error.strerror or "it changed while it was read").lower()
                raise aim.problem(f"cannot be read: {_shown(one.name)} ({reason})") from None
