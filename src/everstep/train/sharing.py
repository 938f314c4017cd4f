"""Noticing that a sampler shares its generator with somebody else, in a way that its order cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


class Watched:
    """Stands in for a sampler that draws from generators of its own; see `mixed`.

    Args:
        inner: the sampler.
        generators: what it draws from.
    """

    def __init__(self, inner: Iterable[Any], generators: Sequence[torch.Generator]) -> None:
        self._inner = inner
        self._generators = generators
        self._mixed = False
        self._exhausted = False
        self._count = 0

    def __iter__(self) -> Iterator[Any]:
        self._mixed = self._exhausted = False
        self._count = 0
        return self._pass(iter(self._inner))

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # as sized as the sampler it stands for

    @property
    def mixed(self) -> bool:
        """True if the sampler drew from a generator after somebody else had, and is not through yet.

        A replay of the sampler alone draws other numbers then. Once the sampler is through, a checksum of all it gave
        tells whether that mattered: torch's `RandomSampler` draws at its end what it throws away.
        """
        return self._mixed and not self._through()

    def _through(self) -> bool:
        try:
            return self._exhausted or self._count >= len(self)
        except (TypeError, NotImplementedError):
            return False

    def _pass(self, inner: Iterator[Any]) -> Iterator[Any]:
        left: list[torch.Tensor] | None = None
        while True:
            before = self._states()
            try:
                drawn = next(inner)
            except StopIteration:
                self._exhausted = True
                return
            after = self._states()
            if left is not None:
                self._mixed |= any(_moved_twice(*states) for states in zip(left, before, after, strict=True))
            left = after
            self._count += 1
            yield drawn

    def _states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]


def _moved_twice(left: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> bool:
    return not torch.equal(left, before) and not torch.equal(before, after)
