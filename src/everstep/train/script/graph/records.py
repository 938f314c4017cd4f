"""What a saved object graph consists of: plain data that pickles, and a flat list of byte tensors."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

# A reference from one node to another is an int, an int value is a 1-tuple, the address of another node (``id``) is the
# pair ("id", node); values of these types stand for themselves.
INLINE: frozenset[type] = frozenset(
    {type(None), bool, float, complex, str, bytes, type(...), type(NotImplemented)}
    | {torch.dtype, torch.device, torch.memory_format, torch.qscheme}
)

# (name of its kind, what the kind keeps, references to its parts)
Node = tuple[str, Any, list[Any]]


class _Missing:
    """Nothing is on this access path."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(missing)"


MISSING = _Missing()


@dataclass
class Space:
    """Names and values to begin at: the globals of a module, or the locals of a frame.

    Attributes:
        key: equal at save and relaunch ("module train", "frame 0 train.main"), and unique among the spaces.
        values: name to value. Names such as ``__name__`` are left out.
    """

    key: str
    values: dict[str, object]


def _is_nobody(module: str) -> bool:
    return False


def _no_loop(thing: object) -> bool:
    return False


Memory = tuple[str, int, int]
"""A piece of memory: device, address, bytes."""


@dataclass(frozen=True)
class Made:
    """Large memory as the setup of the script had made it.

    Attributes:
        digest: of its bytes.
        where: access path of a tensor or array that spans it.
    """

    digest: str
    where: str


@dataclass(frozen=True)
class Settings:
    """How a graph is captured.

    Attributes:
        is_user: tells by its name whether a module is the user's; the attributes of its classes and the defaults and
            attributes of its functions are state. Modules whose globals are a space are the user's anyway.
        large_bytes: memory of at least this size can be left out, see ``made_by_setup``.
        made_by_setup: large memory as the setup of the script had made it (`setup_digests`). What is the same at a save
            and still on its path is left out: the relaunch makes it again, `restore` compares. What is not the same is
            taken out of this mapping, so that it is in every later save without another look.
        in_loop: tells of a suspended generator, or an ``enumerate`` and the like, whether a loop of the script that is
            going on draws from it, and is brought to where it was by itself: then it would be there twice, and is a
            problem.
        live: memory on the CPU is not copied: ``Captured.tensors`` lie over it, and it must stand still until whoever
            asked for that has copied or written it.
    """

    is_user: Callable[[str], bool] = _is_nobody
    large_bytes: int = 1 << 20
    made_by_setup: MutableMapping[Memory, Made] = field(default_factory=dict)
    in_loop: Callable[[object], bool] = _no_loop
    live: bool = False


@dataclass(frozen=True)
class Problem:
    """An object that cannot be rebuilt: `restore` puts a `Poison` there.

    Attributes:
        where: its access path, such as ``module train: model.reader``.
        what: its type.
        why: one sentence, with what helps.
    """

    where: str
    what: str
    why: str


class Unrestorable(RuntimeError):
    """The saved graph cannot be written into these objects; nothing that depends on it may go on."""


@dataclass(frozen=True)
class Region:
    """One piece of memory, shared by all tensors and arrays that lie in it.

    Attributes:
        block: number of the byte tensor that holds it; None when it was left out as the setup makes it again.
        start: where it begins there.
        length: bytes.
        device: where it lies ("cpu", "cuda:0").
        made: as the setup makes it again; None if it was not left out.
    """

    block: int | None
    start: int
    length: int
    device: str
    made: Made | None = None


@dataclass
class Captured:
    """A consistent copy of an object graph: the training may go on while it is written, unless it was captured
    ``live`` (see `Settings`). It pickles.

    Attributes:
        nodes: one per object, breadth first.
        roots: per space its key, names and references.
        claims: per storage or array the region it lies in, and the offset in the storage at which the region begins.
        tensors: one-dimensional byte tensors on the CPU, the bulk of the state.
        problems: what cannot be rebuilt.
        hook_ids: torch numbers hooks per process; after a restore new ones must not take numbers of old ones.
    """

    nodes: list[Node] = field(default_factory=list)
    roots: list[tuple[str, list[str], list[Any]]] = field(default_factory=list)
    claims: list[tuple[int, int]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hook_ids: int = 0

    def located(self, claim: int, offset: int) -> tuple[int, int]:
        """(number of the region, offset in it) of an offset in the storage of a claim."""
        number, begin = self.claims[claim]
        return number, offset - begin

    def region_bytes(self, region: Region) -> torch.Tensor:
        """The bytes of a region that was not left out (a view)."""
        if region.block is None:
            raise ValueError("this region was left out")
        return self.tensors[region.block][region.start : region.start + region.length]


@dataclass(frozen=True)
class Restored:
    """What to write into a space.

    Attributes:
        key: the space.
        values: name to value, for every saved name.
        gone: names that had been deleted, or had not existed yet.
    """

    key: str
    values: dict[str, object]
    gone: tuple[str, ...]


def is_dunder(name: str) -> bool:
    """Names such as ``__name__`` belong to the interpreter, not to the script."""
    return name.startswith("__") and name.endswith("__")
