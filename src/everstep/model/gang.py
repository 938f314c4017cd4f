"""Gangs: the machines that one attempt runs on, as groups of slots.

A gang is a tuple of slot groups from the first day, so that mixed clusters and parameter servers need no migration;
today the brain acts on gangs of exactly one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.model.offers import MachineRequirement


class ZoneRule(StrEnum):
    """Where the slots of a group may lie relative to each other."""

    SAME_ZONE = "same_zone"
    SAME_REGION = "same_region"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Machines of one kind within a gang.

    Attributes:
        role: ``worker`` today.
        machine: what each machine must have.
        count: how many machines.
        ranks_per_node: processes the agent starts on each; None = the task's ``run`` makes its own.
        zones: where they may lie.
    """

    role: str
    machine: MachineRequirement
    count: int
    ranks_per_node: int | None = None
    zones: ZoneRule = ZoneRule.ANY


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place in a group. It keeps its disk while instances come and go; it is not a rank."""

    group: int
    index: int

    def __str__(self) -> str:
        """``0.1``: group 0, place 1."""
        return f"{self.group}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """Reads what ``str`` wrote."""
        group, index = text.split(".")
        return cls(int(group), int(index))


@dataclass(frozen=True, slots=True)
class Gang:
    """The shape of an attempt: which slots there are."""

    groups: tuple[SlotGroup, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, group by group."""
        return tuple(Slot(g, i) for g, group in enumerate(self.groups) for i in range(group.count))

    @property
    def size(self) -> int:
        """Number of machines."""
        return sum(group.count for group in self.groups)
