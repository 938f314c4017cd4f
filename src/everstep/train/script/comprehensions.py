"""List comprehensions that may train: unfolded into a loop, which can be entered again where it was.

``[fit(k) for k in folds if k]`` becomes a call of a function that stands before the statement,

    def __everstep_comprehension_0__():
        _everstep_made = []
        for k in folds:
            if k:
                _everstep_made.append(fit(k))
        return _everstep_made

which sees the same names as the comprehension did. What was made so far is a variable then, and part of a save.

Unfolded is what calls a function of the script's own, by its name: another one has no loop of the user's in it, and is
left to be as quick as it is. Left alone as well: what would mean something else in a function (``:=``, ``super()``,
``locals()``, an iterable that names the comprehension's own variable), comprehensions in classes, in lambdas, in each
other, in generators and in what is not rewritten.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

LIBRARIES = frozenset(sys.stdlib_module_names) | {
    "numpy", "pandas", "PIL", "scipy", "sklearn", "torch", "torchaudio", "torchvision", "tqdm", "transformers",
}  # fmt: skip
_OF_THE_FRAME = frozenset(["super", "locals", "vars", "dir", "eval", "exec"])
_UNLIKE = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
HIDDEN = "__everstep_comprehension_"
"""How the names of these functions begin, which are made anew wherever the statement is come by."""
_MADE = "_everstep_made"
"""No name with two underscores around it: those are not saved."""
_Node = TypeVar("_Node", bound=ast.AST)


def unfold(tree: ast.Module, left_alone: Callable[[ast.FunctionDef], bool]) -> ast.Module:
    """Unfold what may train, in place.

    Args:
        tree: a module.
        left_alone: true for functions in which nothing is to be changed.
    """
    names = _own_functions(tree)
    if names:
        _Unfolding(names, left_alone).module(tree)
    return tree


def _own_functions(tree: ast.Module) -> frozenset[str]:
    """Names by which functions of the user's may be called: of this module, and imported from modules of theirs."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").partition(".")[0] not in LIBRARIES:
                found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            mine = [alias for alias in node.names if alias.name.partition(".")[0] not in LIBRARIES]
            found.update(f"{alias.asname or alias.name.partition('.')[0]}." for alias in mine)
    return frozenset(found)


class _Unfolding(ast.NodeTransformer):
    """Goes through statements, and through their expressions as far as these belong to the same function."""

    def __init__(self, names: frozenset[str], left_alone: Callable[[ast.FunctionDef], bool]) -> None:
        self._names = names
        self._left_alone = left_alone
        self._count = 0
        self._made: list[ast.stmt] = []

    def module(self, tree: ast.Module) -> None:
        tree.body = self._statements(tree.body)

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            around, self._made = self._made, []
            changed = self.visit(statement)
            result += [*self._made, changed]
            self._made = around
        return result

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self._statements(value))
            elif isinstance(value, list):
                value[:] = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not self._left_alone(node):
            node.body = self._statements(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        inner = (ast.FunctionDef, ast.ClassDef)
        node.body = [self.visit(one) if isinstance(one, inner) else one for one in node.body]
        return node

    def _as_it_is(self, node: _Node) -> _Node:
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_GeneratorExp = visit_SetComp = visit_DictComp = _as_it_is

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        if not self._may_train(node) or not _means_the_same(node):
            return node
        name = f"{HIDDEN}{self._count}__"
        self._count += 1
        self._made.append(_placed(_function(name, node), node))
        return _placed(ast.Call(ast.Name(name, ast.Load()), [], []), node)

    def _may_train(self, node: ast.ListComp) -> bool:
        calls = (one.func for one in ast.walk(node.elt) if isinstance(one, ast.Call))
        return any(name in self._names for call in calls for name in _called(call))


def _called(function: ast.expr) -> Iterator[str]:
    if isinstance(function, ast.Name):
        yield function.id
    elif isinstance(function, ast.Attribute):
        yield function.attr
        if isinstance(function.value, ast.Name):
            yield f"{function.value.id}."


def _means_the_same(node: ast.ListComp) -> bool:
    """Whether a function with a loop in its place would do just the same."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    bound = {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)}
    first = {one.id for one in ast.walk(node.generators[0].iter) if isinstance(one, ast.Name)}
    unlike = any(isinstance(one, _UNLIKE) for one in ast.walk(node)) or any(part.is_async for part in node.generators)
    return not unlike and not bound & first and not _OF_THE_FRAME & set(names)


def _function(name: str, node: ast.ListComp) -> ast.FunctionDef:
    made = ast.Name(_MADE, ast.Load())
    body: Any = ast.Expr(ast.Call(ast.Attribute(made, "append", ast.Load()), [node.elt], []))
    for part in reversed(node.generators):
        for condition in reversed(part.ifs):
            body = ast.If(condition, [body], [])
        body = ast.For(part.target, part.iter, [body], [])
    begin = ast.Assign([ast.Name(_MADE, ast.Store())], ast.List([], ast.Load()))
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.FunctionDef(name, nothing, [begin, body, ast.Return(made)], [])


def _placed(node: _Node, like: ast.AST) -> _Node:
    """New nodes get the place of what they stand for: tracebacks and loops point there. Old ones keep theirs."""
    for one in ast.walk(node):
        if "lineno" in one._attributes and not hasattr(one, "lineno"):
            ast.copy_location(one, like)
    return node
