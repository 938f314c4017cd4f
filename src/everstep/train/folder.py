"""The checkpoint store on a folder: what `lineage` decides, written so that a crash at any instant leaves it true.

    <root>/attempts/000002.claim                    attempt 2 is choosing a base (see `lineage`)
    <root>/attempts/000002.json                     attempt 2 began: its base, its world size; never changed
    <root>/000002/000000120/shard-00000.pt          state of rank 0 after 120 steps (format: `shard`)
    <root>/000002/000000120/shard-00000.json        its digest, size, world size, and where it lies
    <root>/000002/000000120/manifest.json           published: every shard with its digest; without it nothing is there
    <root>/000002/000000120/collect-000003          mark: attempt 3 may be deleting this checkpoint

A file with one of these names is complete or absent: it is written under a temporary name, synced, and then renamed (or
linked, where it must not exist yet).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from everstep.train.lineage import (
    Listing,
    Position,
    Record,
    attempt_file,
    claim_file,
    garbage,
    may_collect,
    shard_name,
)

FORMAT = 2
"""The newest format of shards, see `shard`."""
MANIFEST = "manifest.json"
_TEMPORARY = ".tmp-"
_ATTEMPT_DIR = re.compile(r"\d{6,}")
_STEP_DIR = re.compile(r"\d{9,}")
_RECORD_FILE = re.compile(r"(\d{6,})\.(json|claim)")
_MARK_FILE = re.compile(r"collect-(\d{6,})")
_STALE_FILE = re.compile(r"\.tmp-(\d+)-.*")


@dataclass(frozen=True)
class Shard:
    """One rank's part of a checkpoint, as the manifest names it. ``where`` tells the machine whose disk it lies on."""

    rank: int
    sha256: str
    bytes: int
    where: str


@dataclass(frozen=True)
class Manifest:
    """A published checkpoint. ``torch``: the version that wrote it, empty if it is not known."""

    position: Position
    world_size: int
    shards: tuple[Shard, ...]
    torch: str = ""
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)


class Folder:
    """One checkpoint folder. Methods raise OSError where the disk does; `listing` and `read_manifest` warn instead.

    Args:
        root: the folder; created by `prepare`.
        warn: called with one line about anything torn or unreadable, once per thing.
    """

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self._warn = warn
        self._warned: set[str] = set()

    # --- reading ------------------------------------------------------------------------------------------------

    def listing(self) -> Listing:
        """The folder as it is now. Marks are read before manifests, records and claims first of all (see `lineage`)."""
        records: dict[int, Record] = {}
        claims: set[int] = set()
        for name in _names(self.root / "attempts"):
            match = _RECORD_FILE.fullmatch(name)
            if match is None:
                continue
            number = int(match[1])
            if match[2] == "claim":
                claims.add(number)
            else:
                record = self.read_record(number)
                if record is not None:
                    records[number] = record
        marks: dict[Position, int] = {}
        manifests: set[Position] = set()
        for position in self._step_folders():
            collectors = [int(m[1]) for m in map(_MARK_FILE.fullmatch, _names(self.path(position))) if m]
            if collectors:
                marks[position] = max(collectors)
            if self.read_manifest(position) is not None:
                manifests.add(position)
        return Listing(records, frozenset(manifests), marks, frozenset(claims))

    def read_record(self, attempt: int) -> Record | None:
        """The record of an attempt; None if it did not begin, or (with a warning) if its file is damaged."""
        path = self.root / attempt_file(attempt)
        raw = _read_json(path)
        if raw is None:
            return None
        try:
            base = raw["base"]
            position = None if base is None else Position(int(base["attempt"]), int(base["step"]))
            return Record(attempt, position, int(raw["world_size"]))
        except (KeyError, TypeError, ValueError):
            self._warn_once(f"{path} is damaged; attempt {attempt} is ignored")
            return None

    def read_manifest(self, position: Position) -> Manifest | None:
        """The manifest at a position; None if not published, or (with a warning) if it is torn."""
        path = self.path(position) / MANIFEST
        raw = _read_json(path)
        if raw is None:
            return None
        manifest = _manifest(position, raw)
        if manifest is None:
            self._warn_once(f"checkpoint {position} is skipped: {path} is torn")
        return manifest

    def path(self, position: Position) -> Path:
        """Folder of a checkpoint."""
        return self.root / position.folder

    def shard_path(self, position: Position, rank: int) -> Path:
        """File of a rank's shard."""
        return self.path(position) / f"{shard_name(rank)}.pt"

    # --- beginning an attempt -----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the folder."""
        (self.root / "attempts").mkdir(parents=True, exist_ok=True)

    def claim(self, attempt: int) -> None:
        """Announce that ``attempt`` is choosing its base. Must come before the listing it chooses from."""
        _replace(self.root / claim_file(attempt), _json({"attempt": attempt, "claimed_at": time.time()}))

    def begin(self, record: Record) -> bool:
        """Create the record of an attempt, which freezes its base. False if the attempt has begun already."""
        base = record.base
        raw = {
            "attempt": record.attempt,
            "base": None if base is None else {"attempt": base.attempt, "step": base.step},
            "world_size": record.world_size,
            "created_at": time.time(),
        }
        return _create(self.root / attempt_file(record.attempt), _json(raw))

    def sweep(self, attempt: int) -> None:
        """Delete what older attempts left half written: temporary files, and folders that were never published.

        An older attempt that is still alive loses a save by this; nobody would have read it.
        """
        for name in _names(self.root / "attempts"):
            stale = _STALE_FILE.fullmatch(name)
            if stale is not None and int(stale[1]) < attempt:
                _unlink(self.root / "attempts" / name)
        for position in self._step_folders():
            if position.attempt >= attempt:
                continue
            folder = self.path(position)
            if not (folder / MANIFEST).exists():
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for name in _names(folder):
                if name.startswith(_TEMPORARY):
                    _unlink(folder / name)

    # --- publishing ---------------------------------------------------------------------------------------------

    def write_shard(self, position: Position, rank: int, write: Callable[[IO[bytes]], None]) -> None:
        """Write a rank's shard durably; ``write`` fills the file."""
        self.path(position).mkdir(parents=True, exist_ok=True)
        with _temporary(self.shard_path(position, rank)) as file:
            write(file)

    def describe_shard(self, position: Position, shard: Shard, world_size: int) -> None:
        """Write ``shard-r.json`` beside a shard that is complete."""
        path = self.path(position) / f"{shard_name(shard.rank)}.json"
        _replace(path, _json({**asdict(shard), "world_size": world_size}))

    def described_shard(self, position: Position, rank: int) -> Shard | None:
        """The shard of a rank if it is complete, else None."""
        raw = _read_json(self.path(position) / f"{shard_name(rank)}.json")
        if raw is None:
            return None
        try:
            return Shard(int(raw["rank"]), str(raw["sha256"]), int(raw["bytes"]), str(raw["where"]))
        except (KeyError, TypeError, ValueError):
            return None

    def publish(self, manifest: Manifest) -> None:
        """Make a checkpoint exist. All its shards must be complete."""
        folder = self.path(manifest.position)
        _replace(folder / MANIFEST, self.manifest_bytes(manifest))
        _sync_folder(folder.parent)

    @staticmethod
    def manifest_bytes(manifest: Manifest) -> bytes:
        """What a manifest's file holds."""
        return _json(
            {
                "format": manifest.format,
                "attempt": manifest.position.attempt,
                "step": manifest.position.step,
                "world_size": manifest.world_size,
                "shards": [{**asdict(s), "file": f"{shard_name(s.rank)}.pt"} for s in manifest.shards],
                "torch": manifest.torch,
                "created_at": time.time(),
            }
        )

    def adopt(self, name: str, content: bytes) -> None:
        """Put in a small file of a mirror, unless it is here: a record, or a manifest after its shards."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(path, content)

    def discard(self, position: Position) -> None:
        """Delete a checkpoint that could not be completed; does nothing to a published one."""
        folder = self.path(position)
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)

    # --- collecting ---------------------------------------------------------------------------------------------

    def collect(self, attempt: int, keep: int) -> tuple[Position, ...]:
        """Delete what ``attempt`` may and should (`lineage.garbage`), by the protocol of `lineage`.

        Returns:
            What went.
        """
        gone: list[Position] = []
        for victim in garbage(self.listing(), attempt, keep):
            folder = self.path(victim)
            mark = folder / f"collect-{attempt:06d}"
            # An empty file: a full disk must not keep us from making room on it.
            mark.touch()
            _sync_folder(folder)
            if not may_collect(self._began(), attempt):
                _unlink(mark)
                break
            # The manifest goes first: from then on the checkpoint does not exist; the mark goes last.
            _unlink(folder / MANIFEST)
            for name in _names(folder):
                if name != mark.name:
                    _unlink(folder / name)
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(victim)
        return tuple(gone)

    def fenced(self, attempt: int) -> bool:
        """True if a newer attempt began."""
        return self._began().fenced(attempt)

    def _began(self) -> Listing:
        """Records and claims alone: cheap, for the checks before each publish and each deletion."""
        records: dict[int, Record] = {}
        claims: set[int] = set()
        for name in _names(self.root / "attempts"):
            match = _RECORD_FILE.fullmatch(name)
            if match is not None and match[2] == "claim":
                claims.add(int(match[1]))
            elif match is not None:
                # Only the numbers count here: that a file is there fences, whatever it says.
                records[int(match[1])] = Record(int(match[1]), None, 1)
        return Listing(records=records, claims=frozenset(claims))

    def _step_folders(self) -> Iterator[Position]:
        for attempt in sorted(_names(self.root)):
            if _ATTEMPT_DIR.fullmatch(attempt):
                for step in sorted(_names(self.root / attempt)):
                    if _STEP_DIR.fullmatch(step):
                        yield Position(int(attempt), int(step))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


def manifest_of(position: Position, content: bytes) -> Manifest | None:
    """The manifest that a file's content holds; None if it is torn, or of another checkpoint."""
    try:
        raw = json.loads(content)
    except ValueError:
        return None
    return _manifest(position, raw if isinstance(raw, dict) else {})


def _manifest(position: Position, raw: dict[str, Any]) -> Manifest | None:
    try:
        shards = tuple(Shard(int(s["rank"]), str(s["sha256"]), int(s["bytes"]), str(s["where"])) for s in raw["shards"])
        manifest = Manifest(
            Position(int(raw["attempt"]), int(raw["step"])),
            int(raw["world_size"]),
            shards,
            torch=str(raw.get("torch", "")),
            format=int(raw.get("format", 1)),
        )
    except (KeyError, TypeError, ValueError):
        return None
    complete = [shard.rank for shard in shards] == list(range(manifest.world_size))
    return manifest if manifest.position == position and complete else None


# --- files ----------------------------------------------------------------------------------------------------------


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _json(raw: dict[str, Any]) -> bytes:
    return (json.dumps(raw, indent=1) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file; an empty object if it holds anything else."""
    try:
        raw = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


@contextlib.contextmanager
def _temporary(path: Path, *, exclusive: bool = False) -> Iterator[IO[bytes]]:
    """A file that becomes ``path`` when the block ends well, and vanishes otherwise.

    With ``exclusive``, FileExistsError if ``path`` exists by then.
    """
    prefix = f"{_TEMPORARY}{path.name.partition('.')[0]}-"
    handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        if exclusive:
            os.link(name, path)
        else:
            os.replace(name, path)
        _sync_folder(path.parent)
    finally:
        _unlink(Path(name))


def _replace(path: Path, content: bytes) -> None:
    with _temporary(path) as file:
        file.write(content)


def _create(path: Path, content: bytes) -> bool:
    try:
        with _temporary(path, exclusive=True) as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
