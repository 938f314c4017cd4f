"""Takes any picklable state apart into its structure, a few bytes, and its memory, many; and puts them together again.

The structure (*skeleton*) is a pickle in which each tensor storage and each array is a number. Making it is a
consistent copy of everything that is not memory. Storages are named once however many tensors view them: aliasing
survives.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_STORAGE = "storage"


@dataclass
class Parts:
    """A state taken apart: unpickle ``skeleton`` with these storages and arrays, and it is back.

    ``storages`` and ``arrays`` are the live memory, not a copy of it.
    """

    skeleton: bytes
    storages: list[torch.UntypedStorage] = field(default_factory=list)
    arrays: list[memoryview] = field(default_factory=list)


def take_apart(state: Any) -> Parts:
    """The parts of ``state``. Copies no tensor.

    Raises:
        Exception: whatever pickling raises.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    return Parts(file.getvalue(), pickler.storages, pickler.arrays)


def put_together(skeleton: bytes, storages: Sequence[torch.UntypedStorage], arrays: Sequence[Any]) -> Any:
    """The state: its tensors view ``storages``, its arrays are on ``arrays``; what lived on a GPU is on the CPU now.

    Unpickles in full: the bytes must be as trusted as the training script.
    """
    return _Unpickler(skeleton, storages, arrays).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._take_array)
        self._numbers: dict[int, int] = {}
        self.storages: list[torch.UntypedStorage] = []
        self.arrays: list[memoryview] = []

    def _take_array(self, buffer: pickle.PickleBuffer) -> None:
        self.arrays.append(buffer.raw())

    def persistent_id(self, obj: Any) -> tuple[str, int, torch.dtype | None] | None:
        if isinstance(obj, torch.storage.TypedStorage):
            return _STORAGE, self._number(obj._untyped_storage), obj.dtype
        if isinstance(obj, torch.UntypedStorage):
            return _STORAGE, self._number(obj), None
        return None

    def _number(self, storage: torch.UntypedStorage) -> int:
        key = storage_key(storage)
        if key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[key]


class _Unpickler(pickle.Unpickler):
    def __init__(self, skeleton: bytes, storages: Sequence[torch.UntypedStorage], arrays: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(skeleton), buffers=arrays)
        self._storages = storages

    def persistent_load(self, pid: Any) -> Any:
        kind, number, dtype = pid
        if kind != _STORAGE:
            raise pickle.UnpicklingError(f"unknown reference {kind!r}")
        storage = self._storages[number]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def storage_key(storage: torch.UntypedStorage) -> int:
    """Equal for two handles of the same living storage."""
    return int(storage._cdata)


def memory(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a storage on the CPU, writable, without a copy. Valid while the storage lives."""
    size = storage.nbytes()
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B")
