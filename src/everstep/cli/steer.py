"""``everstep cancel``, ``pause``, ``unpause`` and ``retry``: what users may ask of their jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, plans
from everstep.cli.variables import SecretOption, variables

if TYPE_CHECKING:
    from everstep.client.api import Client

JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job ids, beginnings of some, or names.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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


def unpause(jobs: JobsArgument, yes: YesOption = False) -> None:
    """Go on with paused jobs from their last checkpoint. What would be leased is shown first, as `everstep run` does.

    Example: `everstep unpause j-7k2m`
    """
    again = _Leasing("everstep unpause", frozenset({"paused"}), yes)
    _for_each(jobs, lambda client, job: client.unpause(job), again)


def retry(jobs: JobsArgument, secret: SecretOption = None, yes: YesOption = False) -> None:
    """Run failed or cancelled jobs again: same id, same checkpoints, fresh failure budgets.

    What would be leased is shown first, as `everstep run` does.

    Example: `everstep retry j-7k2m`
    """
    secrets = variables(secret or [], "--secret", "everstep retry")
    again = _Leasing("everstep retry", frozenset({"failed", "cancelled"}), yes)
    _for_each(jobs, lambda client, job: client.retry(job, secrets=secrets or None), again)


@dataclass(frozen=True, slots=True)
class _Leasing:
    """A verb that leases machines for jobs in one of ``phases``; in others the server says what it thinks of it."""

    command: str
    phases: frozenset[str]
    yes: bool


def _for_each(jobs: list[str], ask: Callable[[Client, str], str], leasing: _Leasing | None = None) -> None:
    with link.connected() as client:
        # All are looked up before anything is asked: a typing error in the last one changes nothing.
        found = [client.status(text) for text in dict.fromkeys(jobs)]
        if leasing is not None:
            holding_none = [detail for detail in found if detail.phase in leasing.phases]
            plans.agree(client, leasing.command, holding_none, "Go on with these?", yes=leasing.yes)
        for detail in found:
            print(f"{detail.job}: {ask(client, detail.job)}")
