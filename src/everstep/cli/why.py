"""``everstep why``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.jobs import JobArgument
from everstep.cli.output import Column, Output, OutputOption, document, field, table

if TYPE_CHECKING:
    from everstep.client.results import DecisionView

_CANDIDATES = (
    Column("CANDIDATE", field("what")),
    Column("$/H", lambda c: wording.price(c.price_usd_per_h), right=True),
    Column("SCORE", lambda c: wording.UNKNOWN if c.score is None else f"{c.score:.4g}", right=True),
    Column("VERDICT", field("verdict")),
)


def why(
    job: JobArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many decisions, the newest ones.")
    ] = 10,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every decision, its alternatives and what they would have cost.

    The score is the expected cost of an hour of useful work: lower is better.

    Example: `everstep why j-7k2m -n 3`
    """
    with link.connected() as client:
        decisions = client.why(job, limit=limit)
    if output is not Output.TABLE:
        document(decisions, output)
        return
    if not decisions:
        print("no decision yet")
    # Oldest first, as a story is told; the newest is next to the prompt.
    for number, decision in enumerate(reversed(decisions)):
        if number:
            print()
        _show(decision)


def _show(decision: DecisionView) -> None:
    print(f"{wording.instant(decision.at)}  {'; '.join(decision.effects) or 'nothing to do'}")
    for reason in decision.reasons:
        print(f"  because {reason}")
    if decision.candidates:
        table(decision.candidates, _CANDIDATES, indent=2)
    if decision.wait:
        print(f"  waits for {decision.wait}")
    if decision.inputs:
        print("  looked at " + ", ".join(f"{name}={value}" for name, value in decision.inputs.items()))
