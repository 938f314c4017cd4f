"""Objects of the script's that stand for ``sys.stdout`` and ``sys.stderr``: part of the graph, whoever holds them."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

from everstep.train.script.graph import Restored, Space

KEY = "streams"
_NAMES = ("stdout", "stderr")


def space() -> Space:
    """Those that are the script's own. What a library puts there is made anew."""
    return Space(KEY, {name: stream for name in _NAMES if _is_own(stream := getattr(sys, name))})


def write(restored: Sequence[Restored]) -> None:
    """Let them stand there again."""
    for one in restored:
        if one.key == KEY:
            for name, stream in one.values.items():
                setattr(sys, name, stream)
            for name in one.gone:
                setattr(sys, name, getattr(sys, f"__{name}__"))


def _is_own(stream: Any) -> bool:
    module = sys.modules.get(type(stream).__module__)
    return type(stream) is io.StringIO or "__everstep__" in vars(module or io)
