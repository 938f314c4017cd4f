"""Warnings that were shown: each is shown once in a run, however often it is launched."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

_REGISTRY = "__warningregistry__"
_ONCE = ""
_Shown = tuple[str, str, str, Any]
"""Text, module and name of the category, and the line (None where that does not count)."""


def capture() -> dict[str, list[_Shown]]:
    """By module; those of the filter ``once`` under "". Categories by name."""
    return {name: [shown for key in registry if (shown := _told(key)) is not None] for name, registry in _registries()}


def restore(saved: Mapping[str, list[_Shown]]) -> None:
    """Nothing of that is shown again."""
    version = _version()
    for name, found in saved.items():
        module = sys.modules.get(name)
        if name == _ONCE:
            registry: dict[Any, Any] = warnings.onceregistry  # type: ignore[attr-defined]
        elif module is None:
            continue
        else:
            registry = vars(module).setdefault(_REGISTRY, {})
            registry.clear()
            registry["version"] = version
        for text, package, category, line in found:
            kind = getattr(sys.modules.get(package), category, None)
            if kind is not None:
                registry[(text, kind) if line is None else (text, kind, line)] = True


def _registries() -> Iterator[tuple[str, dict[Any, Any]]]:
    yield _ONCE, warnings.onceregistry  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        registry = getattr(module, "__dict__", {}).get(_REGISTRY)
        if isinstance(registry, dict):
            yield name, registry


def _told(key: Any) -> _Shown | None:
    if type(key) is not tuple or len(key) not in (2, 3) or not isinstance(key[1], type):
        return None
    return str(key[0]), key[1].__module__, key[1].__qualname__, key[2] if len(key) > 2 else None


def _version() -> Any:
    """Of the filters: a registry of another one is emptied. Only a warning tells, which nobody sees."""
    registry: dict[Any, Any] = {}
    usual: Any = warnings._showwarnmsg  # type: ignore[attr-defined]
    warnings._showwarnmsg = lambda _: None  # type: ignore[attr-defined]
    try:
        with contextlib.suppress(Warning):
            warnings.warn_explicit("what version?", Warning, "everstep", 1, registry=registry)
    finally:
        warnings._showwarnmsg = usual  # type: ignore[attr-defined]
    warnings.onceregistry.pop(("what version?", Warning), None)  # type: ignore[attr-defined]
    return registry.get("version", 0)
