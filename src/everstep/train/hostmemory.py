"""Large host memory: buffers that are used again for every snapshot, and storages whose first touch is cheap."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import torch

_HUGE = 1 << 21
_ALIGNED = 1 << 8


class Arena:
    """One buffer that snapshots are copied into, made at the first use and used again.

    Without CUDA it is anonymous memory in huge pages that a forked data-loader worker does not inherit: a worker that
    lives on would make every write into it a page copy. With CUDA it is pinned, so that copies run on their own.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._pinned = False

    def reserve(self, size: int, *, pinned: bool) -> torch.Tensor:
        """At least ``size`` bytes as a tensor of uint8; what was reserved before is given up.

        Raises:
            MemoryError, RuntimeError: there is not that much.
        """
        if self._buffer.nbytes < size or self._pinned != pinned:
            self._buffer = torch.empty(0, dtype=torch.uint8)
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else _anonymous(size)
            self._pinned = pinned
        return self._buffer


def aligned(size: int) -> int:
    """The next offset in an arena at which a copy may begin."""
    return -(-size // _ALIGNED) * _ALIGNED


def new_storage(size: int) -> torch.UntypedStorage:
    """Uninitialised memory on the CPU that will be written in full."""
    storage = torch.UntypedStorage(size)  # type: ignore[no-untyped-call]
    if size >= 2 * _HUGE:
        _advise_huge(storage.data_ptr(), size)
    return storage


def _anonymous(size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
        # Not every kernel has both; neither is needed for a right copy.
        with contextlib.suppress(AttributeError, OSError):
            pages.madvise(getattr(mmap, advice))
    return torch.frombuffer(pages, dtype=torch.uint8)


def _advise_huge(address: int, size: int) -> None:
    start = -(-address // _HUGE) * _HUGE
    end = (address + size) // _HUGE * _HUGE
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)
