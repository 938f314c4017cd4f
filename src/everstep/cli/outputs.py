"""``everstep outputs``: files that came home before their machine or disk went."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.jobs import JobArgument
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.model.errors import EverstepError
from everstep.model.units import format_size

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import OutputFile

_COLUMNS = (
    Column("FILE", field("path")),
    Column("SIZE", lambda f: format_size(f.bytes), right=True),
)


def outputs(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Copy them into this folder.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the files that a job brought home (`outputs` in the task), or copy them here.

    Example: `everstep outputs j-7k2m --to results`
    """
    columns: tuple[Column, ...] = _COLUMNS
    with link.connected() as client:
        found = client.outputs(job)
        if to is not None and found:
            _fetch(client, job, found, to)
            columns = (*_COLUMNS, Column("COPIED TO", lambda file: str(to / file.path)))
            total = format_size(sum(file.bytes for file in found))
            # On stdout is the listing, which programs read.
            print(f"copied {wording.count(len(found), 'file')}, {total}, to {to.resolve()}", file=sys.stderr)
    listing(found, columns, output, empty="nothing came home yet")


def _fetch(client: Client, job: str, files: Sequence[OutputFile], to: Path) -> None:
    for file in files:
        target = to / file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            client.fetch_output(job, file.path, target)
        except OSError as error:
            raise EverstepError(f"{target} cannot be written: {(error.strerror or str(error)).lower()}") from None
