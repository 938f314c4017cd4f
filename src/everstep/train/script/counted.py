"""Calls of the script's that leave something where nobody can read or write it: counted, so that a relaunch can tell.

What the setup leaves there is left again by a relaunch. What a pass had left is missing, and then the counts differ.
"""

from __future__ import annotations

import abc
import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

_CALLS: dict[str, tuple[Any, str]] = {
    "functions for the exit": (atexit, "register"),
    "classes registered with an abstract one": (abc.ABCMeta, "register"),
}
KINDS = tuple(_CALLS)
_counts = dict.fromkeys(_CALLS, 0)
_plain: dict[str, Callable[..., Any]] = {kind: getattr(owner, name) for kind, (owner, name) in _CALLS.items()}


def begin() -> None:
    """Count from now on."""
    for kind, (owner, name) in _CALLS.items():
        setattr(owner, name, _counting(kind))


def counts() -> dict[str, int]:
    """How often the script has called them."""
    return dict(_counts)


def _counting(kind: str) -> Callable[..., Any]:
    plain = _plain[kind]

    @functools.wraps(plain)
    def counted(*arguments: Any, **named: Any) -> Any:
        if "__everstep__" in sys._getframe(1).f_globals:
            _counts[kind] += 1
        return plain(*arguments, **named)

    return counted
