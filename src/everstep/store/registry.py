"""Stores by the scheme of their URL."""

from __future__ import annotations

from everstep.model.errors import BadInput, Problem
from everstep.plugins import BuiltIn, merge
from everstep.store.archiving import JournalStore

GROUP = "everstep.stores"
"""Entry points of this group are callables ``(url: str) -> JournalStore``, named by the scheme they open."""

BUILT_IN = {
    "memory": BuiltIn("everstep.store.memory:open_url"),
    "sqlite": BuiltIn("everstep.store.sqlite:open_url"),
}


def open_store(url: str) -> JournalStore:
    """The store at ``url``: ``memory://``, ``sqlite:///relative/path``, ``sqlite:////absolute/path``, or a plugin's.

    Raises:
        BadInput: the scheme or the rest of the URL is not understood, or a package is missing.
        StoreUnusable: there is something, but not a journal that we can use.
    """
    scheme, separator, _ = url.partition("://")
    openers = merge(GROUP, BUILT_IN)
    if not separator or scheme not in openers:
        # The URL itself may hold a password: show its scheme alone.
        shown = f"no store is called '{scheme}'" if separator else "a store is named by a URL"
        raise BadInput(Problem("", "store", shown, f"known: {', '.join(f'{name}://' for name in sorted(openers))}"))
    store: JournalStore = openers[scheme]()(url)
    return store
