"""Small plain values: what can be noted in microseconds where a loop ends, to stand for its results in a replay."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

_ATOMS = (int, float, complex, str, bytes, bool, type(None))
SIMPLE = frozenset(_ATOMS)
"""Types of values that stand for themselves."""
_KINDS = SIMPLE | {list, tuple, set, dict, torch.Tensor}
_MOST = 1024


class NotPlain:
    """Stands for a value that was not noted."""


NOT_PLAIN = NotPlain()


def plain(value: Any) -> Any:
    """A copy of numbers, texts, small tensors and small containers of these; `NOT_PLAIN` for anything else."""
    budget = [_MOST]
    try:
        return _copy(value, budget)
    except _TooMuch:
        return NOT_PLAIN


def plain_locals(frame: FrameType) -> dict[str, Any]:
    """The plain ones among the local variables of a function; nothing for a module, whose globals stay."""
    values = frame.f_locals
    if values is frame.f_globals:
        return {}
    found = {}
    for name, value in values.items():
        kind = type(value)
        if kind in _KINDS:
            # What is not even looked at costs least: there may be many.
            copy = value if kind in SIMPLE else plain(value)
            if copy is not NOT_PLAIN:
                found[name] = copy
    return found


class _TooMuch(Exception):
    pass


def _copy(value: Any, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise _TooMuch
    kind = type(value)
    if kind in SIMPLE:
        return value
    if kind in (list, tuple, set):
        budget[0] -= len(value)
        if budget[0] < 0:
            raise _TooMuch
        if SIMPLE.issuperset(map(type, value)):
            budget[0] -= len(value)
            return kind(value)
        return kind(_copy(item, budget) for item in value)
    if kind is dict:
        return {_copy(key, budget): _copy(item, budget) for key, item in value.items()}
    if kind is torch.Tensor and value.numel() <= _MOST and value.layout is torch.strided:
        return value.detach().clone()
    raise _TooMuch
