"""JSON documents of market data: read whole, and a fault in an entry names the line where the entry stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from everstep.market.faults import Malformed, undecodable, unreadable
from everstep.market.rows import MOST


def read_document(path: Path) -> tuple[dict[str, Any], str]:
    """The object that the file holds, and its text.

    Raises:
        Malformed: it cannot be read, is not JSON, or holds no object.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = json.loads(text)
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise undecodable(path) from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise Malformed(path, "", "is empty") from None
        message = f"is not JSON: {error.msg.lower()} (column {error.colno})"
        raise Malformed(path, "", message, line=error.lineno, fix="write it again") from None
    except (ValueError, RecursionError):
        raise Malformed(path, "", "is not usable JSON: a number or a nesting is too long") from None
    if not isinstance(document, dict):
        raise Malformed(path, "", f"expected an object, found {shown(document)}")
    return document, text


def line_of(text: str, key: str, index: int, field: str = "") -> int:
    """The line of entry ``index`` of the list ``key``, or of ``field`` in it, from 1; 1 where it is not found."""
    start = re.search(rf'"{re.escape(key)}"\s*:\s*\[', text)
    if start is None:
        return 1
    decoder, position = json.JSONDecoder(), start.end()
    between = re.compile(r"[\s,]*")
    for _ in range(index):
        position = _end(between, text, position)
        position = decoder.raw_decode(text, position)[1]
    position = _end(between, text, position)
    if field:
        found = text.find(f'"{field}"', position, decoder.raw_decode(text, position)[1])
        position = found if found >= 0 else position
    return text.count("\n", 0, position) + 1


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position


def number(value: Any) -> float | None:
    """A number that a market has, also one in quotes as AWS writes prices; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) <= MOST else None


def shown(value: Any) -> str:
    """A value as JSON writes it, cut where it is long."""
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
