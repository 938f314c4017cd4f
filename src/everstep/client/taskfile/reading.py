"""How a tree of nodes is read: kinds of value, fields, sections, and the report that collects every problem of a file.

Nothing here knows a single key of the task file; those are in `fields`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from everstep.client.taskfile.nodes import Node
from everstep.model.errors import Problem

MAX_PROBLEMS = 50


class Mismatch(Exception):
    """A value is not what was expected. Carries the message and, perhaps, the fix."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class TooManyProblems(Exception):
    """The report is full."""


class Status(StrEnum):
    """What everstep does with a key."""

    WORKS = "works"
    WARNED = "warned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key may hold.

    Attributes:
        expected: completes "expected ...".
        parse: node to value; raises `Mismatch`, or reports to the scope what is wrong inside.
        schema: JSON Schema of the value.
    """

    expected: str
    parse: Callable[[Node, Scope], Any]
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a section: the source of the parser, of the editor schema and of the table in the docs.

    Attributes:
        name: the key.
        text: what it does; for a key that is warned or refused, what everstep does instead: shown to the user as it is.
        ours: not a SkyPilot key.
        alias_of: another key of the section that it is taken for.
        warn_if: for a warned key: whether this value deserves the warning.
    """

    name: str
    kind: Kind
    status: Status
    text: str
    ours: bool = False
    alias_of: str = ""
    warn_if: Callable[[Any], bool] = lambda _value: True


@dataclass(frozen=True, slots=True)
class Got:
    """A value that was read, with the place to blame when it does not go together with another."""

    value: Any
    where: str
    key: str


Section = Mapping[str, Got]


@dataclass(slots=True)
class Report:
    """Everything found while reading the file ``name`` by the fields of ``table``."""

    table: Mapping[str, Mapping[str, Field]]
    name: str = ""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, where: str, key: str, message: str, fix: str = "") -> None:
        """Adds a problem; the same one twice (an alias read twice) counts once.

        Raises:
            TooManyProblems: reading on would help nobody.
        """
        found = Problem(where, key, message, fix)
        if found not in self.problems:
            self.problems.append(found)
        if len(self.problems) >= MAX_PROBLEMS:
            raise TooManyProblems

    def warn(self, where: str, key: str, message: str) -> None:
        """Adds a warning."""
        text = str(Problem(where, key, message))
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where we are in the file: the dotted key, and the report."""

    report: Report
    key: str = ""

    def at(self, name: str) -> Scope:
        """One key further in."""
        return Scope(self.report, f"{self.key}.{name}" if self.key else name)

    def item(self, index: int) -> Scope:
        """One item of a list further in."""
        return Scope(self.report, f"{self.key}[{index}]")

    def wrong(self, node: Node, message: str, fix: str = "") -> None:
        """Reports a problem with ``node``."""
        self.report.problem(node.where, self.key, message, fix)

    def parse(self, kind: Kind, node: Node) -> tuple[bool, Any]:
        """``(True, value)``, or ``(False, None)`` with the problem reported."""
        before = len(self.report.problems)
        try:
            value = kind.parse(node, self)
        except Mismatch as mismatch:
            self.wrong(node, mismatch.message, mismatch.fix)
            return False, None
        return len(self.report.problems) == before, value

    def section(self, node: Node, place: str) -> dict[str, Got]:
        """Reads the map ``node`` by the fields of ``place``; null counts as not given.

        What is wrong is reported and left out.
        """
        fields = self.report.table[place]
        if node.kind != "map":
            expected = f"expected a mapping with keys such as {_some(fields)}, found {node.shown}"
            self.wrong(node, expected)
            return {}
        got: dict[str, Got] = {}
        for name, entry in node.entries.items():
            known = fields.get(name)
            scope = self.at(name)
            if known is None:
                self.report.problem(entry.where, scope.key, "unknown key", self._meant(name, place))
            elif entry.value.kind != "null":
                self._field(known, entry.value, got)
        return got

    def _meant(self, name: str, place: str) -> str:
        elsewhere = [other for other, fields in self.report.table.items() if other and name in fields]
        if elsewhere and not place:
            return f"it belongs under {elsewhere[0]}"
        if place and name in self.report.table[""]:
            return "it belongs at the top level"
        fields = self.report.table[place]
        hint = nearest(name, fields)
        return hint if hint.startswith("did") else f"the keys here are {', '.join(_main(fields))}"

    def _field(self, known: Field, node: Node, got: dict[str, Got]) -> None:
        scope = self.at(known.name)
        if known.status is Status.REFUSED:
            scope.wrong(node, f"not supported: {known.text}")
            return
        fine, value = scope.parse(known.kind, node)
        if not fine:
            return
        if known.status is Status.WARNED and known.warn_if(value):
            self.report.warn(node.where, scope.key, known.text)
        target = known.alias_of or known.name
        if target in got:
            scope.wrong(node, f"says the same as {got[target].key}", "keep one of the two")
        else:
            got[target] = Got(value, node.where, scope.key)


def nearest(name: str, valid: Iterable[str], *, known_as: str = "expected one of") -> str:
    """A fix: ``did you mean 'x'?``, or the list of what is valid if nothing is near."""
    names = list(valid)
    found = closest(name, names)
    return f"did you mean '{found}'?" if found is not None else f"{known_as} {', '.join(names)}"


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The one that ``name`` may have been meant to be, whatever its case; None if nothing is near."""
    lowered = {n.lower(): n for n in valid}
    # 0.6 is difflib's own default: it finds one or two slips in a word and seldom a wrong word.
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def _some(fields: Mapping[str, Field]) -> str:
    return " and ".join(_main(fields)[:2])


def _main(fields: Mapping[str, Field]) -> list[str]:
    """The keys worth naming: those that do something, under their first name."""
    return [f.name for f in fields.values() if f.status is Status.WORKS and not f.alias_of]
