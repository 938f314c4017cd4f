"""Generator functions that can be entered at any of their ``yield`` statements: how their source is changed.

A relaunch makes a suspended generator anew: it calls the function with nothing, lets it run straight to the ``yield``
where it was suspended, and writes its local variables. On the way no code of the user's runs:

* the hidden local `TO` is the number of that ``yield``, 0 in ordinary life; what lies beside the way stands under
  ``if not TO``, conditions of ``if`` and ``while`` on the way follow the number;
* the hidden local `AT` is set to a number before each ``yield``, so that a suspended generator tells where it is;
* what the interpreter would keep on its stack, where nobody can write it, lies in hidden locals: the iterators of
  ``for`` loops, what ``yield from`` delegates to, the managers of ``with``, each in a holder (`holders`).

::

    _everstep_to = __everstep__.entering
    while _everstep_to == 1 if _everstep_to else C:               # while C:
        _everstep_0 = E1 if _everstep_to else __everstep__.held(E)
        for x in _everstep_0:                                     # for x in E:     (E1: __everstep__.holding(None))
            if not _everstep_to:
                ...
            _everstep_at = 1
            yield None if _everstep_to else x                     # yield x
        _everstep_0 = None

Left as it is, and so refused while it is suspended: a function with a ``yield`` inside of an expression, of ``except``,
``finally`` or ``match``, or one that looks at its own variables by ``locals()`` and the like.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PREFIX = "_everstep_"
TO = f"{PREFIX}to"
AT = f"{PREFIX}at"
_SEES_ITS_LOCALS = frozenset(["locals", "vars", "eval", "exec", "dir"])
_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Yield:
    """One ``yield`` at which a generator can be entered.

    Attributes:
        number: in its module, from 1.
        holders: hidden locals that are in use there, outermost first.
        guarded: ``try`` stands around a ``yield`` of the function: dropping the generator may run code.
    """

    number: int
    holders: tuple[str, ...]
    guarded: bool


class _Unsuited(Exception):
    """This generator function is left as it is."""


def reentrant(function: ast.FunctionDef, marker: str, before: int) -> tuple[ast.FunctionDef, tuple[Yield, ...]] | None:
    """A generator function that can be entered at its ``yield`` statements; None where that is not possible.

    Args:
        function: not changed.
        marker: name of the global that gives holders, see `holders.Entrances`.
        before: how many entrances the module has already.
    """
    if any(_unsuited(node) for node in _own(function)):
        return None
    made = copy.deepcopy(function)
    guarded = any(isinstance(node, ast.Try) and _yields(node) for node in _own(function))
    body = _Body(marker, before, guarded)
    try:
        documented = bool(made.body) and _is_text(made.body[0])
        lead, rest = made.body[:documented], made.body[documented:]
        start = ast.Assign([ast.Name(TO, ast.Store())], _attribute(marker, "entering"))
        made.body = [*lead, _placed(start, rest[0]), *body.block(rest)]
    except _Unsuited:
        return None
    return ast.fix_missing_locations(made), tuple(body.yields)


class _Body:
    """Changes the statements of one function."""

    def __init__(self, marker: str, before: int, guarded: bool) -> None:
        self.yields: list[Yield] = []
        self._marker = marker
        self._before = before
        self._guarded = guarded
        self._made = 0
        self._holders: list[str] = []

    def block(self, statements: list[ast.stmt], *, alone: bool = True) -> list[ast.stmt]:
        """A block that has a ``yield`` somewhere.

        Args:
            statements: of the block.
            alone: it is entered only if the ``yield`` that is looked for lies in it.
        """
        alone = alone and sum(_yields(statement) for statement in statements) == 1
        result: list[ast.stmt] = []
        beside: list[ast.stmt] = []
        for statement in statements:
            if not _yields(statement):
                beside.append(statement)
                continue
            result += self._beside(beside)
            beside = []
            first = self._next()
            changed = self._statement(statement)
            if not alone:
                test = ast.BoolOp(ast.Or(), [_not_entering(), self._leads_to(first)])
                changed = [_placed(ast.If(test, changed, []), statement)]
            result += changed
        return result + self._beside(beside)

    def _beside(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [_placed(ast.If(_not_entering(), statements, []), statements[0])] if statements else []

    def _next(self) -> int:
        return self._before + len(self.yields) + 1

    def _leads_to(self, first: int) -> ast.expr:
        """True if the ``yield`` that is looked for is one of those from ``first`` on."""
        last = self._next() - 1
        if first == last:
            return ast.Compare(_name(TO), [ast.Eq()], [ast.Constant(first)])
        bounds: list[ast.expr] = [_name(TO), ast.Constant(last)]
        return ast.Compare(ast.Constant(first), [ast.LtE(), ast.LtE()], bounds)

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        way: dict[type, Callable[..., list[ast.stmt]]] = {
            ast.If: self._if,
            ast.While: self._while,
            ast.For: self._for,
            ast.Try: self._try,
            ast.With: self._with,
        }
        made = way.get(type(statement), self._simple)(statement)
        return [_placed(one, statement) for one in made]

    def _simple(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AnnAssign):
            value = statement.value
            others = [child for child in ast.iter_child_nodes(statement) if child is not value]
            if any(_yields(other) for other in others) or _yields_inside(value):
                raise _Unsuited
            if isinstance(value, ast.Yield):
                return self._yield(statement, value)
            if isinstance(value, ast.YieldFrom):
                return self._yield_from(statement, value)
        raise _Unsuited

    def _yield(self, statement: ast.stmt, value: ast.Yield) -> list[ast.stmt]:
        at = self._at()
        if value.value is not None:
            value.value = ast.IfExp(_name(TO), ast.Constant(None), value.value)
        return [at, statement]

    def _yield_from(self, statement: ast.stmt, value: ast.YieldFrom) -> list[ast.stmt]:
        name = self._hold()
        fetched = self._fetched(name, "delegated", value.value, "delegating", None)
        value.value = _name(name)
        made = [fetched, self._at(), statement]
        return [*made, self._released(name)]

    def _if(self, statement: ast.If) -> list[ast.stmt]:
        _no_yield_in(statement.test)
        leads = self._body(statement)
        statement.test = ast.IfExp(_name(TO), leads, statement.test)
        self._else(statement)
        return [statement]

    def _while(self, statement: ast.While) -> list[ast.stmt]:
        _no_yield_in(statement.test)
        leads = self._body(statement)
        statement.test = ast.IfExp(_name(TO), leads, statement.test)
        self._else(statement)
        return [statement]

    def _for(self, statement: ast.For) -> list[ast.stmt]:
        _no_yield_in(statement.target, statement.iter)
        name = self._hold()
        fetched = self._fetched(name, "held", statement.iter, "holding", _stand_in(statement.target))
        statement.iter = _name(name)
        leads = self._body(statement)
        released = self._released(name)
        if any(map(_yields, statement.orelse)):
            # On the way into the `else` there is nothing to go over.
            statement.iter = ast.IfExp(_entering_elsewhere(leads), ast.Tuple([], ast.Load()), _name(name))
        self._else(statement)
        return [fetched, statement, released]

    def _body(self, statement: ast.For | ast.While | ast.If) -> ast.expr:
        """The body of a statement, changed; gives what is true if the ``yield`` that is looked for lies in it."""
        first = self._next()
        if any(map(_yields, statement.body)):
            statement.body = self.block(statement.body)
        return self._leads_to(first) if self._next() > first else ast.Constant(False)

    def _else(self, statement: ast.For | ast.While | ast.If) -> None:
        if any(map(_yields, statement.orelse)):
            statement.orelse = self.block(statement.orelse)

    def _try(self, statement: ast.Try) -> list[ast.stmt]:
        _no_yield_in(*statement.handlers, *statement.finalbody)
        alone = any(map(_yields, statement.body)) != any(map(_yields, statement.orelse))
        for block in ("body", "orelse"):
            if getattr(statement, block):
                setattr(statement, block, self.block(getattr(statement, block), alone=alone))
        return [statement]

    def _with(self, statement: ast.With) -> list[ast.stmt]:
        item, *more = statement.items
        _no_yield_in(item.context_expr)
        stand_in = None if item.optional_vars is None else _stand_in(item.optional_vars)
        if more:
            statement.body = [_placed(ast.With(more, statement.body), statement)]
        name = self._hold()
        fetched = self._fetched(name, "managed", item.context_expr, "managing", stand_in)
        item.context_expr = _name(name)
        statement.items = [item]
        statement.body = self.block(statement.body)
        return [fetched, statement, self._released(name)]

    def _at(self) -> ast.stmt:
        number = self._next()
        self.yields.append(Yield(number, tuple(self._holders), self._guarded))
        return ast.Assign([ast.Name(AT, ast.Store())], ast.Constant(number))

    def _hold(self) -> str:
        name = f"{PREFIX}{self._made}"
        self._made += 1
        self._holders.append(name)
        return name

    def _fetched(self, name: str, method: str, given: ast.expr, entering: str, stand_in: object) -> ast.stmt:
        enter = ast.Call(_attribute(self._marker, entering), [ast.Constant(stand_in)], [])  # type: ignore[arg-type]
        live = ast.Call(_attribute(self._marker, method), [given], [])
        return _placed(ast.Assign([ast.Name(name, ast.Store())], ast.IfExp(_name(TO), enter, live)), given)

    def _released(self, name: str) -> ast.stmt:
        self._holders.remove(name)
        return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None))


def _stand_in(target: ast.expr) -> object:
    """A value that can be assigned to the target."""
    if isinstance(target, ast.Name):
        return None
    if isinstance(target, ast.Tuple | ast.List):
        return tuple(_stand_in(part) for part in target.elts if not isinstance(part, ast.Starred))
    raise _Unsuited


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """All below a function that belongs to its own frame."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _OTHER_SCOPES):
            waiting += ast.iter_child_nodes(node)


def _yields(node: ast.AST) -> bool:
    if isinstance(node, _OTHER_SCOPES):
        return False
    return isinstance(node, ast.Yield | ast.YieldFrom) or any(
        isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _own(node)
    )


def _yields_inside(value: ast.expr | None) -> bool:
    return value is not None and any(_yields(child) for child in ast.iter_child_nodes(value))


def _no_yield_in(*nodes: ast.AST) -> None:
    if any(map(_yields, nodes)):
        raise _Unsuited


def _unsuited(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in _SEES_ITS_LOCALS
    return isinstance(node, ast.Name) and node.id.startswith(PREFIX)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _entering_elsewhere(leads: ast.expr) -> ast.expr:
    return ast.BoolOp(ast.And(), [_name(TO), ast.UnaryOp(ast.Not(), leads)])


def _not_entering() -> ast.expr:
    return ast.UnaryOp(ast.Not(), _name(TO))


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _attribute(marker: str, name: str) -> ast.expr:
    return ast.Attribute(ast.Name(marker, ast.Load()), name, ast.Load())


def _placed(node: ast.stmt, like: ast.stmt | ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(node, like))
