"""What stands in the place of an object that could not be rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class Poisoned(RuntimeError):
    """An object was used that could not be rebuilt."""


def _raise(text: str) -> None:
    raise Poisoned(text)


_refuse: Callable[[str], None] = _raise


def refuse_with(refuse: Callable[[str], None]) -> None:
    """What the first use of a poison does: it is given the text and must not come back. Default: raises `Poisoned`."""
    global _refuse
    _refuse = refuse


class Poison:
    """Refuses on first use: attributes, calls, items, arithmetic, truth, iteration, text; it may be kept and deleted.

    Only ``is`` and the type of it are silent, since nothing can be done about them.
    """

    __slots__ = ("_text",)

    def __init__(self, where: str, what: str, why: str) -> None:
        object.__setattr__(self, "_text", f"{where} ({what}) could not be restored: {why}")

    def __getattribute__(self, name: str) -> Any:
        use(self)


def text_of(poison: Poison) -> str:
    """Its text, without using it."""
    return str(object.__getattribute__(poison, "_text"))


def use(poison: Poison, *_args: object, **_more: object) -> NoReturn:
    """Refuse, as any use of the poison does."""
    text = text_of(poison)
    _refuse(text)
    raise Poisoned(text)


# fmt: off
_OPERATIONS = (
    "call", "iter", "next", "len", "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "getitem", "setitem",
    "delitem", "contains", "reversed", "length_hint", "missing", "add", "radd", "iadd", "sub", "rsub", "isub",
    "mul", "rmul", "imul", "matmul", "rmatmul", "imatmul", "truediv", "rtruediv", "itruediv", "floordiv",
    "rfloordiv", "ifloordiv", "mod", "rmod", "imod", "divmod", "rdivmod", "pow", "rpow", "ipow", "lshift",
    "rlshift", "ilshift", "rshift", "rrshift", "irshift", "and", "rand", "iand", "or", "ror", "ior", "xor", "rxor",
    "ixor", "neg", "pos", "abs", "invert", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil",
    "enter", "exit", "aenter", "aexit", "await", "aiter", "anext", "str", "repr", "bytes", "format", "fspath",
    "dir", "setattr", "delattr", "get", "set", "delete", "instancecheck", "subclasscheck", "copy", "deepcopy",
    "reduce", "reduce_ex", "getstate", "sizeof", "array",
)
# fmt: on
for _operation in _OPERATIONS:
    setattr(Poison, f"__{_operation}__", use)


def _torch_use(cls: type, function: object, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
    use(_first_poison([*args, *(kwargs or {}).values()]))


def _first_poison(values: list[Any]) -> Poison:
    while values:
        value = values.pop()
        if type(value) is Poison:
            return value
        if isinstance(value, (list, tuple)):
            values.extend(value)
    return Poison("an argument", "unknown", "it is nested too deeply to be named")


# torch looks at the type alone, so that `torch.add(x, poison)` refuses too.
Poison.__torch_function__ = classmethod(_torch_use)  # type: ignore[attr-defined]
