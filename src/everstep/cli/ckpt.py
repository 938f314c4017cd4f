"""``everstep ckpt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, plans, wording
from everstep.cli.jobs import JobArgument
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.model.units import format_size

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import CheckpointView, JobDetail

app = typer.Typer()
_RESTORE = "everstep ckpt restore"


def _restorable(checkpoint: CheckpointView) -> str:
    if not checkpoint.visible:
        return "no: its attempt was superseded"
    return "yes" if checkpoint.kept else f"deleted (keep {checkpoint.keep})"


_COLUMNS = (
    Column("STEP", field("step"), right=True),
    Column("ATTEMPT", field("attempt"), right=True),
    Column("SAVED", lambda c: wording.instant(c.at)),
    Column("SIZE", lambda c: format_size(c.bytes) if c.bytes else wording.UNKNOWN, right=True),
    Column("DURABLE", lambda c: "yes" if c.durable else "no"),
    Column("RESTORABLE", _restorable),
)


@app.command("ls")
def ls(job: JobArgument, output: OutputOption = Output.TABLE) -> None:
    """List the checkpoints of a job.

    Only the newest few are kept, and the one that the running attempt began from (`checkpoint.keep` in the task).
    One of a superseded attempt was published after its successor had begun: nothing ever reads it.

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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Go back to an older checkpoint: a new attempt that starts from there.

    The running attempt is stopped at once, without a save: what it did since its last one is given up. What was saved
    behind the step is not read any more, and goes with the next saves. If the checkpoint turns out to be gone (a save
    came in between, a disk was lost), the job goes on from the newest that is left, and its events say so. A job that
    has ended or is paused holds no machines: what would be leased for it is shown first, as `everstep run` does.

    Example: `everstep ckpt restore j-7k2m --step 1200`
    """
    with link.connected() as client:
        detail = client.status(job)
        if detail.ended or detail.phase == "paused":
            _ask_first(client, detail, step, attempt, yes=yes)
        base = client.restore(job, step, attempt=attempt)
    print(f"{job}: the next attempt starts from {base}")


def _ask_first(client: Client, detail: JobDetail, step: int, attempt: int | None, *, yes: bool) -> None:
    """Shows what will be leased, and asks; a checkpoint that cannot be gone back to is left to the server to refuse."""

    def wanted(one: CheckpointView) -> bool:
        return one.step == step and attempt in (None, one.attempt) and one.restorable

    if any(map(wanted, client.checkpoints(detail.job))):
        plans.agree(client, _RESTORE, [detail], f"Go on from step {step} with these?", yes=yes)
