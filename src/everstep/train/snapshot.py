"""Consistent copies of the state at a step boundary, most of them made while training goes on.

Parameters and optimizer state change in `Optimizer.step` alone: what `attach` was given as an optimizer is copied into
a reused buffer under the next forward and backward pass, by a thread on the CPU, on a stream of its own with CUDA. Only
the next ``step`` of any optimizer waits for what is left, and helps. Everything else (batch-norm statistics, averages,
counters) is copied at once.

That nothing else writes there is watched, not believed: a copy is thrown away if torch counted a write to its tensors
before it was complete, and reading ``parameter.data``, through which writes are not counted, waits for it. Not seen are
writes around torch, in the moment of the copy, through a NumPy view, a raw pointer or a ``.data`` that was kept:
``attach(copy_at_once=True)`` is for scripts that do that.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from everstep.train.devicecopy import DeviceCopy
from everstep.train.hostmemory import Arena, aligned
from everstep.train.shard import Content
from everstep.train.skeleton import memory, storage_key, take_apart

_PIECE = 1 << 23
_WORTH_IT = 1 << 16


@dataclass(frozen=True)
class _Watched:
    """A tensor whose writes torch counts, and the count at the boundary."""

    tensor: torch.Tensor
    version: int


class _Watch:
    """Judges, once, whether tensors were written to since the boundary."""

    def __init__(self, watched: Sequence[_Watched]) -> None:
        self._watched = watched
        self._lock = threading.Lock()
        self._written: torch.Tensor | None = None

    def judge(self) -> torch.Tensor | None:
        """A tensor that was written to before the first call, None if there is none."""
        with self._lock:
            if self._watched:
                self._written = next((w.tensor for w in self._watched if w.tensor._version != w.version), None)
                self._watched = ()
            return self._written


@dataclass(frozen=True)
class _Region:
    """A storage and its place in the buffer; with ``watched``, it may be copied late."""

    storage: torch.UntypedStorage
    start: int
    watched: Sequence[_Watched] = ()


class _Copy(Protocol):
    def wait(self) -> None:
        """Until it is complete."""

    def hold_back(self) -> None:
        """What training does from now on does not change what is copied."""


class Snapshot:
    """A copy in the making.

    Attributes:
        content: what to write; valid once `wait` returned and until the next snapshot.
    """

    def __init__(self, content: Content, copies: Sequence[tuple[_Copy, _Watch]]) -> None:
        self.content = content
        self._copies = copies

    def wait(self) -> torch.Tensor | None:
        """Wait until all is copied, and help. The tensor that was written to meanwhile: then it is no good; or None."""
        spoilt = None
        for copy, watch in self._copies:
            copy.wait()
            spoilt = spoilt if spoilt is not None else watch.judge()
        return spoilt

    def hold_back(self) -> None:
        """Called before parameters change: make sure that the copy does not see it."""
        for copy, watch in self._copies:
            copy.hold_back()
            watch.judge()


class Snapshots:
    """Takes snapshots of the attached objects' state, one at a time, into one buffer.

    Args:
        objects: what is attached; the optimizers among them say what may be copied late.
        at_once: copy everything at the boundary.
    """

    def __init__(self, objects: Mapping[str, Any], *, at_once: bool = False) -> None:
        self._optimizers = [thing for thing in objects.values() if _steps_are_seen(thing)]
        self.at_once = at_once
        self._arena = Arena()
        self._current: Snapshot | None = None
        # A run that nobody closes must not be kept alive by torch.
        me = weakref.ref(self)
        if self._optimizers:
            hook = register_optimizer_step_pre_hook(lambda *_: _before_step(me()))
            self._unhook = weakref.finalize(self, hook.remove)
        self.waited_s = 0.0

    def take(self, state: Any) -> Snapshot:
        """Begin a snapshot of ``state``. What was taken before must not be in use any more.

        Raises:
            Exception: pickling failed, or there is no memory.
        """
        if self._current is not None:
            self._current.wait()
        parts = take_apart(state)
        devices = {storage.device for storage in parts.storages}
        late = {} if self.at_once else self._late()
        sizes = [*(storage.nbytes() for storage in parts.storages), *(array.nbytes for array in parts.arrays)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + aligned(size))
        buffer = self._arena.reserve(starts[-1], pinned=any(device.type == "cuda" for device in devices))
        whole = memory(buffer.untyped_storage())
        views = [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        count = len(parts.storages)
        for view, array in zip(views[count:], parts.arrays, strict=True):
            view[:] = array
        regions = [
            _Region(storage, start, late.get(storage_key(storage), ()))
            for storage, start in zip(parts.storages, starts, strict=False)
        ]
        copies = _copy(regions, buffer, _DATA_READS.wait_for(self._before_step))
        self._current = Snapshot(Content(parts.skeleton, views[:count], views[count:]), copies)
        for copy, _ in copies:
            if isinstance(copy, _LateCopy):
                copy.start()
        return self._current

    def close(self) -> None:
        """Wait for a copy under way and let optimizers step freely."""
        self._before_step()
        if self._optimizers:
            self._unhook()

    def _before_step(self, *_: Any) -> None:
        snapshot = self._current
        if snapshot is not None:
            began = time.monotonic()
            snapshot.hold_back()
            # Not before: another thread that comes here meanwhile has to wait as well.
            self._current = None
            self.waited_s += time.monotonic() - began

    def _late(self) -> dict[int, list[_Watched]]:
        """What may be copied late, by storage, with the tensors on it whose writes are counted."""
        found: dict[int, list[_Watched]] = {}
        for tensor in self._step_tensors():
            # Sparse tensors have no storage of their own, inference tensors no count.
            if tensor.layout is torch.strided and not tensor.is_inference():
                storage = tensor.untyped_storage()
                if storage.nbytes() >= _WORTH_IT:
                    found.setdefault(storage_key(storage), []).append(_Watched(tensor, tensor._version))
        return found

    def _step_tensors(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _steps_are_seen(thing: Any) -> bool:
    """True for an optimizer whose ``step`` calls the hooks of torch before it changes anything."""
    return isinstance(thing, torch.optim.Optimizer) and bool(getattr(type(thing).step, "hooked", False))


def _before_step(snapshots: Snapshots | None) -> None:
    if snapshots is not None:
        snapshots._before_step()


def _copy(
    regions: Sequence[_Region], buffer: torch.Tensor, guard: contextlib.AbstractContextManager[None]
) -> list[tuple[_Copy, _Watch]]:
    """Copy what must be copied at once; what remains to be done, under ``guard`` where a thread of ours does it."""
    copies: list[tuple[_Copy, _Watch]] = []
    late: list[_Region] = []
    on_device: dict[torch.device, tuple[list[_Region], list[_Region]]] = {}
    for region in regions:
        device = region.storage.device
        if device.type == "cuda":
            on_device.setdefault(device, ([], []))[bool(region.watched)].append(region)
        elif device.type == "cpu" and region.watched:
            late.append(region)
        else:
            size = region.storage.nbytes()
            source = region.storage if device.type == "cpu" else region.storage.cpu()  # type: ignore[no-untyped-call]
            ctypes.memmove(buffer.data_ptr() + region.start, source.data_ptr(), size)
    for device, (now, later) in on_device.items():
        pairs = [[(region.storage, region.start) for region in some] for some in (now, later)]
        copies.append((DeviceCopy(device, buffer, pairs[0], pairs[1]), _watch(later)))
    if late:
        watch = _watch(late)
        copies.append((_LateCopy(late, buffer, watch, guard), watch))
    return copies


def _watch(regions: Sequence[_Region]) -> _Watch:
    return _Watch([one for region in regions for one in region.watched])


class _LateCopy:
    """Copies on the CPU in a thread of its own; whoever waits takes part."""

    def __init__(
        self,
        regions: Sequence[_Region],
        buffer: torch.Tensor,
        watch: _Watch,
        guard: contextlib.AbstractContextManager[None],
    ) -> None:
        self._regions = regions
        self._watch = watch
        self._guard = guard
        self._pieces: deque[tuple[int, int, int]] = deque()
        for region in regions:
            size, source = region.storage.nbytes(), region.storage.data_ptr()
            for at in range(0, size, _PIECE):
                target = buffer.data_ptr() + region.start + at
                self._pieces.append((target, source + at, min(_PIECE, size - at)))
        self._buffer = buffer
        self._left = len(self._pieces)
        self._lock = threading.Lock()
        self._done = threading.Event()

    def start(self) -> None:
        """Begin; the guard is held until all is copied."""
        self._guard.__enter__()
        threading.Thread(target=self._take_part, name="everstep-copy", daemon=True).start()

    def wait(self) -> None:
        """Copy what nobody copies yet, and wait for the rest."""
        self._take_part()
        self._done.wait()

    hold_back = wait

    def _take_part(self) -> None:
        while True:
            try:
                target, source, size = self._pieces.popleft()
            except IndexError:
                return
            # Through ctypes: it lets other threads run, and unlike torch it starts no team of threads for a copy.
            ctypes.memmove(target, source, size)
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                # Writes are judged before anybody who waits may write.
                self._watch.judge()
                self._guard.__exit__(None, None, None)
                self._regions = ()
                self._done.set()


class _DataReads:
    """Makes reading ``parameter.data`` wait for copies under way: writes through it are not counted by torch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def wait_for(self, wait: Callable[[], None]) -> Iterator[None]:
        """Until the block ends, whoever reads the data of a parameter calls ``wait`` first."""
        inner: Any = torch._C.TensorBase.data

        def read(parameter: Any) -> Any:
            for each in tuple(self._waits):
                each()
            return inner.__get__(parameter)

        with self._lock:
            if not self._waits:
                torch.nn.Parameter.data = property(read, inner.__set__)  # type: ignore[assignment]
            self._waits.append(wait)
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(wait)
                if not self._waits:
                    del torch.nn.Parameter.data


_DATA_READS = _DataReads()
