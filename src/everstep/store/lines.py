"""Journal lines as text: what every store accepts, and the form in which bodies are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.model.errors import StoreUnusable
from everstep.model.ids import StreamId
from everstep.ports import Append, NewRecord

_MAX_SCHEMA = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Line:
    """A checked line, its body already text."""

    at: float
    kind: str
    schema: int
    body: str


@dataclass(frozen=True, slots=True)
class Lines:
    """An ``Append`` that can no longer fail for what it contains."""

    stream: StreamId
    lines: tuple[Line, ...]
    expected_version: int | None


def encode(batch: Sequence[Append]) -> tuple[Lines, ...]:
    """The batch, checked before it meets other people's batches in one transaction.

    Raises:
        TypeError, ValueError: a stream without a name, a body that is not JSON (NaN included), a time that is not
            finite, a schema below 1. Nothing was written.
    """
    return tuple(
        Lines(_name(a.stream, "stream"), tuple(_line(r) for r in a.records), a.expected_version) for a in batch
    )


def decode_body(seq: int, text: str) -> Mapping[str, Any]:
    """The body as it was appended. Raises StoreUnusable when the text was damaged."""
    try:
        body: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise StoreUnusable(f"line {seq} of the journal is damaged: {error}") from error
    return body


def _line(record: NewRecord) -> Line:
    if not math.isfinite(record.at):
        raise ValueError(f"{record.kind}: the time {record.at} is not finite")
    if not 1 <= record.schema <= _MAX_SCHEMA:
        raise ValueError(f"{record.kind}: schema {record.schema} is out of range")
    # ASCII, so that no lone surrogate can fail inside the transaction; NaN is no JSON and other databases refuse it.
    body = json.dumps(dict(record.body), separators=(",", ":"), allow_nan=False)
    return Line(float(record.at), _name(record.kind, "kind"), int(record.schema), body)


def _name(text: Any, what: str) -> Any:
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{text!r} is no name of a {what}")
    text.encode()
    return text
