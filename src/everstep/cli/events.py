"""``everstep events``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.jobs import JobArgument
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.model.codec import to_dict
from everstep.model.events import words_of

if TYPE_CHECKING:
    from everstep.client.results import EventView, JobView

_COLUMNS = (
    Column("AT", lambda e: wording.instant(e.at)),
    Column("#", field("version"), right=True),
    Column("EVENT", lambda e: words_of(e.kind)),
    Column("WHAT", field("text")),
)


def events(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, max=2**63 - 1, help="Only events with a higher number (#, `version`).")
    ] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what happened to a job, oldest first. With -f, one line per event as it happens.

    Example: `everstep events j-7k2m -f`
    """
    with link.connected() as client:
        found = client.events(job, after=after, follow=follow)
        if not follow:
            listing(list(found), _COLUMNS, output, empty="no events")
        else:
            for event in found:
                print(_line(event) if output is Output.TABLE else _document_line(event, output), flush=True)
        if output is Output.TABLE:
            print(_end(client.status(job)), end="")


def _line(event: EventView) -> str:
    return f"{wording.clock(event.at)}  {words_of(event.kind):<22}  {event.text}".rstrip()


def _end(job: JobView) -> str:
    """How the job ended, which follows from its events and is none of them; empty while it runs."""
    if not job.ended:
        return ""
    code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
    why = f": {wording.first_line(job.why)}" if job.why else ""
    verb = f"was {job.phase}" if job.phase == "cancelled" else job.phase
    return f"{wording.clock(job.ended_at)}  the job {verb}{code}{why}\n"


def _document_line(event: EventView, output: Output) -> str:
    # A stream has no end to wait for: JSON lines, or one YAML document per event (JSON is YAML).
    text = json.dumps(to_dict(event), ensure_ascii=False)
    return text if output is Output.JSON else f"--- {text}"
