"""The memory under tensors and arrays: who lies where, one copy of each piece, and where it goes back to."""

from __future__ import annotations

import bisect
import ctypes
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.train.script.graph.records import Captured, Made, Memory, Region, Unrestorable

_SMALL_BYTES = 1 << 14
_ALIGNMENT = 64
# Nine times as fast as `torch.equal`, and it ends at the first difference.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class _Claim:
    """The part of one storage (or array's buffer) that is in use; ``base`` and the range are absolute addresses."""

    device: str
    base: int
    start: int
    end: int
    holder: object


@dataclass(frozen=True)
class Piece:
    """One stretch of memory in use, whatever lies over it.

    Attributes:
        claims: numbers of the claims on it.
        memory: device, address of the first byte, bytes.
        holder: what keeps it alive.
    """

    claims: list[int]
    memory: Memory
    holder: object

    def data(self) -> torch.Tensor:
        """Its bytes (a view)."""
        return raw(*self.memory, self.holder)


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

    def base(self, claim: int) -> int:
        """The address at which the storage or the buffer of a claim begins."""
        return self._claims[claim].base

    def copy_into(self, captured: Captured, left_out: Mapping[Memory, Made], *, live: bool = False) -> None:
        """Copy all that was claimed, but for what is left out: fills in claims, regions and tensors.

        ``live``: large memory on the CPU is not copied.
        """
        captured.claims = [(0, 0)] * len(self._claims)
        arena = bytearray()
        arena_regions: list[tuple[int, int, int]] = []
        for piece in self.pieces():
            device, start, length = piece.memory
            for number in piece.claims:
                captured.claims[number] = (len(captured.regions), start - self._claims[number].base)
            if length <= _SMALL_BYTES and device == "cpu":
                arena_regions.append((len(captured.regions), len(arena), length))
                arena += ctypes.string_at(start, length)
                arena += bytes(-len(arena) % _ALIGNMENT)
                captured.regions.append(Region(None, 0, length, "cpu"))
            elif piece.memory in left_out:
                captured.regions.append(Region(None, 0, length, device, left_out[piece.memory]))
            else:
                captured.tensors.append(_on_cpu(piece, live=live))
                captured.regions.append(Region(len(captured.tensors) - 1, 0, length, device))
        if arena:
            captured.tensors.append(torch.frombuffer(arena, dtype=torch.uint8))
        for number, start, length in arena_regions:
            captured.regions[number] = Region(len(captured.tensors) - 1 if arena else None, start, length, "cpu")

    def pieces(self) -> Iterable[Piece]:
        """All that was claimed, in the order of the addresses."""
        for claims in self._merged():
            first = self._claims[claims[0]]
            length = max(self._claims[number].end for number in claims) - first.start
            yield Piece(claims, (first.device, first.start, length), first.holder)

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


def _on_cpu(piece: Piece, *, live: bool) -> torch.Tensor:
    device, start, length = piece.memory
    if device != "cpu":
        return piece.data().cpu()
    # A tensor over a storage of its own: the user's may be larger than what is in use of it.
    return raw(device, start, length, (piece.holder,)) if live else piece.data().clone()


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


@dataclass
class Writes:
    """What one relaunch has written so far, from one save.

    Attributes:
        final: this is the write that counts.
        addresses: of the large regions that were written, by number.
        made: after the final write, what was left out of the save, as the setup has made it again.
    """

    final: bool = True
    addresses: dict[int, int] = field(default_factory=dict)
    made: dict[Memory, Made] = field(default_factory=dict)


class Targets:
    """Decides, during a restore, where each region goes, and writes it there."""

    def __init__(self, captured: Captured, writes: Writes) -> None:
        self._captured = captured
        self._writes = writes
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
        """Write the saved bytes into all targets; at last, what was left out is compared.

        On the way, what is large is written once only: reading all of it again at each departure would cost more than
        reading the save, and the final write looks at every byte.
        """
        self._written = True
        for number, target in self._targets.items():
            region = self._captured.regions[number]
            if region.block is None:
                self._compare(region, target)
                continue
            again = self._writes.addresses.get(number) == target.data_ptr()
            if self._writes.final or not again:
                _write(target, self._captured.region_bytes(region))
            if region.length > _SMALL_BYTES:
                self._writes.addresses[number] = target.data_ptr()

    def _compare(self, region: Region, target: torch.Tensor) -> None:
        made = region.made
        if made is None or not self._writes.final:
            return
        if digest_of(target.cpu()) != made.digest:
            raise Unrestorable(
                f"{made.where}: {region.length} bytes that the script makes before its loops came out different this "
                "time; seed what they depend on, fill what torch.empty made, and change them back and forth nowhere"
            )
        self._writes.made[region.device, target.data_ptr(), region.length] = made

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
    if target.device.type != "cpu" or _memcmp(target.data_ptr(), data.data_ptr(), target.numel()) != 0:
        target.copy_(data)
