"""``--env`` and ``--secret``: variables on the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from everstep.model.errors import BadInput, Problem

EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="K[=V]", help="Set a variable; without =V, to what it is here. Repeat for more."
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="K[=V]", help="As --env, but the value stays out of journal and logs."),
]


def variables(given: Sequence[str], flag: str, command: str) -> dict[str, str]:
    """The variables of all uses of ``flag``; the last one of a name wins.

    Raises:
        BadInput: a name without a value that is not set here, or no name. No text shows a value.
    """
    found: dict[str, str] = {}
    problems = []
    for text in given:
        name, equals, value = text.partition("=")
        if not name:
            problems.append(Problem(command, flag, "the name is missing", f"write {flag} NAME=VALUE"))
        elif equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
        else:
            problems.append(
                Problem(command, flag, f"{name} is not set here", f"write {flag} {name}=VALUE, or export it")
            )
    if problems:
        raise BadInput(*problems)
    return found
