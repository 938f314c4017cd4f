"""What calls in a module leave with the interpreter, as far as its source tells; see `pending`.

An operand counts as unchanging if it is made of constants, of targets of ``for`` loops, and of names, attributes and
items to which nothing is assigned that could have changed them meanwhile.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_PURE = frozenset([
    "abs", "bool", "dict", "float", "format", "int", "len", "list", "max", "min", "print", "range", "repr", "round",
    "str", "sum", "tuple", "type",
])  # fmt: skip
_CLOCKS = frozenset(["monotonic", "now", "perf_counter", "process_time", "strftime", "time"])
_MUTATORS = frozenset([
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
    "reverse", "setdefault", "sort", "update",
])  # fmt: skip
_MAKES = ast.Call | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
_DEEPEST = 30
"""So far assignments are followed from name to name."""


@dataclass(frozen=True)
class Operands:
    """What was worked out before one call, in the same expression.

    Attributes:
        changing: text of an operand that may have changed since; "" if there is none.
        attributes, items: names of attributes, and of items (`_items`), and how often all modules together may assign
            to such: once where the expression does so itself.
        callee: what is called, by its dotted name; () where it has none.
        in_c: what is called is a method of a constant.
    """

    changing: str
    attributes: Mapping[str, int]
    items: Mapping[str, int]
    callee: tuple[str, ...]
    in_c: bool


@dataclass(frozen=True)
class Block:
    """The body of one ``with``.

    Attributes:
        scope: name and first line of the function it is in.
        lines: first and last of the body.
        managers: per manager the variable behind ``as``, and the dotted names of what may have made it; None: unknown.
    """

    scope: tuple[str, int]
    lines: tuple[int, int]
    managers: tuple[tuple[str, tuple[tuple[str, ...] | None, ...]], ...]

    def around(self, code: CodeType, line: int) -> bool:
        """Whether a line of a function is in it."""
        name, first = self.scope
        is_here = code.co_name == name and (name == "<module>" or code.co_firstlineno == first)
        return is_here and self.lines[0] <= line <= self.lines[1]


@dataclass(frozen=True)
class Pending:
    """Of one module: `Operands` by the end of the call (line, column), ``with`` statements, and what it assigns to."""

    calls: dict[tuple[int, int], Operands] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    stored_attributes: Mapping[str, int] = field(default_factory=Counter)
    stored_items: Mapping[str, int] = field(default_factory=Counter)


def pending(tree: ast.Module) -> Pending:
    """What calls of a module may leave with the interpreter. To be asked before the module is rewritten."""
    names = _Names.of(tree)
    calls: dict[tuple[int, int], Operands] = {}
    blocks: list[Block] = []
    scopes: list[ast.Module | ast.FunctionDef] = [tree]
    scopes += [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in scopes:
        _Scope(scope, names, calls, blocks).statements(scope.body, ())
    return Pending(calls, tuple(blocks), names.attributes, names.items)


@dataclass
class _Names:
    """What a module assigns to.

    Attributes:
        stores: per name all assignments, in whatever scope.
        outer: ids of the nodes at its top, outside of functions.
        shared: names that are ``global`` or ``nonlocal`` somewhere.
        attributes, items: names of attributes (outside of constructors) and of items, see `_items`.
    """

    stores: dict[str, list[ast.AST]]
    outer: frozenset[int]
    shared: frozenset[str]
    attributes: Counter[str]
    items: Counter[str]

    @classmethod
    def of(cls, tree: ast.Module) -> _Names:
        stores: dict[str, list[ast.AST]] = {}
        attributes, items, shared = Counter[str](), Counter[str](), set[str]()
        for node, in_init in _with_init(tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stores.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and not in_init:
                attributes[node.attr] += 1
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                items.update(_items(node.value))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
                items.update(_items(node.func.value))
            elif isinstance(node, ast.Global | ast.Nonlocal):
                shared.update(node.names)
        outer = frozenset(map(id, _own(tree.body)))
        return cls(stores, outer, frozenset(shared), attributes, items)


def _with_init(tree: ast.AST, in_init: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for node in ast.iter_child_nodes(tree):
        inside = in_init or (isinstance(node, ast.FunctionDef) and node.name == "__init__")
        yield node, inside
        yield from _with_init(node, inside)


def _items(node: ast.expr) -> tuple[str, ...]:
    """What the items of a container are called: ``h[]`` of ``h`` and of ``self.h``, ``h[][]`` of ``h["a"]``."""
    if isinstance(node, ast.Starred):
        return _items(node.value)
    if isinstance(node, ast.Subscript):
        return tuple(f"{name}[]" for name in _items(node.value))
    if isinstance(node, ast.Attribute):
        return (f"{node.attr}[]",)
    return (f"{node.id}[]",) if isinstance(node, ast.Name) else ()


@dataclass(frozen=True)
class _Held:
    """An operand that waits.

    Attributes:
        node: the expression.
        is_object: a method of it is called, or an item of it assigned to: it matters which object it is, not its value.
        is_target: it is assigned to when the call is over.
    """

    node: ast.expr
    is_object: bool = False
    is_target: bool = False


class _Scope:
    """One function, or the top of the module."""

    def __init__(
        self, node: ast.Module | ast.FunctionDef, names: _Names, calls: dict[tuple[int, int], Operands],
        blocks: list[Block],
    ) -> None:  # fmt: skip
        self._names, self._calls, self._blocks = names, calls, blocks
        self._is_module = isinstance(node, ast.Module)
        self._scope = ("<module>", 0)
        if isinstance(node, ast.FunctionDef):
            self._scope = (node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
        own = list(_own(node.body))
        self._own = {id(n) for n in own}
        self._loop_targets = {
            id(n) for each in own if isinstance(each, ast.For) for n in ast.walk(each.target) if isinstance(n, ast.Name)
        }
        self._values = {id(target): value for each in own for target, value in _assigned(each)}
        self._judged: dict[str, bool] = {}
        self._statement_now: frozenset[int] = frozenset()

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
        elif isinstance(node, ast.Try) and node.finalbody:
            for part in (node.body, *(h.body for h in node.handlers), node.orelse):
                self.statements(part, held)
            inside = _own([*node.body, *node.handlers, *node.orelse])
            returned = [n.value for n in inside if isinstance(n, ast.Return) and n.value is not None]
            self.statements(node.finalbody, (*held, *map(_Held, returned)))
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    self._statement(child, held)
                elif isinstance(child, ast.expr):
                    self._visit(child, held)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self.statements(child.body, held)

    def _with(self, node: ast.With, held: tuple[_Held, ...]) -> None:
        managers = []
        for item in node.items:
            self._visit(item.context_expr, held)
            variable = item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
            managers.append((variable, tuple(_makers(item.context_expr))))
        last = max(n.end_lineno or 0 for n in node.body)
        self._blocks.append(Block(self._scope, (node.body[0].lineno, last), tuple(managers)))
        self.statements(node.body, held)

    # Expressions, in the order in which they are worked out

    def _visit(self, node: ast.expr, held: tuple[_Held, ...]) -> None:
        if isinstance(node, ast.Call):
            self._visit(node.func, held)
            # Of a method the interpreter holds the object; which method that is depends on nothing else.
            method = isinstance(node.func, ast.Attribute)
            before = (*held, _Held(node.func.value if isinstance(node.func, ast.Attribute) else node.func, method))
            for argument in (*node.args, *(k.value for k in node.keywords)):
                self._visit(argument, before)
                before = (*before, _Held(argument))
            self._note(node, held)
        elif isinstance(node, ast.BoolOp | ast.IfExp):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    self._visit(part, held)
        elif isinstance(node, ast.Dict):
            parts = [p for pair in zip(node.keys, node.values, strict=True) for p in pair if p is not None]
            self._in_turn(parts, held)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            self._visit(node.generators[0].iter, held)
        elif not isinstance(node, ast.Lambda):
            self._in_turn([p for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)], held)

    def _in_turn(self, parts: Sequence[ast.expr], held: tuple[_Held, ...]) -> None:
        for part in parts:
            self._visit(part, held)
            held = (*held, _Held(part))

    def _note(self, node: ast.Call, held: tuple[_Held, ...]) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        needs = _Needs()
        self._judged = {}
        changing = next((ast.unparse(each.node) for each in held if not self._waits(each, needs, node)), "")
        in_c = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
        operands = Operands(changing, dict(needs.attributes), dict(needs.items), _path(node.func) or (), in_c)
        # What was unfolded has the place of what it was made of, and lies around that.
        self._calls.setdefault((node.end_lineno, node.end_col_offset), operands)

    # What cannot have changed

    def _waits(self, held: _Held, needs: _Needs, call: ast.Call) -> bool:
        """Whether an operand is the same after the call."""
        if held.is_target:
            own = held.node
            if isinstance(own, ast.Attribute):
                needs.attributes[own.attr] = 1
                return self._same_object(own.value, needs, call)
            if isinstance(own, ast.Subscript):
                needs.items.update(dict.fromkeys(_items(own.value), 1))
                return self._same_object(own.value, needs, call) and self._stable(own.slice, needs, call)
        return (self._same_object if held.is_object else self._stable)(held.node, needs, call)

    def _same_object(self, node: ast.expr, needs: _Needs, call: ast.Call) -> bool:
        """Whether an expression stands for one object all the while, whatever is in it."""
        if isinstance(node, ast.Attribute):
            needs.attributes.setdefault(node.attr, 0)
            return self._same_object(node.value, needs, call)
        if isinstance(node, ast.Subscript):
            needs.look_into(node.value)
            return self._same_object(node.value, needs, call) and self._stable(node.slice, needs, call)
        if isinstance(node, ast.Name) and node.id not in self._names.shared:
            mine = [s for s in self._names.stores.get(node.id, ()) if id(s) in self._own]
            made = [self._values.get(id(s)) for s in mine]
            if mine and all(isinstance(value, _MAKES) for value in made):
                return True  # made anew on the way, and filled as it was
        return self._stable(node, needs, call)

    def _stable(self, node: ast.expr, needs: _Needs, call: ast.Call) -> bool:
        if isinstance(node, ast.Constant | ast.Lambda):
            return True
        if isinstance(node, ast.Name):
            return self._stable_name(node.id, needs, call)
        if isinstance(node, ast.Attribute):
            needs.attributes.setdefault(node.attr, 0)
            return self._same_object(node.value, needs, call)
        if isinstance(node, ast.Subscript):
            needs.look_into(node.value)
            return self._same_object(node.value, needs, call) and self._stable(node.slice, needs, call)
        if isinstance(node, ast.Call):
            return self._stable_call(node, needs, call)
        if isinstance(node, ast.FormattedValue):
            needs.look_into(node.value)  # the text of a container tells what is in it
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr | ast.Await):
            return False
        parts = [p for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)]
        return all(self._stable(part, needs, call) for part in parts)

    def _stable_call(self, node: ast.Call, needs: _Needs, call: ast.Call) -> bool:
        name = (_path(node.func) or ("",))[-1]
        if name in _CLOCKS:
            return True
        is_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
        if not is_text and (name not in _PURE or name in self._names.stores):
            return False
        arguments = [*node.args, *(k.value for k in node.keywords)]
        for argument in arguments:
            needs.look_into(argument)  # len(seen): what is in it counts
        return all(self._stable(argument, needs, call) for argument in arguments)

    def _stable_name(self, name: str, needs: _Needs, call: ast.Call) -> bool:
        stores = self._names.stores.get(name, ())
        if name in self._names.shared:
            return False
        mine = [s for s in stores if id(s) in self._own]
        if not mine:
            # Of a scope around this one, which is under way too: it must be given one value only.
            return len([s for s in stores if id(s) in self._names.outer] or stores) <= 1
        if name not in self._judged:
            self._judged[name] = False  # a value that depends on itself changes
            if len(self._judged) > _DEEPEST:
                return False
            self._judged[name] = all(self._stable_store(s, needs, call) for s in mine)
        return self._judged[name]

    def _stable_store(self, store: ast.AST, needs: _Needs, call: ast.Call) -> bool:
        assert isinstance(store, ast.Name)
        if id(store) in self._loop_targets or (store.lineno, store.col_offset) > (call.lineno, call.col_offset):
            return True
        if id(store) in self._statement_now:
            return True  # assigned by this very statement, when the call is over
        value = self._values.get(id(store))
        return value is not None and self._stable(value, needs, call)


@dataclass
class _Needs:
    attributes: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)

    def look_into(self, container: ast.expr) -> None:
        """What is in a container counts."""
        for name in _items(container):
            self.items.setdefault(name, 0)


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes inside it."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _own(ast.iter_child_nodes(node))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
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
            values = parts or [value] * len(target.elts)
            yield from ((t, v) for t, v in zip(target.elts, values, strict=True) if isinstance(t, ast.Name))
        elif isinstance(target, ast.Name):
            yield target, value


def _path(node: ast.expr) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (inner := _path(node.value)) is not None:
        return (*inner, node.attr)
    return None


def _makers(node: ast.expr) -> Iterator[tuple[str, ...] | None]:
    """Dotted names of what may make a manager; () for one that a variable holds."""
    if isinstance(node, ast.IfExp):
        yield from _makers(node.body)
        yield from _makers(node.orelse)
    elif isinstance(node, ast.Call):
        yield _path(node.func)
    else:
        yield () if _path(node) is not None else None
