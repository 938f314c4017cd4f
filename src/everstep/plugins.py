"""What is built in, merged with what installed packages add by entry points: one rule for everything pluggable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from everstep.model.errors import BadInput, EverstepError, Problem

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class PluginClash(EverstepError):
    """Two packages, or a package and everstep itself, claim one name: which of them was meant is not ours to guess."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Something that ships with everstep and is imported on first use.

    Attributes:
        target: ``module:attribute``.
        extra: the extra that brings the packages it needs; empty if the base install has them.
    """

    target: str
    extra: str = ""

    def load(self) -> Any:
        """The object itself. Raises BadInput naming the extra to install when a package of that extra is missing."""
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if not self.extra or (error.name or "").startswith("everstep"):
                raise
            fix = f"install it with: pip install 'everstep[{self.extra}]'"
            raise BadInput(Problem("", "", f"the package {error.name} is missing", fix)) from error


def merge(
    group: str, built_in: Mapping[str, BuiltIn], *, installed: Iterable[EntryPoint] | None = None
) -> dict[str, Callable[[], Any]]:
    """Every name of a group with a loader of what it stands for; nothing is imported yet.

    Args:
        group: the entry-point group, for example ``everstep.stores``.
        built_in: what ships with everstep.
        installed: entry points to merge instead of those of the installed packages.

    Raises:
        PluginClash: one name is claimed twice with different targets.
    """
    from importlib.metadata import entry_points  # 30 ms that most commands need not pay

    owners = {name: ("everstep", entry.target) for name, entry in built_in.items()}
    loaders: dict[str, Callable[[], Any]] = {name: entry.load for name, entry in built_in.items()}
    for point in entry_points(group=group) if installed is None else installed:
        owner = point.dist.name if point.dist is not None else point.value
        first, target = owners.setdefault(point.name, (owner, point.value))
        if target != point.value or point.name in built_in:
            raise PluginClash(f"{group}: '{point.name}' is claimed by both {first} and {owner}; remove one of them")
        loaders[point.name] = point.load
    return loaders
