"""What calls leave with the interpreter: what `operands` reads from a source, and `pending` asks for a frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType

Path = tuple[str, ...]


@dataclass(frozen=True)
class Needs:
    """What has to hold at run time for an operand to be what it was.

    Attributes:
        attributes, items: names of attributes, and of items (`stores.items`), and how often all modules together may
            assign to such: once where the expression does so itself.
        values: dotted names of what must be of a kind that never changes.
        parts: dotted names of attributes that were passed on.
        objects: names of what must not be such a kind: which object it is is known, what it was is not.
        builtins: names that must be those of Python itself.
        written: variables that are what they were since a relaunch writes them on its way.
        params: parameters; what the caller gives for them has to be unchanging, too.
    """

    attributes: dict[str, int] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    values: set[Path] = field(default_factory=set)
    parts: set[Path] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    builtins: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    params: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Given:
    """One argument.

    Attributes:
        key: its position or its name; None for those behind a star.
        changing: its text if it may be another one when the call is made anew; "" if not.
        needs: what has to hold for that.
        made: it is made for the call: another object, which is filled as the first was.
    """

    key: int | str | None
    changing: str
    needs: Needs
    made: bool


@dataclass(frozen=True)
class Operands:
    """What was worked out before one call, in the same expression.

    Attributes:
        changing: text of an operand that may have changed since; "" if there is none.
        needs: what the others need.
        callee: what is called, by its dotted name; () where it has none.
        in_c: what is called is a method of a constant.
        given: the arguments of the call itself.
    """

    changing: str
    needs: Needs
    callee: Path
    in_c: bool
    given: tuple[Given, ...]


@dataclass(frozen=True)
class Manager:
    """What one ``with`` enters.

    Attributes:
        variable: behind ``as``; "" if there is none.
        hidden: the variable that it is given (`withs`); "" if none.
        makers: dotted names of what may have made it; None: unknown.
    """

    variable: str
    hidden: str
    makers: tuple[Path | None, ...]


@dataclass(frozen=True)
class Block:
    """The body of one ``with``, or of one ``except`` (which has no managers).

    Attributes:
        scope: name and first line of the function it is in.
        lines: first and last of the body.
        managers: of the ``with``.
    """

    scope: tuple[str, int]
    lines: tuple[int, int]
    managers: tuple[Manager, ...]

    def around(self, code: CodeType, line: int) -> bool:
        """Whether a line of a function is in it."""
        name, first = self.scope
        is_here = code.co_name == name and (name == "<module>" or code.co_firstlineno == first)
        return is_here and self.lines[0] <= line <= self.lines[1]


@dataclass(frozen=True)
class Pending:
    """Of one module: `Operands` by the end of the call (line, column), ``with`` statements, handlers of exceptions, and
    what it assigns to (see `Stores`)."""

    calls: dict[tuple[int, int], tuple[Operands, ...]] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    handlers: tuple[Block, ...] = ()
    stored_attributes: Mapping[str, int] = field(default_factory=Counter)
    stored_items: Mapping[str, int] = field(default_factory=Counter)
    stored_globals: frozenset[str] = frozenset()
