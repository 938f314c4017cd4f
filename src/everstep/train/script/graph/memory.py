"""The memory under tensors and arrays: who lies where, one copy of each piece, and where it goes back to."""

from __future__ import annotations

import bisect
import ctypes
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from everstep.train.script.graph.records import Captured, Region, Settings, Unrestorable

_SMALL_BYTES = 1 << 14
_ALIGNMENT = 64


@dataclass
class _Claim:
    """The part of one storage (or array's buffer) that is in use; ``base`` and the range are absolute addresses."""

    device: str
    base: int
    start: int
    end: int
    holder: object


class Claims:
    """Collects, during a capture, which memory is in use, and copies each piece once at the end."""

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def tensor(self, tensor: torch.Tensor) -> tuple[int, int]:
        """(number of the claim, byte offset in the storage) of a strided tensor."""
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        offset = int(tensor.storage_offset()) * size
        length = extent(tensor.shape, tensor.stride(), size)
        return self.range(str(tensor.device), storage.data_ptr(), (offset, length), storage), offset

    def range(self, device: str, base: int, used: tuple[int, int], holder: object) -> int:
        """Number of the claim on the buffer that begins at ``base``; ``used``: (byte offset, length) in it."""
        offset, length = used
        start = base + offset
        number = self._numbers.get((device, base))
        if number is None:
            number = self._numbers[device, base] = len(self._claims)
            self._claims.append(_Claim(device, base, start, start + length, holder))
        elif length:
            claim = self._claims[number]
            claim.start, claim.end = min(claim.start, start), max(claim.end, start + length)
        return number

    def copy_into(self, captured: Captured, settings: Settings) -> None:
        """Copy all that was claimed: fills in claims, regions and tensors."""
        captured.claims = [(0, 0)] * len(self._claims)
        arena = bytearray()
        arena_regions: list[tuple[int, int, int]] = []
        for claims in self._merged():
            first = self._claims[claims[0]]
            length = max(self._claims[number].end for number in claims) - first.start
            for number in claims:
                captured.claims[number] = (len(captured.regions), first.start - self._claims[number].base)
            if length <= _SMALL_BYTES and first.device == "cpu":
                arena_regions.append((len(captured.regions), len(arena), length))
                arena += ctypes.string_at(first.start, length)
                arena += bytes(-len(arena) % _ALIGNMENT)
                captured.regions.append(Region(None, 0, length, "cpu"))
            else:
                captured.regions.append(_copied(captured, settings, first, length))
        if arena:
            captured.tensors.append(torch.frombuffer(arena, dtype=torch.uint8))
        for number, start, length in arena_regions:
            captured.regions[number] = Region(len(captured.tensors) - 1 if arena else None, start, length, "cpu")

    def digests(self, at_least_bytes: int) -> dict[tuple[str, int, int], str]:
        """Digest of each piece of at least this size, by (device, address, bytes)."""
        found = {}
        for claims in self._merged():
            first = self._claims[claims[0]]
            length = max(self._claims[number].end for number in claims) - first.start
            if length >= at_least_bytes:
                data = raw(first.device, first.start, length, first.holder)
                found[first.device, first.start, length] = digest_of(data.cpu())
        return found

    def _merged(self) -> Iterable[list[int]]:
        """Claims that overlap (a tensor and an array over the same memory) belong together."""
        order = sorted(range(len(self._claims)), key=lambda n: (self._claims[n].device, self._claims[n].start))
        group: list[int] = []
        end, device = 0, ""
        for number in order:
            claim = self._claims[number]
            if group and claim.device == device and claim.start < end and claim.end > claim.start:
                group.append(number)
                end = max(end, claim.end)
                continue
            if group:
                yield group
            group, end, device = [number], claim.end, claim.device
        if group:
            yield group


def extent(shape: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Bytes from the first to behind the last element."""
    if 0 in shape:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * size


def digest_of(data: torch.Tensor) -> str:
    """Digest of a byte tensor on the CPU."""
    data = data.contiguous()
    if not data.numel():
        return hashlib.sha256().hexdigest()
    return hashlib.sha256((ctypes.c_char * data.numel()).from_address(data.data_ptr())).hexdigest()


def raw(device: str, address: int, length: int, holder: Any) -> torch.Tensor:
    """A byte tensor over memory that ``holder`` owns (a storage, or on the CPU any object), and keeps alive."""
    if isinstance(holder, torch.UntypedStorage):
        view = torch.empty(0, dtype=torch.uint8, device=device)
        return view.set_(holder, address - holder.data_ptr(), (length,), (1,))
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_char * length).from_address(address)
    memory.holder = holder  # type: ignore[attr-defined]  # the tensor holds the memory, which does not own itself
    return torch.frombuffer(memory, dtype=torch.uint8)


def _copied(captured: Captured, settings: Settings, claim: _Claim, length: int) -> Region:
    data = raw(claim.device, claim.start, length, claim.holder)
    known = settings.made_by_setup.get((claim.device, claim.start, length))
    if known is not None and digest_of(data.cpu()) == known:
        return Region(None, 0, length, claim.device, known)
    captured.tensors.append(data.clone() if claim.device == "cpu" else data.cpu())
    return Region(len(captured.tensors) - 1, 0, length, claim.device)


@dataclass(frozen=True)
class Place:
    """Where a tensor or an array lies: in the region of its claim, or in fresh memory.

    Attributes:
        claim: number of the claim in the save.
        offset: byte offset in the storage, at the save.
        length: bytes.
    """

    claim: int
    offset: int
    length: int


@dataclass(frozen=True)
class Standing:
    """Fresh memory under a partner: it begins at ``address``; its owner spans ``start`` to ``end``."""

    device: str
    address: int
    start: int
    end: int
    holder: object


class Targets:
    """Decides, during a restore, where each region goes, and writes it there."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._targets: dict[int, torch.Tensor] = {}
        self._written = False
        self._used: dict[str, list[tuple[int, int]]] = {}

    def offer(self, place: Place, standing: Standing) -> bool:
        """Whether the saved bytes of this place go to the fresh address; first come, first served."""
        number, inside = self._locate(place)
        region = self._captured.regions[number]
        if not place.length:
            return True
        begin = standing.address - inside
        target = self._targets.get(number)
        if target is not None:
            return target.data_ptr() == begin and str(target.device) == standing.device
        if standing.device != region.device or begin < standing.start or begin + region.length > standing.end:
            return False
        if not self._reserve(region.device, begin, begin + region.length):
            return False
        self._targets[number] = raw(region.device, begin, region.length, standing.holder)
        return True

    def storage(self, place: Place) -> tuple[torch.Tensor, int]:
        """(byte tensor over the region, byte offset of the place in it); the region gets new memory if it has none."""
        number, inside = self._locate(place)
        target = self._targets.get(number)
        if target is None:
            region = self._captured.regions[number]
            if self._written:
                raise RuntimeError("memory that is made after all was written would stay empty")
            if region.block is None and region.length:
                raise Unrestorable("a large array that the script had made before its loops is not there this time")
            target = self._targets[number] = torch.empty(region.length, dtype=torch.uint8, device=region.device)
            if region.length:
                self._reserve(region.device, target.data_ptr(), target.data_ptr() + region.length)
        return target, inside

    def write(self) -> None:
        """Write the saved bytes into all targets; what was left out is compared instead."""
        self._written = True
        for number, target in self._targets.items():
            region = self._captured.regions[number]
            if region.block is not None:
                _write(target, self._captured.region_bytes(region))
            elif region.digest and digest_of(target.cpu()) != region.digest:
                raise Unrestorable(
                    f"{region.length} bytes that the script makes before its loops came out different this time; "
                    "seed what they depend on"
                )

    def _locate(self, place: Place) -> tuple[int, int]:
        return self._captured.located(place.claim, place.offset)

    def _reserve(self, device: str, start: int, end: int) -> bool:
        used = self._used.setdefault(device, [])
        at = bisect.bisect_left(used, (start, end))
        if at and used[at - 1][1] > start:
            return False
        if at < len(used) and used[at][0] < end:
            return False
        used.insert(at, (start, end))
        return True


def _write(target: torch.Tensor, data: torch.Tensor) -> None:
    # Memory may be read-only (a mapped data set): what is equal already is not touched.
    head = slice(0, 1 << 12)
    if target.device.type == "cpu" and torch.equal(target[head], data[head]) and torch.equal(target, data):
        return
    target.copy_(data)
