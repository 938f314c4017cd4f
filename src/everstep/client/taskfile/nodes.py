"""YAML text to a small tree in which every value knows where it stands.

PyYAML's own constructor forgets lines, lets the last of two equal keys win and turns ``on`` into ``True``; so we take
its events and compose the tree ourselves. Limits on size, depth and expanded aliases hold for files written to do harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from everstep.model.errors import BadInput, Problem

MAX_CHARS = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000
"""Counted with every alias expanded, which is what stops a bomb of aliases."""

_MAX_EQUAL_KEYS = 50

Kind = str
"""``null``, ``bool``, ``int``, ``float``, ``text``, ``list`` or ``map``."""

_TAG_KIND = {"null": "null", "bool": "bool", "int": "int", "float": "float", "timestamp": "text", "str": "text"}
_TAG_PREFIX = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"(['\"]).{3,}?\1")


@dataclass(frozen=True, slots=True)
class Node:
    """One value.

    Attributes:
        where: ``task.yaml:12``, or the flag it came from (``--gpus``).
        kind: what YAML takes it for.
        text: a scalar as it is written; never shown for secrets, therefore not part of ``repr``.
        items: of a list.
        entries: of a map, by key; keys are text as written.
    """

    where: str
    kind: Kind
    text: str = field(default="", repr=False)
    items: tuple[Node, ...] = field(default=(), repr=False)
    entries: Mapping[str, Entry] = field(default_factory=dict, repr=False)
    size: int = 1

    @property
    def shown(self) -> str:
        """How an error names the value: short, on one line."""
        if self.kind in ("null", "list", "map"):
            return {"null": "nothing", "list": "a list", "map": "a mapping"}[self.kind]
        text = " ".join(self.text.split()) if self.text.isprintable() else repr(self.text)[1:-1]
        return f"'{text[:37] + '...' if len(text) > 40 else text}'"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a map: where its key stands, and the value."""

    where: str
    value: Node


@dataclass(frozen=True, slots=True)
class Override:
    """A flag of the command line that sets a key: ``Override("--gpus", "resources.accelerators", "A100:8")``."""

    flag: str
    key: str
    value: Any


def parse_documents(text: str, name: str) -> list[Node]:
    """The documents of a YAML text, empty ones left out.

    Args:
        text: the whole file.
        name: how problems call it.

    Raises:
        BadInput: every fault that hinders reading on, with line and column; all duplicate keys at once.
    """
    if len(text) > MAX_CHARS:
        raise BadInput(Problem(name, "", f"the file has {len(text):,} characters, at most {MAX_CHARS:,} are read"))
    try:
        composer = _Composer(text, name)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not valid YAML: the character U+{ord(text[error.position]):04X} may not stand in a text file"
        raise BadInput(Problem(f"{name}:{line}", "", message)) from None
    try:
        documents = list(composer.documents())
    except yaml.MarkedYAMLError as error:
        raise BadInput(*composer.problems, _syntax(error, name)) from None
    if composer.problems:
        raise BadInput(*composer.problems[:_MAX_EQUAL_KEYS])
    return [d for d in documents if d.kind != "null"]


def node_of(value: Any, where: str) -> Node:
    """The tree of plain Python data (None, bool, numbers, text, lists, dicts), for overrides and ``task_from_dict``.

    Raises:
        BadInput: data of another type, a key that is not text, or too deep.
    """
    return _node_of(value, where, 0)


def _node_of(value: Any, where: str, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise BadInput(Problem(where, "", f"nested more than {MAX_DEPTH} deep"))
    if value is None:
        return Node(where, "null")
    if isinstance(value, bool):
        return Node(where, "bool", "true" if value else "false")
    if isinstance(value, int | float):
        return Node(where, "int" if isinstance(value, int) else "float", str(value))
    if isinstance(value, str):
        return Node(where, "text", value)
    if isinstance(value, Mapping):
        entries = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadInput(Problem(where, "", f"keys are text, found a {type(key).__name__}"))
            entries[key] = Entry(where, _node_of(inner, where, depth + 1))
        return Node(where, "map", entries=entries)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return Node(where, "list", items=tuple(_node_of(v, where, depth + 1) for v in value))
    raise BadInput(Problem(where, "", f"a {type(value).__name__} cannot stand in a task"))


def apply_override(root: Node, override: Override) -> Node:
    """``root`` with one key set; maps on the way are made as needed."""
    return _set(root, override.key.split("."), node_of(override.value, override.flag))


def _set(node: Node, path: list[str], value: Node) -> Node:
    if not path:
        return value
    if node.kind not in ("map", "null"):
        return node  # no section at all: who reads it will say so
    old = node.entries[path[0]].value if path[0] in node.entries else Node(value.where, "map")
    new = _set(old, path[1:], value)
    return Node(node.where, "map", entries={**node.entries, path[0]: Entry(value.where, new)})


class _Composer:
    """Events to nodes. Depth is bounded, so recursion is safe."""

    def __init__(self, text: str, name: str) -> None:
        self._loader: Any = yaml.SafeLoader(text)  # its event interface has no types
        self._name = name
        self._anchors: dict[str, Node | None] = {}
        self.problems: list[Problem] = []

    def documents(self) -> Iterator[Node]:
        loader = self._loader
        loader.get_event()  # start of the stream
        while not loader.check_event(yaml.StreamEndEvent):
            loader.get_event()  # start of the document
            self._anchors = {}
            yield self._node(0, "")
            loader.get_event()  # end of the document

    def _where(self, event: Any) -> str:
        return f"{self._name}:{event.start_mark.line + 1}"

    def _stop(self, event: Any, message: str, fix: str = "") -> BadInput:
        return BadInput(*self.problems, Problem(self._where(event), "", message, fix))

    def _node(self, depth: int, key: str) -> Node:
        event: Any = self._loader.get_event()
        if depth > MAX_DEPTH:
            raise self._stop(event, f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = None  # being composed: an alias to it from inside would never end
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._list(event, depth, key)
        else:
            node = self._map(event, depth, key)
        if node.size > MAX_NODES:
            raise self._stop(event, f"more than {MAX_NODES:,} values, counted with every alias (*name) written out")
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise self._stop(
                event, "this alias (*name) has no anchor (&name) above it", "quote the value if it starts with *"
            )
        node = self._anchors[event.anchor]
        if node is None:
            raise self._stop(event, "this alias (*name) contains itself")
        return node

    def _scalar(self, event: Any) -> Node:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        kind = _TAG_KIND.get(
            tag.removeprefix(_TAG_PREFIX), "text" if tag in (f"{_TAG_PREFIX}value", f"{_TAG_PREFIX}merge") else ""
        )
        if not kind:
            raise self._stop(event, "tags (!name) are not used in task files", "quote the value if it starts with !")
        return Node(self._where(event), kind, event.value)

    def _list(self, event: Any, depth: int, key: str) -> Node:
        items: list[Node] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node(depth + 1, f"{key}[{len(items)}]"))
            self._check_size(event, items)
        self._loader.get_event()
        return Node(self._where(event), "list", items=tuple(items), size=1 + sum(i.size for i in items))

    def _map(self, event: Any, depth: int, path: str) -> Node:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        size = 1
        while not self._loader.check_event(yaml.MappingEndEvent):
            key_event: Any = self._loader.peek_event()
            key = self._node(depth + 1, "")
            if key.kind in ("list", "map"):
                raise self._stop(key_event, f"a key is one word, found {key.shown}")
            dotted = f"{path}.{key.text}" if path else key.text
            value = self._node(depth + 1, dotted)
            size += 1 + value.size
            if key.text == "<<" and getattr(key_event, "style", None) is None:
                for source in value.items if value.kind == "list" else (value,):
                    merged = {**source.entries, **merged}
            elif key.text in own:
                first = own[key.text].where.rpartition(":")[2]
                self.problems.append(Problem(key.where, dotted, f"this key stands here twice, first on line {first}"))
            else:
                # What is said about a value is looked for at its key, not where its first item or its anchor stands.
                where = self._where(key_event)
                own[key.text] = Entry(where, replace(value, where=where))
            if size > MAX_NODES:
                raise self._stop(event, f"more than {MAX_NODES:,} values, counted with every alias (*name) written out")
        self._loader.get_event()
        return Node(self._where(event), "map", entries={**merged, **own}, size=size)

    def _check_size(self, event: Any, items: list[Node]) -> None:
        # The sum is only looked at now and then: aliases grow fast, and each node was checked by itself already.
        if len(items) % 100 == 0 and sum(i.size for i in items) > MAX_NODES:
            raise self._stop(event, f"more than {MAX_NODES:,} values, counted with every alias (*name) written out")


_BEGAN_EARLIER = ("could not find expected ':'", "unexpected end of stream", "',' or ']'", "',' or '}'")
_SYNTAX = (
    ("'\\t'", "a tab stands where spaces are needed", "indent with spaces"),
    (
        "mapping values are not allowed",
        "a second ':' on one line, or wrong indentation",
        "quote a value that holds ': '",
    ),
    ("could not find expected ':'", "a line without ':' where 'key: value' was expected", ""),
    ("<block end>", "wrong indentation: this line does not line up with the ones above it", ""),
    ("expected the node content", "a value or a closing bracket is missing", ""),
    ("unexpected end of stream", "the text ends inside a quoted value", "close the quote"),
    ("',' or ']'", "a list in [ ] is not closed", "add ]"),
    ("',' or '}'", "a mapping in { } is not closed", "add }"),
    ("undefined tag handle", "tags (!name) are not used in task files", "quote the value if it starts with !"),
)


def _syntax(error: yaml.MarkedYAMLError, name: str) -> Problem:
    """PyYAML's error in our words; values are cut out of what we do not know, since one of them may be a secret."""
    said = error.problem or "cannot be read"
    # What is never closed is noticed at the end of the text; the user wants to see where it began.
    mark = (error.context_mark if any(part in said for part in _BEGAN_EARLIER) else None) or error.problem_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    for part, message, fix in _SYNTAX:
        if part in said:
            return Problem(where, "", f"not valid YAML: {message}", fix)
    return Problem(where, "", f"not valid YAML: {_QUOTED.sub('a value', said)}")
