"""How old a price is, for people; and the date of a file whose prices carry none."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from pathlib import Path

STALE_D = 7
"""Days after which a price is called stale: spot prices of a week ago say little about now."""

_DATE = re.compile(r"(?<!\d)(20\d\d-[01]\d-[0-3]\d)(?!\d)")


def age(as_of: float, now: float) -> str:
    """``31 d old``; hours below two days, minutes below two hours. Both are UTC seconds.

    >>> age(0.0, 31 * 86_400.0)
    '31 d old'
    """
    old_s = now - as_of
    if old_s < -60.0:
        return "dated in the future"
    for unit, size_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if old_s >= 2 * size_s:
            return f"{math.floor(old_s / size_s)} {unit} old"
    return "fresh"


def stale(as_of: float, now: float) -> bool:
    """Whether a price of ``as_of`` is older than ``STALE_D`` days at ``now``; UTC seconds."""
    return now - as_of > STALE_D * 86_400.0


def date_of_file(path: Path) -> float:
    """UTC seconds as of which the prices of a file are, when they carry no time of their own.

    The last date in the file's name, else in that of its folder (``skypilot-2024-06-13/aws.csv``), else the time of
    its last change, but never after that: a file cannot know the future.
    """
    changed = path.stat().st_mtime
    for name in (path.name, path.absolute().parent.name):
        for text in reversed(_DATE.findall(name)):
            try:
                named = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
            except ValueError:
                continue
            return min(named, changed)
    return changed
