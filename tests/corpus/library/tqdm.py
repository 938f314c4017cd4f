"""A look-alike of tqdm's bar, small: progress goes to stderr, items pass through."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any


class tqdm:
    """Iterates over `iterable` and shows how far it is."""

    def __init__(self, iterable: Iterable[Any], desc: str = "", leave: bool = True) -> None:
        self.iterable = iterable
        self.desc = desc
        self.leave = leave
        self.n = 0
        self.postfix = ""

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for item in self.iterable:
            yield item
            self.n += 1
            sys.stderr.write(f"\r{self.desc}: {self.n}/{len(self)} {self.postfix}")
        sys.stderr.write("\n" if self.leave else "\r")

    def set_postfix(self, **values: float) -> None:
        """Shown behind the bar from the next item on."""
        self.postfix = " ".join(f"{name}={value:.3g}" for name, value in values.items())
