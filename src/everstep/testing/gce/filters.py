"""Filter expressions of lists: AIP-160 (``labels.a = "b"``, AND, OR, NOT, parentheses) and the older ``eq`` / ``ne``.

As the parameter ``filter`` of the discovery document explains them: several expressions in parentheses are joined by
AND; ``key:*`` asks whether it is there; ``eq`` and ``ne`` take a regular expression that must match the whole value,
and cannot be mixed with the others. As AIP-160 has it, OR binds tighter than AND.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from everstep.testing.gce.discovery import Refused

Test = Callable[[dict[str, Any]], bool]
_TOKEN = re.compile(
    r"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<op><=|>=|!=|=|<|>|:)|(?P<text>"[^"]*"|'[^']*'|[^\s()<>=!:"']+))"""
)
_LABEL_KEY = re.compile(r"[a-zA-Z_][\w.\-]*")


def matching(items: Iterable[dict[str, Any]], expression: str) -> list[dict[str, Any]]:
    """Those that fit. Raises Refused for an expression that cannot be read."""
    if not expression.strip():
        return list(items)
    parser = _Parser(expression)
    test = parser.parsed()
    return [item for item in items if test(item)]


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(expression.rstrip()):
            found = _TOKEN.match(expression, at)
            if found is None:
                raise self._bad()
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
            at = found.end()
        if {"eq", "ne"} & {t for k, t in self._tokens if k == "text"} and any(k == "op" for k, _ in self._tokens):
            raise self._bad()
        self._at = 0

    def parsed(self) -> Test:
        test = self._all()
        if self._at != len(self._tokens):
            raise self._bad()
        return test

    def _all(self) -> Test:
        tests = [self._any()]
        while self._at < len(self._tokens) and self._tokens[self._at][0] != "close":
            self._skip("AND")
            tests.append(self._any())
        return lambda item: all(t(item) for t in tests)

    def _any(self) -> Test:
        tests = [self._one()]
        while self._skip("OR"):
            tests.append(self._one())
        return lambda item: any(t(item) for t in tests)

    def _one(self) -> Test:
        if self._skip("NOT"):
            inner = self._one()
            return lambda item: not inner(item)
        kind, text = self._next()
        if kind == "open":
            inner = self._all()
            if self._next()[0] != "close":
                raise self._bad()
            return inner
        if kind != "text" or not _LABEL_KEY.fullmatch(text):
            raise self._bad()
        kind, operator = self._next()
        if kind != "op" and operator not in ("eq", "ne"):
            raise self._bad()
        kind, value = self._next()
        if kind != "text":
            raise self._bad()
        return _comparison(text, operator, value.strip("\"'"))

    def _skip(self, word: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == ("text", word):
            self._at += 1
            return True
        return False

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._bad()
        self._at += 1
        return self._tokens[self._at - 1]

    def _bad(self) -> Refused:
        text = f"Invalid value for field 'filter': '{self._expression}'. Invalid list filter expression."
        return Refused(400, "invalid", text)


def _comparison(path: str, operator: str, value: str) -> Test:
    def test(item: dict[str, Any]) -> bool:
        found = _found(item, path)
        if operator == ":":
            return found is not None and (value == "*" or value.lower() in str(found).lower())
        if operator in ("eq", "ne"):
            return (found is not None and re.fullmatch(value, _text(found)) is not None) == (operator == "eq")
        if operator in ("=", "!="):
            return (found is not None and _text(found).lower() == value.lower()) == (operator == "=")
        if found is None:
            return False
        left: Any = _text(found)
        right: Any = value
        if isinstance(found, int | float) or left.isdigit():
            try:
                left, right = float(left), float(value)
            except ValueError:
                return False
        return bool({"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right}[operator])

    return test


def _found(item: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(item, dict):
            return None
        item = item.get(part)
    return item


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
