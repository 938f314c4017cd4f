"""One rank's shard: any picklable state, written in one stream, read back by several threads, every byte checked.

Format 2::

    b"EVSTEP2\\n" | memory of the state, block after block | index | length of the index, 8 bytes, little endian

The index is a pickle: the skeleton (see `skeleton`), the sizes of storages and arrays in the order of their bytes, and
a CRC-32 of each block of at most 4 MiB (a block never spans two of them); small ones lie in the index itself. The
digest in the manifest is the SHA-256 of index and length. So reading costs one pass, blocks are checked while they are
in the cache, and any number of threads can work on them.

Format 1, what `torch.save` writes with the SHA-256 of the file in the manifest, is still read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from everstep.train.folder import FORMAT, Folder, Manifest, Shard
from everstep.train.hostmemory import new_storage
from everstep.train.lineage import Position
from everstep.train.skeleton import memory, put_together, take_apart

_MAGIC = b"EVSTEP2\n"
_LENGTH = struct.Struct("<Q")
_BLOCK = 1 << 22
_INLINE = 1 << 14
_CHUNK = 1 << 22
_READERS = 4


class Damaged(Exception):
    """A shard is missing, cut short, changed or unreadable: its checkpoint must not be trained on."""


class Unreadable(Damaged):
    """Nothing is wrong with a shard, but this process cannot read it: an older one would be the wrong answer."""


# --- writing --------------------------------------------------------------------------------------------------------


def write_shard(folder: Folder, position: Position, state: Any, *, rank: int, world_size: int, where: str) -> Shard:
    """Write ``state`` durably with its description beside it, straight from its memory: it must stand still meanwhile.

    Raises:
        Exception: whatever the disk or pickling raises; nothing of the shard stays then.
    """
    parts = take_apart(state)
    content = Content(parts.skeleton, [_host(storage) for storage in parts.storages], parts.arrays)
    return write_content(folder, position, content, rank=rank, world_size=world_size, where=where)


@dataclass
class Content:
    """What goes into a shard: a skeleton, and the memory of its storages and arrays."""

    skeleton: bytes
    storages: Sequence[memoryview]
    arrays: Sequence[memoryview]

    @property
    def bytes(self) -> int:
        """Size of the memory."""
        return sum(view.nbytes for view in (*self.storages, *self.arrays))


def write_content(
    folder: Folder, position: Position, content: Content, *, rank: int, world_size: int, where: str
) -> Shard:
    """Write a shard durably with its description beside it.

    Raises:
        OSError: the disk's; nothing of the shard stays then.
    """
    digest, size = "", 0

    def fill(file: IO[bytes]) -> None:
        nonlocal digest, size
        digest, size = _stream(file, content)

    folder.write_shard(position, rank, fill)
    shard = Shard(rank, digest, size, where)
    folder.describe_shard(position, shard, world_size)
    return shard


def _stream(file: IO[bytes], content: Content) -> tuple[str, int]:
    """Write everything; (digest, size)."""
    file.write(_MAGIC)
    size = len(_MAGIC)
    entries: list[tuple[int, bytes | list[int]]] = []
    for view in (*content.storages, *content.arrays):
        if view.nbytes <= _INLINE:
            entries.append((view.nbytes, bytes(view)))
            continue
        checks = []
        for block in _blocks(view):
            checks.append(zlib.crc32(block))
            file.write(block)
        entries.append((view.nbytes, checks))
        size += view.nbytes
    index = {"skeleton": content.skeleton, "memory": entries, "storages": len(content.storages)}
    tail = pickle.dumps(index, protocol=5)
    tail += _LENGTH.pack(len(tail))
    file.write(tail)
    return hashlib.sha256(tail).hexdigest(), size + len(tail)


def _blocks(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, view.nbytes, _BLOCK):
        yield view[start : start + _BLOCK]


def _host(storage: torch.UntypedStorage) -> memoryview:
    return memory(storage if storage.device.type == "cpu" else storage.cpu())  # type: ignore[no-untyped-call]


# --- reading --------------------------------------------------------------------------------------------------------


def read_shard(folder: Folder, manifest: Manifest, rank: int) -> Any:
    """The state of a rank, with tensors on the CPU, every byte checked against the manifest.

    The skeleton is unpickled in full, as arbitrary state needs: a checkpoint folder must be as trusted as the training
    script itself.

    Raises:
        Damaged: says what is wrong.
        Unreadable: nothing is, but it cannot be read here.
    """
    shard = manifest.shards[rank]
    path = folder.shard_path(manifest.position, rank)
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:
                raise Damaged(f"{path} has {size} bytes, the manifest says {shard.bytes}")
            read = _FORMATS.get(manifest.format)
            if read is None:
                raise Damaged(
                    f"{path} has format {manifest.format}, this everstep reads up to {FORMAT}: use a newer one"
                )
            return read(path, file, shard)
    except PermissionError as error:
        raise Unreadable(f"{path} may not be read: {error.strerror}; give this user the right to") from error
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror or error} (written on {shard.where})") from error


def _read_2(path: Path, file: IO[bytes], shard: Shard) -> Any:
    index = _read_index(path, file, shard)
    sizes = [size for size, _ in index["memory"]]
    kept = [new_storage(size) for size in sizes[: index["storages"]]]
    arrays = [bytearray(size) for size in sizes[index["storages"] :]]
    views = [*(memory(storage) for storage in kept), *(memoryview(array) for array in arrays)]
    blocks = []
    at = len(_MAGIC)
    for view, (size, content) in zip(views, index["memory"], strict=True):
        if isinstance(content, bytes):
            view[:] = content
            continue
        checked = zip(_blocks(view), content, strict=True)
        blocks += [(at + _BLOCK * n, block, check) for n, (block, check) in enumerate(checked)]
        at += size
    if not _fill(file.fileno(), blocks):
        raise Damaged(f"{path} does not have the digest of the manifest")
    try:
        return put_together(index["skeleton"], kept, arrays)
    except Exception as error:
        raise Unreadable(_not_read_back(path, error)) from error


def _read_index(path: Path, file: IO[bytes], shard: Shard) -> dict[str, Any]:
    length = 0
    with contextlib.suppress(struct.error):
        (length,) = _LENGTH.unpack(os.pread(file.fileno(), _LENGTH.size, shard.bytes - _LENGTH.size))
    start = shard.bytes - _LENGTH.size - length
    tail = os.pread(file.fileno(), length + _LENGTH.size, start) if start >= len(_MAGIC) else b""
    whole = os.pread(file.fileno(), len(_MAGIC), 0) == _MAGIC and hashlib.sha256(tail).hexdigest() == shard.sha256
    if not whole:
        raise Damaged(f"{path} does not have the digest of the manifest")
    index: dict[str, Any] = pickle.loads(tail[:length])
    return index


_Block = tuple[int, memoryview, int]
"""Where it lies in the file, where it belongs, its check."""


def _fill(file: int, blocks: Sequence[_Block]) -> bool:
    """Read all blocks into their places; false if one is not what was written."""

    def take(mine: Sequence[_Block]) -> bool:
        return all(os.preadv(file, [view], at) == view.nbytes and zlib.crc32(view) == check for at, view, check in mine)

    readers = min(_READERS, len(os.sched_getaffinity(0)), len(blocks))
    if readers <= 1:
        return take(blocks)
    with ThreadPoolExecutor(readers) as pool:
        return all(pool.map(take, [blocks[n::readers] for n in range(readers)]))


def _read_1(path: Path, file: IO[bytes], shard: Shard) -> Any:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != shard.sha256:
        raise Damaged(f"{path} does not have the digest of the manifest")
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise Unreadable(_not_read_back(path, error)) from error


def _not_read_back(path: Path, error: Exception) -> str:
    return (
        f"{path} is whole and cannot be read back here: {type(error).__name__}: {error}; start with the code and the "
        "packages that wrote it, or give another checkpoint folder"
    )


_FORMATS = {1: _read_1, 2: _read_2}
