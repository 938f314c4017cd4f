"""The kinds of value a task file holds: what each expects, how it is read, and its JSON Schema."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

from everstep.client.taskfile.nodes import Node
from everstep.client.taskfile.reading import Kind, Mismatch, Scope, nearest
from everstep.model import units

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_TEXT = 128 * 1024
SCALARS = ("text", "int", "float", "bool")

_STRING = {"type": "string"}
_STRING_OR_NUMBER = {"type": ["string", "number"]}


def _mismatch(expected: str, node: Node, fix: str = "") -> Mismatch:
    return Mismatch(f"expected {expected}, found {node.shown}", fix)


def _finite(node: Node, expected: str) -> float:
    try:
        value = float(node.text.replace("_", "")) if node.kind in ("int", "float", "text") else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _mismatch(expected, node)
    return value


def whole(expected: str, *, least: int, most: int) -> Kind:
    """A whole number from ``least`` to ``most``; decimal digits only (YAML would read ``010`` as eight)."""

    def parse(node: Node, _scope: Scope) -> int:
        if node.kind not in ("int", "text") or not re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", node.text):
            raise _mismatch(expected, node)
        value = int(node.text)
        if not least <= value <= most:
            raise _mismatch(expected, node)
        return value

    return Kind(expected, parse, {"type": "integer", "minimum": least, "maximum": most})


def number(expected: str, *, above: float, most: float) -> Kind:
    """A finite number above ``above`` and at most ``most``."""

    def parse(node: Node, _scope: Scope) -> float:
        value = _finite(node, expected)
        if not above < value <= most:
            raise _mismatch(expected, node)
        return value

    return Kind(expected, parse, {"type": "number", "exclusiveMinimum": above, "maximum": most})


def choice(*words: str) -> Kind:
    """One of ``words``, in any case."""
    expected = " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

    def parse(node: Node, _scope: Scope) -> str:
        found = next((w for w in words if w.lower() == node.text.lower()), None)
        if node.kind not in SCALARS or found is None:
            raise _mismatch(expected, node, nearest(node.text, words) if _near(node.text, words) else "")
        return found

    return Kind(expected, parse, {"enum": list(words)})


def _near(name: str, words: tuple[str, ...]) -> bool:
    return bool(name) and nearest(name, words).startswith("did")


def _truth(node: Node, _scope: Scope) -> bool:
    if node.kind != "bool":
        raise _mismatch("true or false", node)
    return node.text.lower() in ("true", "yes", "on")


def _spot(node: Node, _scope: Scope) -> str:
    if node.kind == "bool":
        return str(_truth(node, _scope)).lower()
    if node.kind != "text" or node.text.lower() not in ("true", "false", "auto"):
        raise _mismatch("true, false or auto", node)
    return node.text.lower()


def text(expected: str, pattern: str = "", *, fix: str = "", most: int = MAX_TEXT) -> Kind:
    """Text, or a number or truth value taken as it is written; ``pattern`` must match all of it."""

    def parse(node: Node, _scope: Scope) -> str:
        if node.kind not in SCALARS:
            raise _mismatch(expected, node)
        if "\0" in node.text:
            raise Mismatch(f"expected {expected}, found a zero byte in it")
        if len(node.text) > most:
            raise Mismatch(f"expected at most {most:,} characters, found {len(node.text):,}")
        if pattern and not re.fullmatch(pattern, node.text):
            raise _mismatch(expected, node, fix)
        return node.text

    return Kind(expected, parse, {"type": ["string", "number", "boolean"]})


def _measured(parser: Callable[[str], float], expected: str, *, positive: bool) -> Kind:
    """What `model.units` reads."""

    def parse(node: Node, _scope: Scope) -> float:
        if node.kind not in ("text", "int", "float"):
            raise _mismatch(expected, node)
        try:
            value = parser(node.text)
        except ValueError as error:
            raise Mismatch(f"{error}, found {node.shown}") from None
        if positive and value <= 0:
            raise Mismatch(f"expected {expected} above zero, found {node.shown}")
        return value

    return Kind(expected, parse, _STRING_OR_NUMBER)


def amount(parser: Callable[[str], float], expected: str, *, positive: bool = True) -> Kind:
    """Duration, size or money, by its parser in `model.units`."""
    return _measured(parser, expected, positive=positive)


def _every(node: Node, scope: Scope) -> float | None:
    if node.kind == "text" and node.text.lower() == "auto":
        return None
    try:
        value: float = DURATION.parse(node, scope)
    except Mismatch as mismatch:
        raise Mismatch(mismatch.message.replace("expected ", "expected auto or ", 1)) from None
    return value


def _deadline(node: Node, scope: Scope) -> tuple[str, float]:
    """``("for", seconds)`` or ``("at", UTC seconds)``."""
    if node.kind == "text" and re.match(r"[0-9]{4}-", node.text):
        try:
            return "at", units.parse_instant(node.text)
        except ValueError as error:
            raise Mismatch(f"{error}, found {node.shown}") from None
    try:
        return "for", DURATION.parse(node, scope)
    except Mismatch:
        raise _mismatch(f"{units.DURATION_EXPECTED}, or {units.INSTANT_EXPECTED}", node) from None


def _disk_gib(node: Node, scope: Scope) -> float:
    kind = amount(lambda t: units.parse_size(t, unit="GiB"), "a size such as 256 (GiB) or 1TB")
    return float(kind.parse(node, scope)) / 2**30


_SIGNALS = tuple(s.name for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP))
_NOTICE_EXPECTED = "a signal such as SIGUSR1, or a shell command"


def _on_notice(node: Node, scope: Scope) -> str:
    value: str = NOTICE_TEXT.parse(node, scope)
    if re.fullmatch(r"SIG[A-Za-z0-9]+", value, re.IGNORECASE):
        if value.upper() in ("SIGKILL", "SIGSTOP"):
            raise Mismatch(
                f"expected a signal that the program can catch, found {node.shown}", "use SIGUSR1 or SIGTERM"
            )
        if value.upper() not in _SIGNALS:
            raise Mismatch(
                f"expected {_NOTICE_EXPECTED}, found {node.shown}", nearest(value, _SIGNALS, known_as="try one of")
            )
        return value.upper()
    return value


def _paths(node: Node, scope: Scope) -> tuple[str, ...]:
    """A list of paths, or one path. SkyPilot's map of bucket to size is taken with a warning and means nothing here."""
    if node.kind == "map":
        scope.report.warn(
            node.where,
            scope.key,
            "estimates of output sizes are not used; here `outputs` is a list of paths to bring home",
        )
        return ()
    nodes = node.items if node.kind == "list" else (node,)
    scopes = [scope.item(i) for i in range(len(nodes))] if node.kind == "list" else [scope]
    parsed = [inner.parse(PATH, item) for inner, item in zip(scopes, nodes, strict=True)]
    return tuple(value for fine, value in parsed if fine)


def _words(node: Node, scope: Scope) -> tuple[str, ...]:
    if node.kind != "list" or not node.items:
        raise _mismatch("a list of words such as [python, train.py]", node)
    parsed = [scope.item(i).parse(ANY_TEXT, item) for i, item in enumerate(node.items)]
    return tuple(value for fine, value in parsed if fine)


def _variables(node: Node, scope: Scope) -> dict[str, tuple[str | None, str]]:
    """Name -> (value, None when it must be given on the command line; where it stands). No message shows a value."""
    if node.kind != "map":
        raise Mismatch(f"expected a mapping of names to values, found {_no_value(node)}")
    got = {}
    for name, entry in node.entries.items():
        inner = scope.at(name)
        if not ENV_NAME.fullmatch(name):
            fix = "use letters, digits and _, not starting with a digit"
            inner.report.problem(entry.where, inner.key, "not the name of an environment variable", fix)
        elif name.upper().startswith("EVERSTEP_"):
            inner.report.problem(entry.where, inner.key, "names that start with EVERSTEP_ are set by everstep")
        elif entry.value.kind in ("list", "map"):
            inner.wrong(entry.value, f"expected one value, found {entry.value.shown}", "write the value as quoted text")
        elif "\0" in entry.value.text:
            inner.wrong(entry.value, "expected text without a zero byte")
        else:
            got[name] = (None if entry.value.kind == "null" else entry.value.text, entry.where)
    return got


def _no_value(node: Node) -> str:
    return node.shown if node.kind in ("list", "map", "null") else "a single value"


def _labels(node: Node, scope: Scope) -> dict[str, str]:
    if node.kind != "map":
        raise _mismatch("a mapping of label names to values", node)
    got = {}
    for name, entry in node.entries.items():
        fine, value = scope.at(name).parse(LABEL, entry.value)
        if fine:
            got[name] = value
    return got


def section(place: str, what: str) -> Kind:
    """A map whose keys are the fields of ``place``."""
    return Kind(what, lambda node, scope: scope.section(node, place), {"$ref": f"#/$defs/{place}"})


def custom(expected: str, parse: Callable[[Node, Scope], Any], schema: Mapping[str, Any]) -> Kind:
    """A kind with its own rules."""
    return Kind(expected, parse, schema)


ANYTHING = Kind("anything", lambda node, _scope: node, {})
ANY_TEXT = text("text")
TRUTH = Kind("true or false", _truth, {"type": "boolean"})
SPOT = Kind("true, false or auto", _spot, {"enum": [True, False, "auto"]})
NAME = text("a name of at most 100 letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
WORD = text("one word of letters, digits, '.', '_', ':', '/' and '-'", r"\*|[A-Za-z0-9][A-Za-z0-9._:/-]*", most=200)
PATH = text("a path", r"[^\n\r]*[^\s\n\r][^\n\r]*", most=4096)
MIRROR = text(
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or the path of a folder that begins with /",
    r"((s3|gs)://[^/\s]+(/\S*)?|/[^\n\r]*)",
    most=1024,
)
LABEL = text("text of at most 256 characters", most=256)
SHELL = text("shell commands as text", fix="start the text with '|' and indent it")
NOTICE_TEXT = text(_NOTICE_EXPECTED, r"(?s).*\S.*")
DURATION = amount(units.parse_duration, units.DURATION_EXPECTED)
DURATION_OR_ZERO = amount(units.parse_duration, units.DURATION_EXPECTED, positive=False)
MONEY = amount(units.parse_money, units.MONEY_EXPECTED)
EVERY = Kind(f"auto or {units.DURATION_EXPECTED}", _every, _STRING_OR_NUMBER)
DEADLINE = Kind(f"{units.DURATION_EXPECTED}, or {units.INSTANT_EXPECTED}", _deadline, _STRING_OR_NUMBER)
DISK = Kind("a size such as 256 (GiB) or 1TB", _disk_gib, _STRING_OR_NUMBER)
ON_NOTICE = Kind(_NOTICE_EXPECTED, _on_notice, _STRING)
PATHS = Kind("a list of paths", _paths, {"anyOf": [{"type": "array", "items": _STRING}, _STRING, {"type": "object"}]})
WORDS = Kind("a list of words", _words, {"type": "array", "items": _STRING_OR_NUMBER, "minItems": 1})
_VALUE = {"type": ["string", "number", "boolean", "null"]}
VARIABLES = Kind(
    "a mapping of names to values",
    _variables,
    {"type": "object", "propertyNames": {"pattern": f"^{ENV_NAME.pattern}$"}, "additionalProperties": _VALUE},
)
LABELS = Kind(
    "a mapping of names to text",
    _labels,
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
)
