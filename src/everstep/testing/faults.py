"""Faults of a vendor that were ordered and wait for their calls: the same for every fake cloud."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(slots=True)
class Fault:
    """One fault that waits for its calls.

    Attributes:
        call: the vendor's name of the API call, ``RunInstances`` or ``compute.instances.insert``; empty = any.
        kind: one of the fake's kinds of faults; empty = only late.
        late: the effect happens, and the answer is the fault all the same.
        delay_s: wait so long first.
        times: how many calls are left.
        zone: only calls that name this zone.
    """

    call: str
    kind: str
    late: bool
    delay_s: float
    times: int
    zone: str


class OrderedFaults:
    """What was ordered and has not happened yet.

    Attributes:
        weather: asked about each call that meets nothing that was ordered: name of the call, and its zone.
    """

    def __init__(self, kinds: Collection[str]) -> None:
        """Args: kinds: of faults that the fake knows."""
        self._kinds = kinds
        self._waiting: list[Fault] = []
        self.weather: Callable[[str, str], Fault | None] = lambda call, zone: None

    def order(self, fault: Fault) -> None:
        """Adds a fault. Raises ValueError for a kind that nobody knows."""
        if fault.kind not in ("", *self._kinds):
            raise ValueError(f"unknown fault {fault.kind!r}; known: {', '.join(self._kinds)}")
        self._waiting.append(fault)

    def take(self, call: str, zone: str) -> Fault | None:
        """The fault that this call meets."""
        for fault in self._waiting:
            if fault.call in ("", call) and fault.zone in ("", zone):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return self.weather(call, zone)
