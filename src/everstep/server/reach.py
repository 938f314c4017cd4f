"""Whether the machines of a provider can call this server: said before anything is leased.

A machine that cannot reach its server is billed until somebody looks, and never trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.model.errors import BadInput, Problem
from everstep.model.task import Task
from everstep.ports import OnThisHost, Provider
from everstep.providers import leads_here

COMMAND = "everstep server up ssh HOST"
LEASED = ("aws", "gcp")
"""Clouds that ``everstep server up`` leases a machine from."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Who cannot call.

    Attributes:
        address: base URL that machines are told to call.
        cut_off: providers whose machines cannot, in order.
        within: providers whose machines can.
    """

    address: str = ""
    cut_off: tuple[str, ...] = ()
    within: tuple[str, ...] = ()

    @classmethod
    def of(cls, providers: Mapping[str, Provider], address: str) -> Reach:
        """Args: providers: by name; address: base URL that machines are told to call."""
        if not leads_here(address):
            return cls(address, (), tuple(providers))
        near = tuple(name for name, p in providers.items() if isinstance(p, OnThisHost) and p.on_this_host)
        return cls(address, tuple(name for name in providers if name not in near), near)

    def check(self, task: Task) -> None:
        """Raises BadInput if a machine of the task might be leased from a provider whose machines cannot call."""
        for name in self.cut_off:
            if any(_admits(group.machine.places, name) for group in task.gang.groups):
                message = f"machines of '{name}' cannot reach this server: only its own computer can, at {self.address}"
                own = f"everstep server up {name}, or " if name in LEASED else ""
                fix = f"put a server where they can: {own}{COMMAND} (docs/server.md)"
                if self.within:
                    fix += f"; or stay here with infra: {self.within[0]} under resources"
                raise BadInput(Problem("server", "", message, fix))


def _admits(places: tuple[tuple[str, str, str], ...], provider: str) -> bool:
    return not places or any(place[0] in ("", provider) for place in places)
