"""Modules, classes, functions, methods and enum members: found by name; state that users hang on them comes back."""

from __future__ import annotations

import enum
import hashlib
import importlib
import marshal
import operator
import sys
import types
from collections.abc import Sequence
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.kinds_containers import padded
from everstep.train.script.graph.memory import Place
from everstep.train.script.graph.records import MISSING, is_dunder
from everstep.train.script.graph.scopes import check_shared
from everstep.train.script.graph.state import getattr_dict

_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)
_NOT_ATTRIBUTES = frozenset({"_abc_impl"})


def named(module: str | None, qualname: str) -> object:
    """What is found under this name in the modules that are loaded, or MISSING."""
    place: Any = sys.modules.get(module or "")
    if place is None:
        return MISSING
    try:
        return operator.attrgetter(qualname)(place)
    except AttributeError:
        return MISSING


def qualified(thing: Any) -> tuple[str, str]:
    """(module, qualified name) as the object states them."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    return (module if isinstance(module, str) else "", str(name))


class _ModuleKind(Kind):
    """Modules, by name; the globals of the user's modules are spaces of their own."""

    name = "module"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return thing.__name__, ()

    def find(self, extra: Any) -> object:
        try:
            return sys.modules.get(extra) or importlib.import_module(extra)
        except ImportError:
            return MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if fresh.__name__ == extra else None


class _ClassKind(Kind):
    """Classes; of the user's own also bases and attributes; of an enum its members, which are never exchanged."""

    name = "class"

    def take(self, thing: Any, saving: Saving) -> Taken:
        module, qualname = qualified(thing)
        findable = named(module, qualname) is thing
        if not saving.is_user(module):
            return (module, qualname, findable, 0, None), ()
        if issubclass(thing, enum.Enum):
            return (module, qualname, findable, 0, None, tuple(thing.__members__)), list(thing.__members__.values())
        bases = [base for base in thing.__bases__ if saving.is_user(base.__module__)]
        own = _own_attributes(thing)
        return (module, qualname, findable, len(bases), tuple(own)), [*bases, *own.values()]

    def find(self, extra: Any) -> object:
        return named(extra[0], extra[1]) if extra[2] else MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if qualified(fresh) != extra[:2]:
            return None
        if len(extra) > 5:
            return [fresh.__members__.get(name, MISSING) for name in extra[5]]
        bases = [base for base in fresh.__bases__ if base.__module__ == extra[0]]
        values = [fresh.__dict__.get(name, MISSING) for name in extra[4] or ()]
        return [*padded(bases, extra[3]), *values]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        raise Hopeless("its class is made while the script runs, and was not made this time; define it at module level")

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if extra[4] is None:
            return
        saved = dict(zip(extra[4], refs[extra[3] :], strict=True))
        for name in _own_attributes(thing):
            if name not in saved:
                type.__delattr__(thing, name)
        for name, code in saved.items():
            value = filling.value(code)
            if thing.__dict__.get(name, MISSING) is not value:
                type.__setattr__(thing, name, value)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        if len(extra) > 5:
            return f".{extra[5][position]}"
        return f".__bases__[{position}]" if position < extra[3] else f".{extra[4][position - extra[3]]}"


class _EnumKind(Kind):
    """Members of enums, by name or value; what the user keeps in those of his own comes back in place."""

    name = "enum"
    calls = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        cls: Any = type(thing)
        name: Any = thing._name_
        if cls.__members__.get(name) is not thing:
            return ("value", None, ()), [cls, thing._value_]
        kept = {k: v for k, v in vars(thing).items() if not (k.startswith("_") and k.endswith("_"))}
        kept = kept if saving.is_user(cls.__module__) else {}
        return ("name", name, tuple(kept)), [cls, *kept.values()]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if extra[1] != fresh._name_:
            return None
        parts = [fresh._value_] if extra[0] == "value" else [vars(fresh).get(name, MISSING) for name in _kept(extra)]
        return [type(fresh), *parts]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs if extra[0] == "value" else refs[:1]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        cls = filling.value(refs[0])
        return cls[extra[1]] if extra[0] == "name" else cls(filling.value(refs[1]))

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        for name, code in zip(_kept(extra), refs[1:], strict=False):
            vars(thing)[name] = filling.value(code)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        kept = _kept(extra)
        return f".{kept[position - 1]}" if 0 < position <= len(kept) else f"<{position}>"


def _kept(extra: Any) -> tuple[str, ...]:
    """Attributes of a member. Saves of earlier versions have none."""
    return tuple(extra[2]) if len(extra) > 2 else ()


class _FunctionKind(Kind):
    """Functions: a library's by name; the user's and those made at run time with cells, defaults and attributes."""

    name = "function"

    def pick(self, thing: Any) -> Kind:
        return kinds.by_name("compiled") if hasattr(thing, "_torchdynamo_orig_callable") else self

    def take(self, thing: Any, saving: Saving) -> Taken:
        module, qualname = qualified(thing)
        findable = named(module, qualname) is thing
        if findable and not saving.is_user(module):
            return (module, qualname, "", None, None), ()
        cells = thing.__closure__ or ()
        defaults, more = thing.__defaults__ or (), thing.__kwdefaults__ or {}
        attributes = getattr_dict(thing) or {}
        home = thing.__globals__.get("__name__")
        known = isinstance(home, str) and getattr(sys.modules.get(home), "__dict__", None) is thing.__globals__
        shape = (len(cells), len(defaults), tuple(more), tuple(attributes), home if known else None)
        code = None if findable else marshal.dumps(thing.__code__)
        parts = [*cells, *defaults, *more.values(), *attributes.values(), *(() if known else (thing.__globals__,))]
        return (module, qualname, fingerprint(thing.__code__), code, shape), parts

    def find(self, extra: Any) -> object:
        return named(extra[0], extra[1]) if extra[3] is None else MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        module, qualname, known, _, shape = extra
        if not isinstance(fresh, types.FunctionType) or qualified(fresh) != (module, qualname):
            return None
        if shape is None:
            return ()
        if fingerprint(fresh.__code__) != known or len(fresh.__closure__ or ()) != shape[0]:
            return None
        more, attributes = fresh.__kwdefaults__ or {}, getattr_dict(fresh) or {}
        return [
            *(fresh.__closure__ or ()),
            *padded(fresh.__defaults__ or (), shape[1]),
            *(more.get(name, MISSING) for name in shape[2]),
            *(attributes.get(name, MISSING) for name in shape[3]),
            *(() if shape[4] is not None else (fresh.__globals__,)),
        ]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        if extra[4] is None:
            return []
        return refs[: extra[4][0]] + ([] if extra[4][4] is not None else refs[-1:])

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        module, qualname, _, code, shape = extra
        if code is None:
            raise Hopeless(f"there is no function {qualname} in {module} any more")
        made_of = marshal.loads(code)
        check_shared(shape[4] or module, qualname, made_of.co_freevars, refs, filling)
        names = vars(importlib.import_module(shape[4])) if shape[4] is not None else filling.value(refs[-1])
        cells = tuple(filling.value(ref) for ref in refs[: shape[0]])
        made = types.FunctionType(made_of, names, None, None, cells or None)
        made.__module__, made.__qualname__ = module, qualname
        return made

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        shape = extra[4]
        if shape is None:
            return
        values = [filling.value(code) for code in refs[shape[0] :]]
        defaults, values = tuple(values[: shape[1]]), values[shape[1] :]
        thing.__defaults__ = defaults or None
        thing.__kwdefaults__ = dict(zip(shape[2], values, strict=False)) or None
        attributes = thing.__dict__
        attributes.clear()
        attributes.update(zip(shape[3], values[len(shape[2]) :], strict=False))

    def shown(self, extra: Any) -> tuple[Any, Place | None]:
        module, qualname, known, code, shape = extra
        return (module, qualname, known, code is None, shape), None

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        cells, defaults, more, names, _ = extra[4]
        if position < cells:
            return f".__closure__[{position}]"
        if position < cells + defaults:
            return f".__defaults__[{position - cells}]"
        rest: list[str] = [f".__kwdefaults__[{name!r}]" for name in more]
        rest += [*(f".{name}" for name in names), ".__globals__"]
        at: int = position - cells - defaults
        return rest[at]


class _DescriptorKind(Kind):
    """Static methods, class methods and properties: made of functions."""

    name = "descriptor"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        return type(thing).__name__, _functions(thing)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return _functions(fresh)

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        maker = {"property": property, "staticmethod": staticmethod, "classmethod": classmethod}[extra]
        return maker(*(filling.value(code) for code in refs))


class _MethodKind(Kind):
    """Bound methods."""

    name = "method"
    whole = True
    calls = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        return None, [thing.__func__, thing.__self__]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return [fresh.__func__, fresh.__self__]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return types.MethodType(filling.value(refs[0]), filling.value(refs[1]))

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return (".__func__", ".__self__")[position]


class _BuiltinKind(Kind):
    """Functions written in C: of a module by name, of an object by that object and their name."""

    name = "builtin"
    whole = True
    calls = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        owner = getattr(thing, "__self__", None)
        if owner is None and not isinstance(thing, types.BuiltinMethodType):
            owner = getattr(thing, "__objclass__", None)
        if owner is not None and getattr(owner, thing.__name__, MISSING) == thing:
            return ("of", thing.__name__), [owner]
        module, qualname = qualified(thing)
        if named(module, qualname) is thing:
            return ("in", (module, qualname)), ()
        kind, name, *parts = _by_reduction(thing)
        return (kind, name), parts

    def find(self, extra: Any) -> object:
        return named(*extra[1]) if extra[0] == "in" else MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if extra[0] != "of" or fresh.__name__ != extra[1]:
            return None
        return [getattr(fresh, "__self__", None) or getattr(fresh, "__objclass__", MISSING)]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        if extra[0] == "in":
            raise Hopeless(f"there is no {extra[1][1]} in {extra[1][0]}")
        return getattr(filling.value(refs[0]), extra[1])

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ".__self__"


_FINGERPRINTS: dict[types.CodeType, str] = {}


def fingerprint(code: types.CodeType) -> str:
    """Of a function's code: the same for the same place and text of a source, in whatever folder it lies."""
    known: str | None = _FINGERPRINTS.get(code)
    if known is None:
        constants = [_constant(part) for part in code.co_consts]
        text = repr((code.co_name, code.co_firstlineno, code.co_code, code.co_names, code.co_freevars, constants))
        known = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        _FINGERPRINTS[code] = known
    return known


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return fingerprint(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _own_attributes(cls: type) -> dict[str, object]:
    """What a user may have changed in a class: everything but descriptors made in C and the interpreter's names."""
    return {
        name: value
        for name, value in cls.__dict__.items()
        if not isinstance(value, _DESCRIPTORS)
        and name not in _NOT_ATTRIBUTES
        and type(value).__name__ != "_tuplegetter"
        and (not is_dunder(name) or isinstance(value, types.FunctionType))
    }


def _functions(descriptor: Any) -> list[object]:
    if isinstance(descriptor, property):
        return [descriptor.fget, descriptor.fset, descriptor.fdel, descriptor.__doc__]
    return [descriptor.__func__]


def _by_reduction(thing: Any) -> tuple[Any, ...]:
    reduced = thing.__reduce_ex__(4)
    if isinstance(reduced, tuple) and reduced[0] is getattr:
        return ("of", reduced[1][1], reduced[1][0])
    raise Hopeless(f"a function written in C, {thing.__name__}, that no module has under its name")


_BUILTIN_TYPES = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    *(kind for kind in _DESCRIPTORS if kind not in (types.MemberDescriptorType, types.GetSetDescriptorType)),
)


def install() -> None:
    """Make these kinds known."""
    kinds.add(_EnumKind(), kinds.below(enum.Enum))
    kinds.add(_ModuleKind(), kinds.below(types.ModuleType))
    kinds.add(_ClassKind(), kinds.below(type))
    kinds.add(_FunctionKind(), kinds.exactly(types.FunctionType))
    kinds.add(_MethodKind(), kinds.exactly(types.MethodType))
    kinds.add(_BuiltinKind(), kinds.exactly(*_BUILTIN_TYPES))
    kinds.add(_DescriptorKind(), kinds.exactly(property, staticmethod, classmethod))
