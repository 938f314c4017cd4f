"""``everstep logs``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from everstep.cli import failures, link
from everstep.cli.jobs import JobArgument
from everstep.cli.lines import Joiner


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
    with link.connected() as client:
        joiner = Joiner(plain=rank is not None)
        for part in client.logs(job, follow=follow, rank=rank, attempt=attempt, node=node):
            sys.stdout.write(joiner.take(part))
            sys.stdout.flush()
        sys.stdout.write(joiner.rest())
