"""``everstep ckpt``."""

from __future__ import annotations

from typing import Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.jobs import JobArgument
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.model.units import format_size

app = typer.Typer()

_COLUMNS = (
    Column("STEP", field("step"), right=True),
    Column("ATTEMPT", field("attempt"), right=True),
    Column("SAVED", lambda c: wording.instant(c.at)),
    Column("SIZE", lambda c: format_size(c.bytes) if c.bytes else wording.UNKNOWN, right=True),
    Column("DURABLE", lambda c: "yes" if c.durable else "no"),
    Column("VISIBLE", lambda c: "yes" if c.visible else "no: its attempt was superseded"),
)


@app.command("ls")
def ls(job: JobArgument, output: OutputOption = Output.TABLE) -> None:
    """List the checkpoints of a job.

    One that is not visible was published by an attempt after its successor had begun: nothing ever reads it.

    Example: `everstep ckpt ls j-7k2m`
    """
    with link.connected() as client:
        found = client.checkpoints(job)
    listing(found, _COLUMNS, output, empty="no checkpoint yet")


@app.command("restore")
def restore(
    job: JobArgument,
    step: Annotated[int, typer.Option("--step", min=0, help="Step of the checkpoint to go back to.")],
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of which attempt, if several have the step.")
    ] = None,
) -> None:
    """Go back to an older checkpoint: a new attempt that starts from there. Nothing is deleted.

    Example: `everstep ckpt restore j-7k2m --step 1200`
    """
    with link.connected() as client:
        base = client.restore(job, step, attempt=attempt)
    print(f"{job}: the next attempt starts from {base}")
