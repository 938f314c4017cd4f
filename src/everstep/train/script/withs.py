"""Managers that a ``with`` enters and no variable holds: they are given one, so that they are part of a save.

``with section(name) as x:`` becomes

    try:
        with (_everstep_with_0 := __everstep__.entered(section(name))).manager as x:
            ...
    finally:
        _everstep_with_0 = None

A relaunch enters a manager of its own on its way, and writes into it what the first was, see `managers`.

Left alone: what a library makes, which is made anew or not held at all (see `pending`), the bodies of classes, and
functions that look at their own variables.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from everstep.train.script.comprehensions import LIBRARIES
from everstep.train.script.holders import ENTERED
from everstep.train.script.stores import own, path

_SEE_NAMES = frozenset(["locals", "vars", "eval", "exec", "dir", "globals"])
_Node = TypeVar("_Node", bound=ast.AST)
_SCOPES = (ast.Module, ast.FunctionDef)


def names_of(tree: ast.Module) -> dict[int, str]:
    """A hidden variable for each manager that may need one, by the id of its expression in the ``with``."""
    foreign = set(_foreign(tree)) | set(vars(builtins))
    found: dict[int, str] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, _SCOPES):
            count = itertools.count()
            mine = list(own(scope.body))
            if not any(isinstance(node, ast.Name) and node.id in _SEE_NAMES for node in mine):
                expressions = (item.context_expr for node in mine if isinstance(node, ast.With) for item in node.items)
                found |= {id(e): f"{ENTERED}{next(count)}" for e in expressions if _may_be_own(e, foreign)}
    return found


def bound(statement: ast.With, names: Sequence[str], marker: str) -> ast.stmt:
    """A ``with`` that binds its managers to these variables, one per item; "": not this one."""
    for item, name in zip(statement.items, names, strict=True):
        if name:
            entered = ast.Attribute(ast.Name(marker, ast.Load()), "entered", ast.Load())
            call = ast.NamedExpr(ast.Name(name, ast.Store()), ast.Call(entered, [item.context_expr], []))
            item.context_expr = _placed(ast.Attribute(call, "manager", ast.Load()), item.context_expr)
    if not any(names):
        return statement
    free = ast.Assign([ast.Name(name, ast.Store()) for name in names if name], ast.Constant(None))
    return _placed(ast.Try(body=[statement], handlers=[], orelse=[], finalbody=[free]), statement)


def _foreign(tree: ast.Module) -> Iterator[str]:
    """Names that libraries are known by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in LIBRARIES:
                    yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in LIBRARIES:
            yield from (alias.asname or alias.name for alias in node.names)


def _may_be_own(node: ast.expr, foreign: set[str]) -> bool:
    """Whether a manager may be one of the script's; what a variable holds may be given another one meanwhile."""
    if isinstance(node, ast.IfExp):
        return _may_be_own(node.body, foreign) or _may_be_own(node.orelse, foreign)
    if isinstance(node, ast.Call):
        names = path(node.func) or ("",)
        return names[0] not in foreign or names[-1] == "closing"
    return (path(node) or ("",))[0] not in foreign


def _placed(node: _Node, like: ast.AST) -> _Node:
    return ast.fix_missing_locations(ast.copy_location(node, like))
