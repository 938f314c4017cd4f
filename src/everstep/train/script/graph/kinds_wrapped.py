"""What wraps other objects with state in C: stays where it is, and what it wraps is restored in place."""

from __future__ import annotations

import functools
import gc
import itertools
import types
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.kinds_containers import padded
from everstep.train.script.graph.state import getattr_dict

_CACHE_ENTRY = "_lru_list_elem"


class _CompiledKind(Kind):
    """What `torch.compile` made of a function or a module."""

    name = "compiled"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return type(thing).__name__, [_original(thing)]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        original = _original(fresh)
        return [original] if original is not None and type(fresh).__name__ == extra else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        raise Hopeless("it was compiled in the middle of the script; call torch.compile before the training loop")

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if filling.value(refs[0]) is not _original(thing):
            raise Hopeless("what it was compiled from is another object now")

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return "._orig_mod" if extra == "OptimizedModule" else "._torchdynamo_orig_callable"


class _ParallelKind(Kind):
    """DistributedDataParallel: its reducer knows the parameters it was made with, and no others."""

    name = "parallel"
    _NAMES = ("_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    _FLAGS = ("training", "require_backward_grad_sync")

    def take(self, thing: Any, saving: Saving) -> Taken:
        flags = tuple(thing.__dict__.get(name) for name in self._FLAGS)
        return flags, [*(thing.__dict__[name] for name in self._NAMES), *thing._module_parameters]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return padded([*(fresh.__dict__[name] for name in self._NAMES), *fresh._module_parameters], len(refs))

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        raise Hopeless("it was made in the middle of the script; wrap the model before the training loop")

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        saved = [filling.value(code) for code in refs[len(self._NAMES) :]]
        own = thing._module_parameters
        if len(saved) != len(own) or any(a is not b for a, b in zip(saved, own, strict=True)):
            raise Hopeless("its parameters were exchanged after it was made; wrap the model after that")
        thing.__dict__.update(zip(self._FLAGS, extra, strict=True))

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        names = [f".{name}" for name in self._NAMES]
        return names[position] if position < len(names) else f".parameters()[{position - len(names)}]"


class _CacheKind(Kind):
    """Functions under `functools.lru_cache`: the function, and what is in the cache, least recently used first."""

    name = "cache"

    def take(self, thing: Any, saving: Saving) -> Taken:
        function, maximum = thing.__wrapped__, thing.cache_parameters()["maxsize"]
        if maximum is None:
            return (None, 0, ()), [function, _cache(thing)]
        entries = list(_entries(thing))
        if entries and not isinstance(function, types.FunctionType):
            raise Hopeless("the cache of a function that is not written in Python cannot be filled again")
        keys = tuple(len(arguments) for arguments, _, _ in entries)
        names = tuple(tuple(named) for _, named, _ in entries)
        parts = [p for arguments, named, result in entries for p in (*arguments, *named.values(), result)]
        return (maximum, len(entries), tuple(zip(keys, names, strict=True))), [function, *parts]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if fresh.cache_parameters()["maxsize"] != extra[0]:
            return None
        return padded([fresh.__wrapped__, *([_cache(fresh)] if extra[0] is None else [])], len(refs))

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[:1]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        raise Hopeless("it was put under lru_cache in the middle of the script; decorate it at module level")

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if thing.__wrapped__ is not filling.value(refs[0]):
            raise Hopeless("the function under lru_cache is another one now")
        if extra[0] is None:
            return
        thing.cache_clear()
        values = iter([filling.value(code) for code in refs[1:]])
        for count, names in extra[2]:
            arguments = list(itertools.islice(values, count))
            named = {name: next(values) for name in names}
            _put(thing, arguments, named, next(values))


_answers: list[Any] = []


def _answer() -> Any:
    return _answers.pop()


def _put(cached: Any, arguments: list[Any], named: dict[str, Any], result: Any) -> None:
    """Enter a result into a bounded cache: the only way in is a call, so the function answers with it for once."""
    function: types.FunctionType = cached.__wrapped__
    code = function.__code__
    _answers.append(result)
    function.__code__ = _stub(len(code.co_freevars))
    try:
        cached(*arguments, **named)
    finally:
        function.__code__ = code
        _answers.clear()


def _stub(free: int) -> types.CodeType:
    """Code with so many free variables that gives `_answer()`."""
    names = [f"v{number}" for number in range(free)]
    text = "def outer(" + ", ".join(names) + "):\n    def stub(*arguments, **named):\n"
    text += "        " + ("(" + ", ".join(names) + ",)" if names else "pass") + "\n"
    text += f"        from {__name__} import _answer\n        return _answer()\n    return stub\n"
    found: dict[str, Any] = {}
    exec(text, found)
    stub: types.FunctionType = found["outer"](*names)
    return stub.__code__


def _cache(cached: Any) -> dict[Any, Any]:
    return next(thing for thing in gc.get_referents(cached) if type(thing) is dict and thing is not cached.__dict__)


def _entries(cached: Any) -> Iterator[tuple[list[Any], dict[str, Any], Any]]:
    """(positional arguments, named arguments, result), least recently used first."""
    referents = gc.get_referents(cached)
    typed = cached.cache_parameters()["typed"]
    found = [at for at, thing in enumerate(referents) if isinstance(thing, type) and thing.__name__ == _CACHE_ENTRY]
    if len(found) < cached.cache_info().currsize:
        raise Hopeless("the cache of this function cannot be read")
    for at in found[: cached.cache_info().currsize]:
        arguments, named = _arguments(referents[at - 2], typed)
        yield arguments, named, referents[at - 1]


def _arguments(key: Any, typed: bool) -> tuple[list[Any], dict[str, Any]]:
    if type(key) is not tuple:
        return [key], {}
    mark = next((at for at, part in enumerate(key) if type(part) is object), None)
    if mark is None:
        return list(key[: len(key) // 2] if typed else key), {}
    rest = list(key[mark + 1 :])
    if typed:
        rest = rest[: 2 * (len(rest) - mark) // 3]
    return list(key[:mark]), dict(zip(rest[::2], rest[1::2], strict=True))


def _original(thing: Any) -> object:
    attributes = getattr_dict(thing) or {}
    if "_torchdynamo_orig_callable" in attributes:
        found: object = attributes["_torchdynamo_orig_callable"]
        return found
    return (attributes.get("_modules") or {}).get("_orig_mod")


def _torch_class(name: str) -> Any:
    return lambda cls: any(c.__name__ == name and c.__module__.startswith("torch.") for c in cls.__mro__)


def install() -> None:
    """Make these kinds known."""
    kinds.add(_CompiledKind(), _torch_class("OptimizedModule"))
    kinds.add(_ParallelKind(), _torch_class("DistributedDataParallel"))
    kinds.add(_CacheKind(), kinds.exactly(functools._lru_cache_wrapper))
