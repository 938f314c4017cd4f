"""``everstep logs``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from everstep.cli import failures, link
from everstep.cli.jobs import JobArgument
from everstep.cli.lines import Joiner
from everstep.cli.postmortem import no_output


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[str | None, typer.Option("--rank", help="Only this rank, or `setup`.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt. Default: all.")] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="Only this node.")] = None,
) -> None:
    """Print what the ranks wrote, joined across attempts. Lines of ranks other than 0 say whose they are.

    Example: `everstep logs j-7k2m -f --rank 1`
    """
    if rank is not None and not (rank.isdigit() or rank == "setup" or rank.startswith("exec-")):
        raise failures.usage("everstep logs", "--rank", f"expected a rank number or 'setup', found '{rank}'")
    filtered = rank is not None or attempt is not None or node is not None
    with link.connected() as client:
        if follow:
            before = client.status(job)
            if not before.attempts and not before.ended:
                _say(no_output(before, filtered=filtered))
        joiner = Joiner(plain=rank is not None)
        wrote = False
        for part in client.logs(job, follow=follow, rank=rank, attempt=attempt, node=node):
            wrote = True
            if part.note and attempt is None:
                _say(f"attempt {part.attempt}: {part.note}")
            sys.stdout.write(joiner.take(part))
            sys.stdout.flush()
        sys.stdout.write(joiner.rest())
        if not wrote:
            _say(no_output(client.status(job), filtered=filtered))


def _say(text: str) -> None:
    # Not among the job's own output.
    print(text, file=sys.stderr, flush=True)
