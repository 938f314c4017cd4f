"""The form of a transition table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from everstep.model.errors import UnlistedTransition
from everstep.model.events import Event

S = TypeVar("S")
P = TypeVar("P", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Move(Generic[S, P]):
    """What an event does in a phase.

    Attributes:
        do: (state, event, now) -> new state.
        to: every phase the new state may be in; ``look_up`` callers check it, the diagrams draw it.
    """

    do: Callable[[S, Any, float], S]
    to: frozenset[P]


Table = dict[tuple[P, type[Event]], Move[S, P]]


def rows(
    phases: Iterable[P], events: Iterable[type[Event]], do: Callable[[S, Any, float], S], to: Iterable[P] | None = None
) -> dict[tuple[P, type[Event]], Move[S, P]]:
    """The same move for several phases and events; ``to`` None means that the phase stays as it is."""
    targets = None if to is None else frozenset(to)
    return {
        (phase, event): Move(do, frozenset({phase}) if targets is None else targets)
        for phase in phases
        for event in events
    }


def look_up(table: dict[tuple[P, type[Event]], Move[S, P]], phase: P, event: Event, what: str) -> Move[S, P]:
    """The listed move; raises UnlistedTransition that names the pair."""
    move = table.get((phase, type(event)))
    if move is None:
        raise UnlistedTransition(f"{what} in phase {phase.value} cannot take {type(event).__name__}")
    return move


def check_target(move: Move[S, P], before: P, after: P, event: Event, what: str) -> None:
    """Raises UnlistedTransition when a move led to a phase that its row does not list."""
    if after not in move.to:
        raise UnlistedTransition(
            f"{what}: {type(event).__name__} led from {before.value} to {after.value}, which its row does not list"
        )
