"""One rank's shard: any picklable state, written and read with a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO, Any

import torch

from everstep.train.folder import Folder, Manifest, Shard
from everstep.train.lineage import Position

_CHUNK = 1 << 22


class Damaged(Exception):
    """A shard is missing, cut short, changed or unreadable: its checkpoint must not be trained on."""


class _Digesting:
    """The writing end that `torch.save` needs, which hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self._hash.update(data)
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def flush(self) -> None:
        self._file.flush()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def write_shard(folder: Folder, position: Position, state: Any, *, rank: int, world_size: int, where: str) -> Shard:
    """Write ``state`` durably with its description beside it.

    Raises:
        Exception: whatever the disk or pickling raises; nothing of the shard stays then.
    """
    sink: _Digesting | None = None

    def fill(file: IO[bytes]) -> None:
        nonlocal sink
        sink = _Digesting(file)
        try:
            torch.save(state, sink)  # type: ignore[arg-type]  # only `write` and `flush` are used
        except Exception as error:
            # torch reports a full disk as a broken archive; what the disk said is what the user needs to know.
            raise (sink.error or error) from error

    folder.write_shard(position, rank, fill)
    assert sink is not None
    shard = Shard(rank, sink.sha256, sink.bytes, where)
    folder.describe_shard(position, shard, world_size)
    return shard


def read_shard(folder: Folder, manifest: Manifest, rank: int) -> Any:
    """The state of a rank, with tensors on the CPU, after its digest was checked against the manifest.

    The file is unpickled in full, as `torch.save` of arbitrary state needs: a checkpoint folder must be as trusted as
    the training script itself.

    Raises:
        Damaged: says what is wrong.
    """
    shard = manifest.shards[rank]
    path = folder.shard_path(manifest.position, rank)
    try:
        size, digest = _measure(path)
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror or error} (written on {shard.where})") from error
    if size != shard.bytes:
        raise Damaged(f"{path} has {size} bytes, the manifest says {shard.bytes}")
    if digest != shard.sha256:
        raise Damaged(f"{path} does not have the digest of the manifest")
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise Damaged(f"{path} cannot be read back: {error}") from error


def _measure(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
