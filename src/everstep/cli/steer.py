"""``everstep cancel``, ``pause``, ``unpause`` and ``retry``: what users may ask of their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link
from everstep.cli.variables import SecretOption, variables

if TYPE_CHECKING:
    from everstep.client.api import Client

JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job ids, beginnings of some, or names.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for those who read the events later.")]


def cancel(jobs: JobsArgument, reason: ReasonOption = "") -> None:
    """End jobs and give their machines back. Checkpoints and outputs are kept.

    A job that has failed, and whose machines are kept to look at, stays failed: only the machines go.

    Example: `everstep cancel j-7k2m --reason "wrong learning rate"`
    """
    _for_each(jobs, lambda client, job: client.cancel(job, reason=reason))


def pause(jobs: JobsArgument, reason: ReasonOption = "") -> None:
    """Save, give the machines back, keep the checkpoints.

    Example: `everstep pause j-7k2m`
    """
    _for_each(jobs, lambda client, job: client.pause(job, reason=reason))


def unpause(jobs: JobsArgument) -> None:
    """Go on with paused jobs from their last checkpoint.

    Example: `everstep unpause j-7k2m`
    """
    _for_each(jobs, lambda client, job: client.unpause(job))


def retry(jobs: JobsArgument, secret: SecretOption = None) -> None:
    """Run failed or cancelled jobs again: same id, same checkpoints, fresh failure budgets.

    Example: `everstep retry j-7k2m`
    """
    secrets = variables(secret or [], "--secret", "everstep retry")
    _for_each(jobs, lambda client, job: client.retry(job, secrets=secrets or None))


def _for_each(jobs: list[str], ask: Callable[[Client, str], str]) -> None:
    with link.connected() as client:
        # All are looked up before anything is asked: a typing error in the last one changes nothing.
        for job in [client.status(text).job for text in dict.fromkeys(jobs)]:
            print(f"{job}: {ask(client, job)}")
