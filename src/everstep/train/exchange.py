"""Before an attempt begins: machines without a shared folder give each other the shards that their new ranks need.

Disks come back and ranks move: when the master is lost a survivor takes rank 0, and the machine that gets the lost
one's disk takes another rank (rule 7). Every shard is still on a disk then, only not on the one of its rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import torch
import torch.distributed as dist

from everstep.train.folder import MANIFEST, Folder, Manifest, manifest_of
from everstep.train.gang import Gang
from everstep.train.lineage import Position
from everstep.train.skeleton import memory

_CHUNK = 16 << 20
"""Bytes that travel at a time; each end holds so many."""


class Exchange:
    """Over the gang's own process group.

    Args:
        gang: all ranks, two or more.
        folder: this rank's; ranks of one machine share it.
        keeps_folder: this rank is the one that gives what the folder has.
    """

    def __init__(self, gang: Gang, folder: Folder, keeps_folder: bool) -> None:
        self._gang = gang
        self._folder = folder
        self._keeps_folder = keeps_folder

    def bring(self, position: Position) -> str:
        """Afterwards each machine has the manifest, and the shards of its ranks; all ranks call it.

        Contents are not checked here: whoever reads a shard holds it against the manifest.

        Returns:
            What went wrong, the same on all ranks; "" if nothing did.
        """
        content = next((found for found in self._gang.gather(self._manifest(position)) if found), b"")
        manifest = manifest_of(position, content)
        if manifest is None:
            return f"no machine has the manifest of checkpoint {position}"
        if manifest.world_size != self._gang.world_size:
            return ""  # whoever reads it refuses by name
        here = self._here(manifest)
        everyone = self._gang.gather(here if self._keeps_folder else frozenset())
        wanting = self._gang.gather(self._gang.rank not in here)
        problem = ""
        for rank in (rank for rank, wants in enumerate(wanting) if wants):
            source = next((keeper for keeper, shards in enumerate(everyone) if rank in shards), None)
            if source is None:
                return f"no machine has the shard of rank {rank}"
            problem = self._move(manifest, rank, source) or problem
        problem = next((text for text in self._gang.gather(problem) if text), "")
        if not problem and self._keeps_folder:
            try:
                self._folder.adopt(f"{position.folder}/{MANIFEST}", content)
            except OSError as error:
                problem = error.strerror or str(error)
        return next((text for text in self._gang.gather(problem) if text), "")

    def _manifest(self, position: Position) -> bytes:
        try:
            return (self._folder.path(position) / MANIFEST).read_bytes() if self._keeps_folder else b""
        except OSError:
            return b""

    def _here(self, manifest: Manifest) -> frozenset[int]:
        found = set()
        for shard in manifest.shards:
            try:
                size = self._folder.shard_path(manifest.position, shard.rank).stat().st_size
            except OSError:
                continue
            if size == shard.bytes:
                found.add(shard.rank)
        return frozenset(found)

    def _move(self, manifest: Manifest, rank: int, source: int) -> str:
        """One shard, from the rank ``source`` to the rank whose it is; nothing to do for others."""
        size = manifest.shards[rank].bytes
        if self._gang.rank == source:
            return self._give(manifest, rank, size)
        if self._gang.rank == rank:
            return self._take(manifest, source, size)
        return ""

    def _give(self, manifest: Manifest, rank: int, size: int) -> str:
        problem, file = "", None
        try:
            file = self._folder.shard_path(manifest.position, rank).open("rb")
        except OSError as error:
            problem = error.strerror or str(error)
        for length in _chunks(size):
            # The other end waits for every byte, whatever becomes of the file.
            chunk = torch.zeros(length, dtype=torch.uint8)
            try:
                if file is not None:
                    file.readinto(memory(chunk.untyped_storage()))
            except OSError as error:
                problem = error.strerror or str(error)
            dist.send(chunk, dst=rank, group=self._gang.group)
        if file is not None:
            file.close()
        return problem

    def _take(self, manifest: Manifest, source: int, size: int) -> str:
        chunks = self._arriving(source, size)

        def write(file: IO[bytes]) -> None:
            for chunk in chunks:
                file.write(memory(chunk.untyped_storage()))

        try:
            self._folder.write_shard(manifest.position, self._gang.rank, write)
        except OSError as error:
            for _ in chunks:
                pass  # what is on its way must arrive
            return error.strerror or str(error)
        return ""

    def _arriving(self, source: int, size: int) -> Iterator[torch.Tensor]:
        for length in _chunks(size):
            chunk = torch.empty(length, dtype=torch.uint8)
            dist.recv(chunk, src=source, group=self._gang.group)
            yield chunk


def _chunks(size: int) -> Iterator[int]:
    return (min(_CHUNK, size - at) for at in range(0, size, _CHUNK))
