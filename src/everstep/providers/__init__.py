"""Sources of machines, by name.

Built-ins are merged with the entry points of group ``everstep.providers``; a name that is claimed twice is an error,
since a silent winner would launch machines somewhere the user did not mean. An entry point names a callable that
returns a ``everstep.ports.Provider``; it is imported only when its provider is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast
from urllib.parse import urlsplit

from everstep.model.addresses import is_loopback
from everstep.model.errors import BadInput, Problem
from everstep.ports import Provider

ENTRY_POINT_GROUP = "everstep.providers"


def leads_here(url: str | None) -> bool:
    """Whether only this computer reaches ``url``: a server there is within reach of ``OnThisHost`` machines alone."""
    return is_loopback(urlsplit(url).hostname or "") if url else False


ProviderFactory = Callable[..., Provider]


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """Where a provider is made.

    Attributes:
        name: what users write, ``local``.
        target: ``module:attribute`` of the factory.
        extra: extra of everstep that must be installed for it; empty for none.
        origin: who brought it, for messages: ``everstep`` or the name of the distribution.
    """

    name: str
    target: str
    extra: str = ""
    origin: str = "everstep"


BUILT_IN: tuple[ProviderEntry, ...] = (
    ProviderEntry("local", "everstep.providers.local:LocalProvider"),
    ProviderEntry("aws", "everstep.providers.aws:AwsProvider", extra="aws"),
    ProviderEntry("gcp", "everstep.providers.gcp:GcpProvider", extra="gcp"),
)


def registered(*, found: Iterable[EntryPoint] | None = None) -> dict[str, ProviderEntry]:
    """Every known provider by name; nothing is imported.

    Args:
        found: entry points to merge with the built-ins; None = those of the installed distributions.

    Raises:
        BadInput: two claim one name.
    """
    entries = {entry.name: entry for entry in BUILT_IN}
    for point in entry_points(group=ENTRY_POINT_GROUP) if found is None else found:
        origin = point.dist.name if point.dist else "an entry point"
        entry = ProviderEntry(point.name, point.value, origin=origin)
        if point.name in entries:
            clash = f"provider {point.name!r} is claimed by {entries[point.name].origin} and by {origin}"
            raise BadInput(Problem(ENTRY_POINT_GROUP, point.name, clash, "uninstall or rename one of them"))
        entries[point.name] = entry
    return entries


def load(name: str, *, found: Iterable[EntryPoint] | None = None) -> ProviderFactory:
    """The factory of one provider.

    Raises:
        BadInput: there is no such provider, or a package it needs is not installed (the line names the extra).
    """
    entries = registered(found=found)
    if name not in entries:
        known = ", ".join(sorted(entries))
        raise BadInput(Problem("provider", "", f"there is no provider {name!r}", f"known: {known}"))
    entry = entries[name]
    module_name, _, attribute = entry.target.partition(":")
    try:
        made: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        # A broken import inside everstep itself is a bug of ours and must not be dressed up as a missing extra.
        if (error.name or "").partition(".")[0] == "everstep":
            raise
        raise BadInput(_missing(entry, error.name or "a package")) from error
    for part in attribute.split("."):
        made = getattr(made, part)
    return cast("ProviderFactory", made)


def _missing(entry: ProviderEntry, package: str) -> Problem:
    wanted = f"everstep[{entry.extra}]" if entry.extra else package
    return Problem("provider", entry.name, f"needs {package}, which is not installed", f"pip install '{wanted}'")
