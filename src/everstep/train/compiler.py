"""Keeps torch's compiler out of the start of a process that compiles nothing.

Every optimizer and every ``DistributedDataParallel`` imports ``torch._dynamo``, only to tell it "do not trace this" or
to ask how it is set: 1.5-2 s, most of what a restart costs beyond ``import torch``. As long as nobody else has imported
it there is nobody who could trace, and it is set as by default. So until somebody wants more of it, a stand-in answers
these few questions; the first who does gets the real module, and so does everybody after that.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"
"""Where ``torch._compile._disable_dynamo`` keeps the marked function once it has made it; looked for at every call."""
_SETTINGS = ("TORCHDYNAMO", "TORCH_DYNAMO", "TORCH_COMPILE")


def postpone() -> bool:
    """Put the stand-in in place. False, and nothing is done, where the compiler is imported or set up already."""
    if _COMPILER in sys.modules or any(name.startswith(_SETTINGS) for name in os.environ):
        return False
    # The default of ``torch._dynamo.config.optimize_ddp``; and outside of a trace a break in the graph is nothing.
    utils = _StandIn(f"{_COMPILER}.utils", {"get_optimize_ddp_mode": lambda: "ddp_optimizer"})
    rules = _StandIn(f"{_COMPILER}.trace_rules", {"clear_lru_cache": _nothing})
    stand_in = _StandIn(_COMPILER, {"utils": utils, "trace_rules": rules, "graph_break": _nothing})
    sys.modules[_COMPILER] = stand_in  # type: ignore[assignment]  # not a module, so nobody takes it for one
    torch.__dict__["_dynamo"] = stand_in
    sys.meta_path.insert(0, _Finder())
    methods = [method for owner in (Optimizer, DistributedDataParallel) for method in vars(owner).values()]
    for layer in (layer for method in methods for layer in _layers(method)):
        _postpone_mark(layer)
    return True


class _StandIn:
    """Answers what it knows; for all else it makes way for the real module and passes on what that has."""

    __path__: Sequence[str] = ()
    """Its children are looked for as a package's are, by `_Finder`."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        self._name = name
        self._known = known
        self.__spec__ = ModuleSpec(name, None, is_package=True)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            # Asked by those who look through all modules; no reason to import this one.
            raise AttributeError(attribute)
        if _postponed() and attribute in self._known:
            return self._known[attribute]
        _import()
        return getattr(sys.modules[self._name], attribute)


class _Finder:
    """Sees the first import of one of the compiler's own modules."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{_COMPILER}.") or not _postponed():
            return None
        _import()
        module = importlib.import_module(name)
        spec = ModuleSpec(name, _Imported(module))
        # Where a module has been imported meanwhile, the import system goes by its spec, not by what it is told here.
        # (Through __dict__: some of these modules have a __setattr__ of their own.)
        module.__dict__["__spec__"] = spec
        return spec


class _Imported(Loader):
    """Hands out a module that is imported already, so that there is no second one of it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__spec__"] = self._spec


def _nothing(*_args: object, **_kwargs: object) -> None:
    """There is no trace to break, and no cache of traces to clear."""


def _postponed() -> bool:
    return isinstance(sys.modules.get(_COMPILER), _StandIn)


def _import() -> None:
    """Import the compiler, if that is not done."""
    if _postponed():
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        del sys.modules[_COMPILER]
        importlib.import_module(_COMPILER)


# --- what must never be traced ---------------------------------------------------------------------------------------


def _layers(method: Any) -> Iterator[Any]:
    """A method and what it wraps, outermost first."""
    while method is not None:
        yield method
        method = getattr(method, "__wrapped__", None)


def _postpone_mark(method: Any) -> None:
    code = getattr(method, "__code__", None)
    if code is None or code.co_filename != torch._compile.__file__ or _MARK not in code.co_consts:
        return
    cells = dict(zip(code.co_freevars, method.__closure__ or (), strict=True))
    marked = method.__wrapped__
    if "recursive" in cells and not hasattr(marked, _MARK):
        setattr(marked, _MARK, _unmarked(marked, recursive=bool(cells["recursive"].cell_contents)))


def _unmarked(function: Callable[..., Any], *, recursive: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _postponed():
            return function(*args, **kwargs)
        # Somebody compiles, or may: from now on the mark is the real one.
        import torch._dynamo

        marked = torch._dynamo.disable(function, recursive, wrapping=False)  # type: ignore[no-untyped-call]
        setattr(function, _MARK, marked)
        return marked(*args, **kwargs)

    return call
