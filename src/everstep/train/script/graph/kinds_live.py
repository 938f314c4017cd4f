"""What is bound to this process: files, locks, threads, processes, generators. Kept in place, or a problem."""

from __future__ import annotations

import _thread
import contextlib
import io
import logging
import os
import random
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.newlines import UNKNOWN, newline
from everstep.train.script.graph.poison import Poison, text_of
from everstep.train.script.graph.records import MISSING

_SINGLETONS: dict[str, Callable[[], object]] = {
    "sys.stdin": lambda: sys.stdin,
    "sys.stdout": lambda: _ours(sys.stdout),
    "sys.stderr": lambda: _ours(sys.stderr),
    "sys.__stdin__": lambda: sys.__stdin__,
    "sys.__stdout__": lambda: sys.__stdout__,
    "sys.__stderr__": lambda: sys.__stderr__,
    "os.environ": lambda: os.environ,
    "sys.argv": lambda: sys.argv,
    "sys.path": lambda: sys.path,
    "sys.modules": lambda: sys.modules,
    "random._inst": lambda: random._inst,
    "torch.default_generator": lambda: torch.default_generator,
    "numpy.random.mtrand._rand": lambda: _numpy_state(),
    "threading.main_thread()": threading.main_thread,
}


def _ours(stream: Any) -> object:
    """The stream if it is the process's own; one of the script's (``redirect_stdout(buffer)``) is an object of it."""
    if stream is sys.__stdout__ or stream is sys.__stderr__:
        return stream
    return stream if type(stream) is io.TextIOWrapper and getattr(stream, "name", None) in _STREAMS else None


_STREAMS = ("<stdout>", "<stderr>", 1, 2)


def singletons() -> dict[int, str]:
    """Objects of which a process has one, by id: they are found by name, and their state is not ours."""
    return {id(thing): name for name, find in reversed(_SINGLETONS.items()) if (thing := find()) is not None}


class _SingletonKind(Kind):
    """See `singletons`."""

    name = "singleton"

    def find(self, extra: Any) -> object:
        found = _SINGLETONS[extra]()
        return MISSING if found is None else found


class _PoisonKind(Kind):
    """What could not be rebuilt at the last relaunch cannot be now."""

    name = "poison"

    def take(self, thing: Any, saving: Saving) -> Taken:
        raise Hopeless(text_of(thing))


class _ProblemKind(Kind):
    """In a save: an object that cannot be rebuilt. Plain data is (type, why)."""

    name = "problem"

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        raise Hopeless(extra[1])


class _LeftKind(Kind):
    """Objects that stay as the setup made them: what they hold is not the script's state."""

    name = "left"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return f"{type(thing).__module__}.{type(thing).__qualname__}", ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if f"{type(fresh).__module__}.{type(fresh).__qualname__}" == extra else None


class _LoggerKind(Kind):
    """Loggers, by name."""

    name = "logger"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if thing is not logging.getLogger(thing.name) and thing is not logging.root:
            raise Hopeless("it is a logger that logging.getLogger does not know")
        return (thing.name, thing is logging.root), ()

    def find(self, extra: Any) -> object:
        return logging.root if extra[1] else logging.getLogger(extra[0])


class _LockKind(Kind):
    """Locks that nobody holds, in place."""

    name = "lock"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if _held(thing):
            raise Hopeless("it is a lock that is held; save outside of `with lock:`")
        return type(thing).__name__, ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if type(fresh).__name__ == extra and not _held(fresh) else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return threading.RLock() if extra == "RLock" else threading.Lock()


class _GoneKind(Kind):
    """Threads and processes: one that is over is like any object that stays; one that lives is a problem."""

    name = "over"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if _alive(thing):
            raise Hopeless("it is still going; let it end before the training loop, or start it within an iteration")
        return type(thing).__name__, ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if type(fresh).__name__ == extra and not _alive(fresh) else None


class _GeneratorKind(Kind):
    """Generators: exhausted ones are made anew; for suspended ones see `kinds_generators`; coroutines are a problem."""

    name = "generator"

    def pick(self, thing: Any) -> Kind:
        suspended = isinstance(thing, types.GeneratorType) and thing.gi_frame is not None
        return kinds.by_name("suspended generator") if suspended else self

    def take(self, thing: Any, saving: Saving) -> Taken:
        if not isinstance(thing, types.GeneratorType):
            raise Hopeless(
                "coroutines and asynchronous generators cannot be saved; end them before the loop that trains"
            )
        return thing.__qualname__, ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if isinstance(fresh, types.GeneratorType) and fresh.gi_frame is None else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        nothings: tuple[object, ...] = ()
        made = (nothing for nothing in nothings)
        made.close()
        return made


_OF_FILES = (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)


class _FileKind(Kind):
    """Files: name, mode and offset; in place if the relaunch opened the same name in the same mode, else opened again.

    A closed one has no offset. Where it lies is kept as well, since a name may be relative to a folder that was left.
    """

    name = "file"

    def take(self, thing: Any, saving: Saving) -> Taken:
        name, mode = getattr(thing, "name", ""), str(getattr(thing, "mode", ""))
        is_text = isinstance(thing, io.TextIOWrapper)
        text = (thing.encoding, thing.errors, newline(thing)) if is_text else (None, None, None)
        if thing.closed:
            return (str(name), mode, None, "", text), ()
        if not isinstance(name, str) or not thing.seekable():
            raise Hopeless("a pipe or a file without a path cannot be opened again")
        if is_text and type(thing.buffer) not in _OF_FILES:
            raise Hopeless(f"it is a text over a {type(thing.buffer).__name__}; open it in the loop")
        if not thing.readable():
            thing.flush()
        return (name, mode, thing.tell(), os.path.realpath(f"/proc/self/fd/{thing.fileno()}"), text), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        name, mode, offset, *_ = extra
        same = (getattr(fresh, "name", None), getattr(fresh, "mode", None)) == (name, mode)
        return () if same and fresh.closed == (offset is None) else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        name, mode, offset, path, (encoding, errors, *ends) = extra
        if offset is None:
            with open(os.devnull, mode.replace("x", "w"), encoding=encoding, errors=errors) as made:
                pass
        else:
            unknown = "r" in mode or ends in ([], [UNKNOWN])
            if encoding is not None and unknown and _has_returns(path):
                raise Hopeless(f"{path} has carriage returns, and how it was opened (newline=) is not known any more")
            end = ends[0] if ends and ends[0] != UNKNOWN else None
            again = mode.replace("x", "w").replace("w", "r" if "+" in mode else "r+")
            try:
                made = open(path, again, encoding=encoding, errors=errors, newline=end)  # noqa: SIM115  # the script closes
            except OSError as error:
                raise Hopeless(f"the file {path} cannot be opened again ({error.strerror})") from None
        _rename(made, name)
        return made

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if extra[2] is not None:
            thing.seek(extra[2])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ""


def _has_returns(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        while piece := file.read(1 << 20):
            if b"\r" in piece:
                return True
    return False


def _rename(file: Any, name: str) -> None:
    raw = file.buffer if isinstance(file, io.TextIOWrapper) else file
    raw = raw if isinstance(raw, io.FileIO) else raw.raw
    raw.name = name


def _numpy_state() -> object:
    numpy = sys.modules.get("numpy")
    return getattr(getattr(getattr(numpy, "random", None), "mtrand", None), "_rand", None)


def _held(lock: Any) -> bool:
    if hasattr(lock, "locked"):
        return bool(lock.locked())
    return "count=0" not in repr(lock)


def _alive(thing: Any) -> bool:
    if isinstance(thing, subprocess.Popen):
        return thing.poll() is None
    try:
        return bool(thing.is_alive())
    except (AssertionError, ValueError):
        return True


def _named(*names: str) -> Callable[[type], bool]:
    known = frozenset(names)
    return lambda cls: any(f"{c.__module__}.{c.__qualname__}" in known for c in cls.__mro__)


# Why each may stay as it is:
_LEFT = (
    "torch.utils.tensorboard.writer.SummaryWriter",  # a queue and a thread; its files are put back by themselves
    "torch.distributed.distributed_c10d.ProcessGroup",
    "torch._C._distributed_c10d.ProcessGroup",  # connections of this incarnation
    "torch._C._distributed_c10d.Store",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch._C._CudaStreamBase",
    "torch._C._CudaEventBase",
    "torch._C.Stream",
    "torch._ops.OpOverload",  # registered operators
    "torch._ops.OpOverloadPacket",
    "_contextvars.ContextVar",
    "importlib.machinery.ModuleSpec",
    "_frozen_importlib.ModuleSpec",
)


def install() -> None:
    """Make these kinds known."""
    kinds.add(_SingletonKind())
    kinds.add(_PoisonKind(), kinds.exactly(Poison))
    kinds.add(_ProblemKind())
    kinds.add(_LeftKind(), _named(*_LEFT))
    kinds.add(_LoggerKind(), kinds.below(logging.Logger))
    kinds.add(_LockKind(), kinds.exactly(_thread.LockType, _thread.RLock))
    kinds.add(_GoneKind(), _named("threading.Thread", "subprocess.Popen", "multiprocessing.process.BaseProcess"))
    kinds.add(_GeneratorKind(), kinds.exactly(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))
    kinds.add(
        _FileKind(), kinds.exactly(io.TextIOWrapper, io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.FileIO)
    )
