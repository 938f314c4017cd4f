"""What ``config.yaml`` says of a provider, held against what the provider takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from everstep.model.errors import BadInput, Problem

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_keys(factory: Callable[..., object], given: Mapping[str, Any], file: str, name: str) -> None:
    """Raises BadInput with one line for each key of ``given`` that ``factory`` does not know, and each that it lacks.

    Args:
        factory: makes the provider from its keys, by name.
        given: the keys, as ``file`` has them below ``providers.NAME``.
        file: where they stand, for the message.
        name: of the provider.
    """
    parameters = inspect.signature(factory).parameters.values()
    known = [p.name for p in parameters if p.kind in _NAMED]
    problems = []
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        for key in given:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                fix = f"did you mean '{close[0]}'?" if close else ""
                problems.append(Problem(file, f"providers.{name}.{key}", "unknown key", fix))
    for p in parameters:
        if p.kind in _NAMED and p.default is p.empty and p.name not in given:
            problems.append(Problem(file, f"providers.{name}", f"{p.name} is missing"))
    if problems:
        raise BadInput(*problems)
