"""Loops that report where they are: what happens to the source of a user module before it is compiled.

``for x in E`` becomes ``for x in __everstep__.loop(K, E)``, and ``while C`` becomes
``while __everstep__.head(K) and (__everstep__.forced or C)``: `head` is false for a loop that a replay skips, `forced`
true for one that it enters whatever the condition says. Either stands in a ``try`` whose ``finally`` says
``__everstep__.over(K)``. Since a loop that is skipped may have ended by ``break`` or ``return``, an ``else`` first asks
``__everstep__.exhausted(K)``, a ``return E`` within says ``return __everstep__.leaving(E)``, and behind the loop stands
``if __everstep__.returned(K): return __everstep__.result(K)``.
Lines and columns stay those of the source, so that tracebacks and debuggers show what the user wrote.

Loops of generator functions do not report; these functions become such that a generator can be made anew where it was
suspended, see `reentrant`. List comprehensions that may train become loops first, see `comprehensions`. What a ``with``
enters is held by a variable, see `withs`. Left alone: coroutines, other comprehensions, what runs once per sample or
inside a compiled graph (`LEFT_ALONE`, ``collate`` in the name, functions under a compiling decorator).
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeVar

from everstep.train.script.comprehensions import unfold
from everstep.train.script.operands import pending
from everstep.train.script.reentrant import Yield, reentrant
from everstep.train.script.waiting import Pending
from everstep.train.script.withs import bound, names_of

MARKER = "__everstep__"
"""Name in every rewritten module's globals; what must stand there is `everstep.train.script.heads.Marker`."""

LEFT_ALONE = frozenset(["forward", "__getitem__", "__getitems__", "__iter__", "__next__", "__len__", "__del__"])
_COMPILING = frozenset(["compile", "script", "trace", "jit", "njit", "vmap"])
_Node = TypeVar("_Node", bound=ast.AST)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Site:
    """One loop of a user module.

    Attributes:
        module: name of the module.
        number: of the loop in its module, from 0 in source order.
        lines: first and last line, from 1.
        parents: numbers of the loops around it in the same function, outermost first.
        function: qualified name of the function it is in, ``<module>`` at the top.
        file: name of the module's file, for people.
    """

    module: str
    number: int
    lines: tuple[int, int]
    parents: tuple[int, ...]
    function: str
    file: str

    @property
    def place(self) -> str:
        """Where it begins, for people: ``train.py:19``."""
        return f"{self.file}:{self.lines[0]}"


@dataclass(frozen=True)
class Span:
    """A stretch of source, with lines from 1 and columns in bytes from 0, as ``code.co_positions`` counts them."""

    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, line: int, column: int) -> bool:
        """True if a place lies inside."""
        return (self.line, self.column) <= (line, column) < (self.end_line, self.end_column)


@dataclass(frozen=True)
class Rewritten:
    """A user module, ready to run.

    Attributes:
        code: its compiled body.
        sites: its loops, by number.
        comprehensions: where its comprehensions are; a call from inside one cannot be entered again.
        yields: where its generators can be entered, by number from 1.
        pending: what its calls leave with the interpreter.
        digest: SHA-256 of the source.
        counters: where it looks at the counters of `functools.lru_cache`, which cannot be set; "" if it does not.
    """

    code: CodeType
    sites: tuple[Site, ...]
    comprehensions: tuple[Span, ...]
    yields: tuple[Yield, ...]
    pending: Pending
    digest: str
    counters: str


def rewrite(source: bytes, filename: str, module: str) -> Rewritten:
    """Compile the source of a user module with reporting loops.

    Args:
        source: the file's bytes.
        filename: for tracebacks.
        module: name that its sites carry.

    Raises:
        SyntaxError: as the compiler would.
    """
    tree = unfold(ast.parse(source, filename), lambda node: _left_alone(node) or _yields(node))
    spans = tuple(_span(node) for node in ast.walk(tree) if isinstance(node, _COMPREHENSIONS))
    managers = names_of(tree)
    looks = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "cache_info"]
    left_pending = pending(tree, managers)
    file = os.path.basename(filename)
    rewriter = _Rewriter(module, file, managers)
    rewritten = ast.fix_missing_locations(rewriter.visit(tree))
    code = compile(rewritten, filename, "exec", dont_inherit=True)
    digest = hashlib.sha256(source).hexdigest()
    where = f"{file}:{looks[0].lineno} (cache_info)" if looks else ""
    return Rewritten(code, tuple(rewriter.sites), spans, tuple(rewriter.yields), left_pending, digest, where)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _span(node: ast.expr) -> Span:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, module: str, file: str, managers: Mapping[int, str]) -> None:
        self.sites: list[Site] = []
        self.yields: list[Yield] = []
        self._module = module
        self._file = file
        self._managers = managers
        self._names: list[str] = []
        self._loops: list[int] = []
        self._returns: set[int] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if _yields(node) and (node.name == "__iter__" or not _left_alone(node)):
            return self._generator(node)
        if _left_alone(node):
            return node
        return self._within(node, f"{node.name}", "<locals>")

    def _generator(self, node: ast.FunctionDef) -> ast.AST:
        made = reentrant(node, MARKER, len(self.yields))
        if made is None:
            return node
        self.yields += made[1]
        return made[0]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._within(node, node.name)

    def visit_For(self, node: ast.For) -> Any:
        number = self._open(node)
        node.iter = _call("loop", number, node.iter)
        return self._close(node, number)

    def visit_While(self, node: ast.While) -> Any:
        number = self._open(node)
        forced = ast.Attribute(ast.Name(MARKER, ast.Load()), "forced", ast.Load())
        condition = ast.BoolOp(ast.Or(), [forced, node.test])
        node.test = _placed(ast.BoolOp(ast.And(), [_call("head", number), condition]), node.test)
        return self._close(node, number)

    def visit_With(self, node: ast.With) -> ast.AST:
        bindings = [self._managers.get(id(item.context_expr), "") for item in node.items]
        self.generic_visit(node)
        return bound(node, bindings, MARKER)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if self._loops:
            self._returns.update(self._loops)
            value = node.value or ast.Constant(None)
            node.value = _placed(_call("leaving", None, value), node)
        return node

    def _within(self, node: ast.FunctionDef | ast.ClassDef, *names: str) -> ast.AST:
        loops, self._loops = self._loops, []
        self._names += names
        self.generic_visit(node)
        del self._names[-len(names) :]
        self._loops = loops
        return node

    def _open(self, node: ast.For | ast.While) -> int:
        assert node.end_lineno is not None
        names = self._names[:-1] if self._names and self._names[-1] == "<locals>" else self._names
        function = ".".join(names) or "<module>"
        number = len(self.sites)
        lines = (node.lineno, node.end_lineno)
        site = Site(self._module, number, lines, tuple(self._loops), function, self._file)
        self.sites.append(site)
        return number

    def _close(self, node: ast.For | ast.While, number: int) -> list[ast.stmt]:
        self._loops.append(number)
        node.body = self._statements(node.body)
        self._loops.pop()
        if node.orelse:
            question = ast.If(_call("exhausted", number), self._statements(node.orelse), [])
            node.orelse = [_placed(question, node.orelse[0])]
        over = ast.Expr(_call("over", number))
        made: list[ast.stmt] = [_placed(ast.Try(body=[node], handlers=[], orelse=[], finalbody=[over]), node)]
        if number in self._returns:
            again = ast.If(_call("returned", number), [ast.Return(_call("result", number))], [])
            made.append(_placed(again, node))
        return made

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """What the statements become; one may become several."""
        holder = ast.Module(body, [])
        self.generic_visit(holder)
        return holder.body


def _call(method: str, number: int | None, *arguments: ast.expr) -> ast.Call:
    target = ast.Attribute(ast.Name(MARKER, ast.Load()), method, ast.Load())
    numbers: list[ast.expr] = [] if number is None else [ast.Constant(number)]
    call = ast.Call(target, [*numbers, *arguments], [])
    return _placed(call, arguments[0]) if arguments else call


def _placed(node: _Node, like: ast.AST) -> _Node:
    return ast.fix_missing_locations(ast.copy_location(node, like))


def _left_alone(node: ast.FunctionDef) -> bool:
    if node.name in LEFT_ALONE or "collate" in node.name:
        return True
    return any(_last_name(d) in _COMPILING for d in node.decorator_list)


def _last_name(decorator: ast.expr) -> str:
    """``compile`` of ``@torch.compile(...)``, ``@torch.compile``, ``@compile`` and ``@partial(torch.compile)``."""
    if isinstance(decorator, ast.Call):
        names = {_last_name(decorator.func), *(_last_name(a) for a in decorator.args)}
        return next(iter(names & _COMPILING), _last_name(decorator.func))
    if isinstance(decorator, ast.Attribute):
        return decorator.attr
    return decorator.id if isinstance(decorator, ast.Name) else ""


def _yields(function: ast.FunctionDef) -> bool:
    """True for a generator function: a ``yield`` of its own, not of a function inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, _Function):
            waiting += ast.iter_child_nodes(node)
    return False
