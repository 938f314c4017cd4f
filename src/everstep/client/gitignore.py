"""Ignore files as git reads them.

We walk a folder from the top and never look into an excluded folder, so a pattern is asked about each entry itself, and
never about what lies below it. Git does the same; libraries that answer for whole paths at once differ from it where a
negation meets a folder (``*.log`` above, ``!*/`` below).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """One ignore file.

    Attributes:
        prefix: the folder it stands in, relative to the top: ``""`` or ``a/b/``.
        patterns: in the order of the file.
    """

    prefix: str
    patterns: tuple[_Pattern, ...]

    def verdict(self, name: str, *, is_folder: bool) -> bool | None:
        """True = left out, False = taken back by a negation, None = not mentioned. ``name``: path below the top."""
        inner = name.removeprefix(self.prefix)
        for pattern in reversed(self.patterns):
            if (is_folder or not pattern.folders_only) and pattern.regex.fullmatch(inner):
                return not pattern.negated
        return None


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    negated: bool
    folders_only: bool


def read_rules(lines: Iterable[str], prefix: str = "") -> IgnoreRules:
    """The rules in ``lines``; lines that are no pattern are passed over, as git does."""
    parsed = (_pattern(line.rstrip("\r\n")) for line in lines)
    return IgnoreRules(prefix, tuple(p for p in parsed if p is not None))


def is_ignored(name: str, rules: tuple[IgnoreRules, ...], *, is_folder: bool) -> bool:
    """Whether ``name`` is left out; ``rules`` from the top down. The deepest file that mentions it decides."""
    for one in reversed(rules):
        verdict = one.verdict(name, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _pattern(line: str) -> _Pattern | None:
    # Spaces at the end do not count, unless the last one is escaped.
    text = re.sub(r"(?<!\\) +$", "", line) if not line.endswith("\\ ") else line
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    folders_only = text.endswith("/")
    text = text[:-1] if folders_only else text
    anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    try:
        regex = re.compile(("" if anchored else "(?:.*/)?") + _translate(text), re.DOTALL)
    except (re.error, ValueError):
        return None
    return _Pattern(regex, negated, folders_only)


def _translate(text: str) -> str:
    """A glob to a regular expression for the whole path.

    Raises:
        ValueError: it can never match: a bracket that is not closed, or a backslash at the end.
    """
    out, at = [], 0
    while at < len(text):
        stars = re.compile(r"\*+").match(text, at)
        if stars:
            piece, at = _stars(text, at, stars.end())
            out.append(piece)
        elif text[at] == "?":
            out.append("[^/]")
            at += 1
        elif text[at] == "[":
            piece, at = _bracket(text, at)
            out.append(piece)
        elif text[at] == "\\":
            out.append(re.escape(_escaped(text, at)))
            at += 2
        else:
            out.append(re.escape(text[at]))
            at += 1
    return "".join(out)


def _stars(text: str, start: int, end: int) -> tuple[str, int]:
    at_start = start == 0 or text[start - 1] == "/"
    if end - start == 2 and at_start:
        if end == len(text):
            return (".+" if start else ".*"), end
        if text[end] == "/":
            return "(?:.*/)?", end + 1
    return "[^/]*", end


def _escaped(text: str, at: int) -> str:
    if at + 1 >= len(text):
        raise ValueError("a backslash at the end")
    return text[at + 1]


def _bracket(text: str, start: int) -> tuple[str, int]:
    at, out = start + 1, []
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    first = at
    while at == first or text[at : at + 1] != "]":
        if at >= len(text):
            raise ValueError("a bracket that is not closed")
        named = _NAMED_CLASS.match(text, at)
        if named:
            out.append(_CLASSES[named[1]])
            at = named.end()
            continue
        low, at = _member(text, at)
        out.append(re.escape(low))
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(text, at + 1)
            # Of a range that runs backwards git keeps the beginning.
            out.append(f"{re.escape(low)}-{re.escape(high)}" if low <= high else "")
    # A bracket never stands for a slash.
    return f"(?!/)[{'^' if negated else ''}{''.join(out)}]", at + 1


_NAMED_CLASS = re.compile(rf"\[:({'|'.join(_CLASSES)}):\]")


def _member(text: str, at: int) -> tuple[str, int]:
    if text[at] == "\\":
        return _escaped(text, at), at + 2
    return text[at], at + 1
