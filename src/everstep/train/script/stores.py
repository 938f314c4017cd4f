"""What a module assigns to, by name: that may change while a call is under way. See `operands`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
ANYTHING = "*"
"""Stands for attributes, or globals, whose names the source does not tell."""
_MUTATORS = frozenset([
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "reverse", "setdefault", "sort", "update",
])  # fmt: skip
_PROPERTIES = frozenset(["cached_property", "getter", "property", "setter"])


@dataclass
class Stores:
    """What a module assigns to.

    Attributes:
        names: per name all assignments, in whatever scope.
        values: what the assignments at its top assign, by their ids.
        outer: ids of the nodes at its top, outside of functions.
        shared: names that are ``global`` or ``nonlocal`` somewhere.
        imported: names that imports bind.
        attributes, items: names of attributes (outside of constructors) and of items, see `items`.
        globals: names of variables of modules that are given a value more than once, or from another module.
    """

    names: dict[str, list[ast.AST]]
    values: dict[int, ast.expr]
    outer: frozenset[int]
    shared: frozenset[str]
    imported: frozenset[str]
    attributes: Counter[str]
    items: Counter[str]
    globals: frozenset[str]

    @classmethod
    def of(cls, tree: ast.Module) -> Stores:
        """What is assigned to in a module."""
        names: dict[str, list[ast.AST]] = {}
        attributes, found_items, shared = Counter[str](), Counter[str](), set[str]()
        imported = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        rebound: set[str] = set()
        for node, in_init in _with_init(tree):
            for name in _bound(node):
                names.setdefault(name, []).append(node)
            if isinstance(node, ast.Global | ast.Nonlocal):
                shared.update(node.names)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                if isinstance(node.value, ast.Name) and node.value.id in imported:
                    rebound.add(node.attr)
                if not (in_init and isinstance(node.value, ast.Name) and node.value.id == "self"):
                    attributes[node.attr] += 1
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found_items.update(items(node.value))
                attributes[ANYTHING] += _is_vars(node.value) and not in_init
            elif isinstance(node, ast.Assign):
                attributes[ANYTHING] += _is_vars(node.value) and not in_init
            elif isinstance(node, ast.Call):
                attributes.update(_set_by(node, in_init))
                if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
                    found_items.update(items(node.func.value))
                elif isinstance(node.func, ast.Name) and node.func.id == "globals":
                    rebound.add(ANYTHING)
            elif isinstance(node, ast.FunctionDef) and any(_last(d) in _PROPERTIES for d in node.decorator_list):
                attributes[node.name] += 1
        top = list(own(tree.body))
        outer = frozenset(map(id, top))
        values = {id(target): value for node in top for target, value in assigned(node)}
        rebound |= shared
        rebound |= {name for name, stores in names.items() if sum(id(store) in outer for store in stores) > 1}
        return cls(
            names, values, outer, frozenset(shared), frozenset(imported), +attributes, found_items, frozenset(rebound)
        )  # fmt: skip


def items(node: ast.expr) -> tuple[str, ...]:
    """What the items of a container are called: ``h[]`` of ``h`` and of ``self.h``, ``h[][]`` of ``h["a"]``."""
    if isinstance(node, ast.Starred):
        return items(node.value)
    if isinstance(node, ast.Subscript):
        return tuple(f"{name}[]" for name in items(node.value))
    if isinstance(node, ast.Attribute):
        return (f"{node.attr}[]",)
    return (f"{node.id}[]",) if isinstance(node, ast.Name) else ()


def own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes inside it."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from own(ast.iter_child_nodes(node))


def path(node: ast.expr) -> tuple[str, ...] | None:
    """The parts of a dotted name; None for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (inner := path(node.value)) is not None:
        return (*inner, node.attr)
    return None


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names that a statement assigns to, and values; what ``with`` enters counts as assigned."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.With):
        pairs = [(i.optional_vars, i.context_expr) for i in node.items if i.optional_vars is not None]
    for target, value in pairs:
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            # What is unpacked is looked into; what a call gives is unknown in any case.
            values = parts or [value if isinstance(value, ast.Call) else ast.Starred(value)] * len(target.elts)
            yield from ((t, v) for t, v in zip(target.elts, values, strict=True) if isinstance(t, ast.Name))
        elif isinstance(target, ast.Name):
            yield target, value


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _set_by(node: ast.Call, in_init: bool) -> Iterator[str]:
    """Attributes that a call sets: ``setattr`` and the like."""
    name = _last(node.func)
    if name in ("setattr", "__setattr__", "delattr") and not in_init:
        known = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        yield known[0] if known else ANYTHING
    elif isinstance(node.func, ast.Attribute) and name in _MUTATORS and _is_vars(node.func.value) and not in_init:
        yield ANYTHING


def _is_vars(node: ast.expr) -> bool:
    return _last(node.func) == "vars" if isinstance(node, ast.Call) else _last(node) == "__dict__"


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _with_init(tree: ast.AST, in_init: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for node in ast.iter_child_nodes(tree):
        inside = in_init or (isinstance(node, ast.FunctionDef) and node.name == "__init__")
        yield node, inside
        yield from _with_init(node, inside)
