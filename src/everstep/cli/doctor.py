"""``everstep doctor``: is a provider ready? Asks the vendor itself, as configured here; no server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.client.home import default_home
from everstep.model.errors import BadInput, EverstepError, Problem

_COLUMNS = (
    Column("", lambda f: "ok" if f.ok else "MISSING"),
    Column("WHAT", field("what")),
    Column("FOUND", field("found")),
    Column("FIX", field("fix")),
)


@runtime_checkable
class Examined(Protocol):
    """A provider that can look at itself. Findings have ``what``, ``ok``, ``found`` and ``fix``."""

    async def examine(self) -> Sequence[Any]:
        """Looks at credentials, permissions and whatever else is needed; makes nothing."""
        ...


def doctor(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="Name in `config.yaml`, for example aws.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Is a provider ready: credentials, permissions, clock, offers? What is missing, and how to mend it.

    Nothing is leased. Exit code 1 if something is missing.

    Example: `everstep doctor aws`
    """
    from everstep import providers
    from everstep.server.configured import check_keys
    from everstep.server.options import read_config

    file = default_home().config_file
    configured = read_config(file).get("providers") or {}
    factory = providers.load(provider)
    if provider not in configured:
        raise BadInput(Problem(str(file), f"providers.{provider}", "is not configured", f"see docs/{provider}.md"))
    check_keys(factory, configured[provider], str(file), provider)
    patient = factory(**configured[provider])
    if not isinstance(patient, Examined):
        raise EverstepError(f"provider {provider} cannot be examined")
    findings = asyncio.run(patient.examine())
    listing(findings, _COLUMNS, output, empty="nothing was looked at")
    if not all(f.ok for f in findings):
        raise typer.Exit(1)
