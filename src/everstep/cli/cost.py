"""``everstep cost``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.output import Column, Output, OutputOption, document, facts, field, listing, table

if TYPE_CHECKING:
    from everstep.client.results import AccountView

_JOBS = (
    Column("JOB", field("job")),
    Column("NAME", field("name")),
    Column("COST", lambda j: wording.money(j.cost_usd), right=True),
    Column("ON DEMAND", lambda j: wording.money(j.on_demand_cost_usd), right=True),
    Column("SAVED", lambda j: wording.percent(j.saved_fraction), right=True),
)

_UNITS = {"compute": "h", "address": "h", "disk": "GiB h", "storage": "GiB h", "egress": "GB"}

#: What people may take for something else: from the start of the script to its first new step.
_OVERHEADS = {"restore": "start and restore"}

_LINES = (
    Column("KIND", field("kind")),
    Column("RESOURCE", field("resource")),
    Column("ZONE", field("zone")),
    Column("TYPE", field("machine_type")),
    Column("MARKET", wording.market),
    Column("FROM", lambda e: wording.clock(e.start)),
    Column("TO", lambda e: "now" if e.end is None else wording.clock(e.end)),
    Column("QUANTITY", lambda e: f"{e.quantity:.4g} {_UNITS.get(e.kind, '')}".rstrip(), right=True),
    Column("PRICE", lambda e: wording.money(e.price_usd), right=True),
    Column("COST", lambda e: wording.money(e.cost_usd), right=True),
    Column("", lambda e: "reclaimed" if e.reclaimed else ""),
)


def cost(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Job id, the beginning of one, or a name.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the bill of a job line by line, or what each job cost.

    On demand is what the same useful work would have cost there. Machine time adds up over machines, by the clock
    that is billed. Setup is all between a machine that is up and one that is ready: files, `setup`, the ranks' imports.

    Example: `everstep cost j-7k2m`
    """
    with link.connected() as client:
        if job is not None:
            bill = client.cost(job)
            document(bill, output) if output is not Output.TABLE else _account(bill)
            return
        costs = client.costs()
    if output is not Output.TABLE:
        document(costs, output)
        return
    listing(costs.jobs, _JOBS, output, empty="no jobs, no costs")
    if costs.jobs:
        print(f"\ntotal  {wording.money(costs.total_usd)}")


def _saved(bill: AccountView) -> str:
    """Empty where nothing useful was done: there is no other price to hold it against."""
    if not bill.on_demand_cost_usd:
        return ""
    return f"{wording.money(bill.saved_usd)} ({wording.percent(bill.saved_fraction)})"


def _account(bill: AccountView) -> None:
    if bill.lines:
        table(bill.lines, _LINES)
        print()
    spent = [
        f"{_OVERHEADS.get(name, wording.words(name))} {wording.duration(seconds)}"
        for name, seconds in bill.overhead.items()
        if seconds
    ]
    facts(
        [
            ("cost", wording.money(bill.cost_usd)),
            ("on demand", wording.money(bill.on_demand_cost_usd)),
            ("saved", _saved(bill)),
            ("useful", f"{wording.duration(bill.useful_instance_s)} of machine time"),
            ("billed", f"{wording.duration(bill.billed_instance_s)} of machine time"),
            ("overhead", ", ".join(spent)),
            ("lost steps", str(bill.lost_steps)),
        ]
    )
