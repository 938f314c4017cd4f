"""What calls in a module leave with the interpreter, as far as its source tells; see `pending`.

An operand that is only passed on is an object: it matters which one it is. One that is looked into (its text, its
items, a sum of it) was worked out before the call. Either has to be made of constants, of targets of ``for`` loops, and
of names and attributes to which nothing is assigned that could have changed them meanwhile; what is looked into has to
be of a kind that never changes besides, which `held_back` asks at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from everstep.train.script.stores import Stores, assigned, items, own, path
from everstep.train.script.waiting import Block, Given, Manager, Needs, Operands, Path, Pending

_PURE = frozenset([
    "abs", "bool", "float", "format", "int", "len", "max", "min", "range", "repr", "round", "str", "sum", "tuple",
])  # fmt: skip
_CLOCKS = frozenset(["monotonic", "now", "perf_counter", "process_time", "strftime", "time"])
_OF_CLOCKS = frozenset(["datetime", "dt", "time"])
_MAKES = ast.Call | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
_DEEPEST = 30
"""So far assignments are followed from name to name."""


def pending(tree: ast.Module, hidden: Mapping[int, str] | None = None) -> Pending:
    """What calls of a module may leave with the interpreter. To be asked before the module is rewritten.

    Args:
        tree: the module.
        hidden: of `withs.names_of`.
    """
    stores = Stores.of(tree)
    found = _Found()
    scopes: list[_ScopeNode] = [tree]
    scopes += [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    for scope in scopes:
        _Scope(scope, stores, found, hidden or {}).go()
    calls = {end: tuple(operands) for end, operands in found.calls.items()}
    return Pending(
        calls, tuple(found.blocks), tuple(found.handlers), stores.attributes, stores.items, stores.globals
    )  # fmt: skip


_ScopeNode = ast.Module | ast.FunctionDef | ast.Lambda


@dataclass
class _Found:
    calls: dict[tuple[int, int], list[Operands]] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    handlers: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class _Held:
    """An operand that waits.

    Attributes:
        node: the expression.
        is_object: a method of it is called: it matters which object it is, not its value.
        is_target: it is assigned to when the call is over.
        is_open: it was looked into before the call.
    """

    node: ast.expr
    is_object: bool = False
    is_target: bool = False
    is_open: bool = False


class _Scope:
    """One function, or the top of the module."""

    def __init__(self, node: _ScopeNode, stores: Stores, found: _Found, hidden: Mapping[int, str]) -> None:
        self._node, self._stores, self._found, self._hidden = node, stores, found, hidden
        self._scope = ("<module>", 0)
        self._params: frozenset[str] = frozenset()
        self._packed: frozenset[str] = frozenset()
        body: Sequence[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else node.body
        if isinstance(node, ast.Lambda):
            self._scope = ("<lambda>", node.lineno)
        elif isinstance(node, ast.FunctionDef):
            self._scope = (node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
        if not isinstance(node, ast.Module):
            self._params = frozenset(n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg))
            self._packed = frozenset(n.arg for n in (node.args.vararg, node.args.kwarg) if n is not None)
        mine = list(own(body))
        self._packed -= {n.id for n in mine if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self._own = {id(n) for n in mine}
        self._loops = [(each, set(map(id, ast.walk(each)))) for each in mine if isinstance(each, ast.For | ast.While)]
        self._values = {id(target): value for each in mine for target, value in assigned(each)}
        self._judged: dict[tuple[str, bool], bool] = {}
        self._statement_now: frozenset[int] = frozenset()

    def go(self) -> None:
        if isinstance(self._node, ast.Lambda):
            self._visit(self._node.body, ())
        else:
            self.statements(self._node.body, ())

    # Statements

    def statements(self, body: Sequence[ast.stmt], held: tuple[_Held, ...]) -> None:
        """Args: held: what is pending all the while, a value that is to be returned behind ``finally``."""
        for statement in body:
            self._statement(statement, held)

    def _statement(self, node: ast.stmt, held: tuple[_Held, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        simple = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        self._statement_now = frozenset(map(id, ast.walk(node))) if simple else frozenset()
        if isinstance(node, ast.Assign):
            self._visit(node.value, held)
            for target in node.targets:
                self._visit(target, (*held, _Held(node.value)))
        elif isinstance(node, ast.AugAssign):
            self._visit(node.target, held)
            self._visit(node.value, (*held, _Held(node.target, is_target=True)))
        elif isinstance(node, ast.With):
            self._with(node, held)
        elif isinstance(node, ast.Try):
            self._try(node, held)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    self._statement(child, held)
                elif isinstance(child, ast.expr):
                    self._visit(child, held)
                elif isinstance(child, ast.match_case):
                    if child.guard is not None:
                        self._visit(child.guard, held)
                    self.statements(child.body, held)

    def _try(self, node: ast.Try, held: tuple[_Held, ...]) -> None:
        for part in (node.body, *(handler.body for handler in node.handlers), node.orelse):
            self.statements(part, held)
        for handler in node.handlers:
            self._found.handlers.append(Block(self._scope, _lines(handler.body), ()))
        inside = own([*node.body, *node.handlers, *node.orelse])
        returned = [n.value for n in inside if isinstance(n, ast.Return) and n.value is not None]
        self.statements(node.finalbody, (*held, *map(_Held, returned)))

    def _with(self, node: ast.With, held: tuple[_Held, ...]) -> None:
        managers = []
        entered = held
        for item in node.items:
            self._visit(item.context_expr, entered)
            entered = (*entered, _Held(item.context_expr))
            variable = item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
            hidden = self._hidden.get(id(item.context_expr), "")
            managers.append(Manager(variable, hidden, tuple(_makers(item.context_expr))))
        self._found.blocks.append(Block(self._scope, _lines(node.body), tuple(managers)))
        self.statements(node.body, held)

    # Expressions, in the order in which they are worked out

    def _visit(self, node: ast.expr, held: tuple[_Held, ...]) -> None:
        if isinstance(node, ast.Call):
            self._visit_call(node, held)
        elif isinstance(node, ast.BoolOp | ast.IfExp):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    self._visit(part, held)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                held = self._in_turn([value] if key is None else [key, value], held, is_open=key is None)
        elif isinstance(node, ast.NamedExpr):
            self._visit(node.value, held)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            self._visit(node.generators[0].iter, held)
        elif not isinstance(node, ast.Lambda):
            self._in_turn([p for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)], held)

    def _visit_call(self, node: ast.Call, held: tuple[_Held, ...]) -> None:
        self._visit(node.func, held)
        # Of a method the interpreter holds the object; which method that is depends on nothing else.
        method = isinstance(node.func, ast.Attribute)
        before = (*held, _Held(node.func.value if isinstance(node.func, ast.Attribute) else node.func, method))
        before = self._in_turn(node.args, before)
        for keyword in node.keywords:
            before = self._in_turn([keyword.value], before, is_open=keyword.arg is None)
        self._note(node, held)

    def _in_turn(
        self, parts: Sequence[ast.expr], held: tuple[_Held, ...], *, is_open: bool = False
    ) -> tuple[_Held, ...]:
        for part in parts:
            self._visit(part, held)
            held = (*held, _Held(part, is_open=is_open))
        return held

    def _note(self, node: ast.Call, held: tuple[_Held, ...]) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        if isinstance(node.func, ast.Attribute) and (path(node.func) or ("",))[0].startswith("_everstep_"):
            return  # what was unfolded has the place of what it was made of, and lies around that
        self._judged = {}
        needs = Needs()
        changing = next((ast.unparse(each.node) for each in held if not self._waits(each, needs, node)), "")
        stars = [isinstance(argument, ast.Starred) for argument in node.args]
        keys = [None if any(stars[: at + 1]) else at for at in range(len(stars))]
        given = [self._given(key, argument, node) for key, argument in zip(keys, node.args, strict=True)]
        given += [self._given(k.arg, k.value, node) for k in node.keywords]
        in_c = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
        operands = Operands(changing, needs, path(node.func) or (), in_c, tuple(given))
        self._found.calls.setdefault((node.end_lineno, node.end_col_offset), []).append(operands)

    def _given(self, key: int | str | None, argument: ast.expr, call: ast.Call) -> Given:
        self._judged = {}
        needs = Needs()
        inner = argument.value if isinstance(argument, ast.Starred) else argument
        if key is None and isinstance(inner, ast.Name) and inner.id in self._packed:
            needs.params.add(inner.id)
            return Given(key, "", needs, made=False)
        made = isinstance(argument, _MAKES)
        kept = self._kept(argument, needs, call)
        return Given(key, "" if kept or made else ast.unparse(argument), needs if kept else Needs(), made and not kept)

    # What cannot have changed

    def _waits(self, held: _Held, needs: Needs, call: ast.Call) -> bool:
        """Whether an operand is the same after the call."""
        node = held.node
        if held.is_target and isinstance(node, ast.Attribute):
            known = self._kept(node, needs, call)
            needs.attributes[node.attr] = 1
            return known
        if held.is_object:
            return self._same_object(node, needs, call)
        return self._value(node, needs, call) if held.is_open else self._kept(node, needs, call)

    def _same_object(self, node: ast.expr, needs: Needs, call: ast.Call) -> bool:
        """Whether an expression stands for one object all the while, whatever is in it."""
        if isinstance(node, ast.Attribute):
            needs.attributes.setdefault(node.attr, 0)
            return self._same_object(node.value, needs, call)
        if isinstance(node, ast.Subscript):
            for name in items(node.value):
                needs.items.setdefault(name, 0)
            return self._same_object(node.value, needs, call) and self._kept(node.slice, needs, call)
        if isinstance(node, ast.Name) and node.id not in self._stores.shared:
            mine = [s for s in self._stores.names.get(node.id, ()) if id(s) in self._own]
            made = [self._values.get(id(s)) for s in mine]
            if mine and all(isinstance(value, _MAKES) for value in made):
                return True  # made anew on the way, and filled as it was
        return self._kept(node, needs, call)

    def _kept(self, node: ast.expr, needs: Needs, call: ast.Call) -> bool:
        """Whether it is the same object; what is in it may change."""
        if isinstance(node, ast.Name):
            return self._name(node.id, needs, call, is_open=False)
        if isinstance(node, ast.Attribute) and (dotted := path(node)) is not None:
            needs.parts.add(dotted)
            needs.attributes.update({name: needs.attributes.get(name, 0) for name in dotted[1:]})
            return self._name(dotted[0], needs, call, is_open=False)
        if isinstance(node, ast.Tuple | ast.List | ast.Set) or (isinstance(node, ast.Dict) and None not in node.keys):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return all(self._kept(part, needs, call) for part in parts)
        return self._value(node, needs, call)

    def _value(self, node: ast.expr, needs: Needs, call: ast.Call) -> bool:
        """Whether what was looked into is as it was."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            needs.values.add((node.id,))
            return self._name(node.id, needs, call, is_open=True)
        if isinstance(node, ast.Attribute):
            if node.attr == "__name__":
                return self._kept(node.value, needs, call)
            dotted = path(node)
            if dotted is None:
                return False
            needs.values.add(dotted)
            needs.attributes.update({name: needs.attributes.get(name, 0) for name in dotted[1:]})
            return self._name(dotted[0], needs, call, is_open=False)
        if isinstance(node, ast.Call):
            return self._value_of_call(node, needs, call)
        if isinstance(node, ast.Lambda):
            return not node.args.defaults and not any(node.args.kw_defaults)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr | ast.Await):
            return False
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return all(self._value(part, needs, call) for part in parts)

    def _value_of_call(self, node: ast.Call, needs: Needs, call: ast.Call) -> bool:
        dotted = path(node.func) or ("",)
        if dotted[-1] in _CLOCKS and dotted[0] in self._stores.imported and dotted[0] in (*_OF_CLOCKS, *_CLOCKS):
            return True
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if dotted in (("type",), ("print",)):
            needs.builtins.add(dotted[0])
            return dotted == ("print",) or all(self._kept(argument, needs, call) for argument in arguments)
        is_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
        if not is_text and (len(dotted) > 1 or dotted[0] not in _PURE):
            return False
        if not is_text:
            needs.builtins.add(dotted[0])
        return all(self._value(argument, needs, call) for argument in arguments)

    # Names

    def _name(self, name: str, needs: Needs, call: ast.Call, *, is_open: bool) -> bool:
        if name in self._stores.shared:
            return False
        all_of_it = self._stores.names.get(name, ())
        mine = [s for s in all_of_it if id(s) in self._own]
        if name in self._params and self._loop_around(call) is None:
            needs.params.add(name)
        if not mine:
            return name in self._params or self._of_around(name, all_of_it, needs, is_open=is_open)
        if (name, is_open) not in self._judged:
            self._judged[name, is_open] = False  # a value that depends on itself changes
            if len(self._judged) > _DEEPEST:
                return False
            self._judged[name, is_open] = all(self._stable_store(s, needs, call, is_open=is_open) for s in mine)
        return self._judged[name, is_open]

    def _of_around(self, name: str, stores: Sequence[ast.AST], needs: Needs, *, is_open: bool) -> bool:
        """Of a scope around this one, which is under way too: it must be given one value only."""
        stores = [s for s in stores if id(s) in self._stores.outer] or stores
        if len(stores) != 1:
            return not stores
        if _is_quiet(self._stores, name, 0):
            return True
        needs.objects.add(name)
        return not is_open

    def _stable_store(self, store: ast.AST, needs: Needs, call: ast.Call, *, is_open: bool) -> bool:
        loop = self._loop_around(call)
        for each, inside in self._loops:
            if isinstance(each, ast.For) and id(store) in set(map(id, ast.walk(each.target))) and id(call) in inside:
                return True
        if loop is not None and id(store) not in loop:
            if isinstance(store, ast.Name):
                needs.written.add(store.id)
            return True  # a relaunch writes what is saved when it enters that loop
        if not isinstance(store, ast.Name):
            return False
        if (store.lineno, store.col_offset) > (call.lineno, call.col_offset) or id(store) in self._statement_now:
            needs.written.add(store.id)
            return True  # assigned when the call is over
        value = self._values.get(id(store))
        return value is not None and (self._value if is_open else self._kept)(value, needs, call)

    def _loop_around(self, call: ast.Call) -> set[int] | None:
        """The innermost loop around a call, by the ids of its nodes."""
        around = [inside for each, inside in self._loops if id(call) in inside and id(call) not in _head(each)]
        return min(around, key=len, default=None)


def _head(loop: ast.For | ast.While) -> set[int]:
    """What is worked out before a loop is entered, or behind it."""
    parts: list[ast.AST] = [*loop.orelse]
    if isinstance(loop, ast.For):
        parts.append(loop.iter)
    return {id(node) for part in parts for node in ast.walk(part)}


def _is_quiet(stores: Stores, name: str, depth: int) -> bool:
    """Whether a variable of the module's is made of constants."""
    found = stores.names.get(name, [])
    mine = [s for s in found if id(s) in stores.outer]
    if len(found) != 1 or len(mine) != 1 or name in stores.shared or depth > _DEEPEST:
        return False
    value = stores.values.get(id(mine[0]))
    return value is not None and _quiet(stores, value, depth + 1)


def _quiet(stores: Stores, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Name):
        return _is_quiet(stores, node.id, depth)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "str") and not node.keywords
        return known and all(isinstance(argument, ast.Constant) for argument in node.args)
    if not isinstance(node, ast.Constant | ast.UnaryOp | ast.BinOp | ast.Tuple):
        return False
    return all(_quiet(stores, part, depth) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def _lines(body: Sequence[ast.stmt]) -> tuple[int, int]:
    return (body[0].lineno, max(statement.end_lineno or 0 for statement in body))


def _opens_path(node: ast.expr) -> bool:
    """``Path(name).open``, ``(folder / name).open``."""
    if not isinstance(node, ast.Attribute) or node.attr != "open":
        return False
    if isinstance(node.value, ast.Call):
        return (path(node.value.func) or ("",))[-1] == "Path"
    return isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div)


def _makers(node: ast.expr) -> Iterator[Path | None]:
    """Dotted names of what may make a manager; () for one that a variable holds."""
    if isinstance(node, ast.IfExp):
        yield from _makers(node.body)
        yield from _makers(node.orelse)
    elif isinstance(node, ast.Call):
        yield ("open",) if _opens_path(node.func) else path(node.func)
    else:
        yield () if path(node) is not None else None
