"""``everstep logs``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import failures, link
from everstep.cli.jobs import JobArgument
from everstep.cli.lines import Joiner
from everstep.cli.postmortem import no_output

if TYPE_CHECKING:
    from everstep.client.results import JobDetail

_COMMAND = "everstep logs"


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
        raise failures.usage(_COMMAND, "--rank", f"expected a rank number or 'setup', found '{rank}'")
    filtered = rank is not None or attempt is not None or node is not None
    with link.connected() as client:
        if filtered or follow:
            before = client.status(job)
            _check_there_can_be(before, rank, attempt, node, may_come=follow and not before.ended)
            if follow and not before.attempts and not before.ended:
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


def _check_there_can_be(
    detail: JobDetail, rank: str | None, attempt: int | None, node: int | None, *, may_come: bool
) -> None:
    """Raises a usage error for a rank, an attempt or a node that the job does not have.

    ``may_come``: a later attempt is waited for.
    """
    ranks = _ranks(detail)
    if rank is not None and rank.isdigit() and ranks is not None and int(rank) >= ranks:
        raise failures.usage(_COMMAND, "--rank", f"{detail.job} has no rank {rank}", _known("rank", 0, ranks))
    if node is not None and node >= detail.nodes:
        raise failures.usage(_COMMAND, "--node", f"{detail.job} has no node {node}", _known("node", 0, detail.nodes))
    if attempt is not None and detail.attempts and not may_come and attempt not in {a.attempt for a in detail.attempts}:
        last = max(a.attempt for a in detail.attempts)
        first = min(a.attempt for a in detail.attempts)
        raise failures.usage(
            _COMMAND, "--attempt", f"{detail.job} has no attempt {attempt}", _known("attempt", first, last + 1)
        )


def _ranks(detail: JobDetail) -> int | None:
    """How many logs of ranks an attempt has: one per node where `run` starts the ranks itself; None if unknown."""
    groups = detail.task.get("gang", {}).get("groups", ())
    return sum(group["count"] * (group.get("ranks_per_node") or 1) for group in groups) or None


def _known(what: str, first: int, end: int) -> str:
    return f"there is {what} {first}" if end - first == 1 else f"there are {what}s {first} to {end - 1}"


def _say(text: str) -> None:
    # Not among the job's own output.
    print(text, file=sys.stderr, flush=True)
