"""What would be leased and what it costs, shown before anything is: the same for every command that leases."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from everstep.cli import failures, wording
from everstep.cli.output import Column, facts, table
from everstep.model.errors import BadInput

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import JobDetail, PlanView
    from everstep.model.task import Task

#: More offers than that hide the choice; `everstep offers` lists them all.
_OFFERS_SHOWN = 8
#: Columns of a terminal that all there is to say of an offer needs; what is left out in a narrower one is in `offers`.
_WIDE = 100
_LEFT_OUT = ("PROVIDER", "CPUS", "GIB", "AS OF")


def must_be_able_to_ask(command: str, *, yes: bool) -> None:
    """Raises a usage error where nobody could answer."""
    if not (yes or sys.stdin.isatty()):
        raise failures.usage(command, "", "asks before it spends, and there is no terminal to ask on", "add -y")


def ask(question: str, *, yes: bool) -> None:
    """Ends the command unless the user agrees; ``yes``: does not ask."""
    if not yes and not typer.confirm(question, default=True, err=True):
        raise typer.Exit(failures.REFUSED)


def agree(client: Client, command: str, jobs: Sequence[JobDetail], question: str, *, yes: bool) -> None:
    """Shows what would be leased for jobs that hold no machines now, and asks; nothing for no jobs.

    Raises a usage error where nobody could answer, and ends the command unless the user agrees.
    """
    from everstep.model.codec import from_dict
    from everstep.model.task import Task

    if not jobs:
        return
    must_be_able_to_ask(command, yes=yes)
    for detail in jobs:
        task = from_dict(Task, detail.task)
        try:
            show_on_stderr(task, client.plan(task))
        except BadInput as error:
            # What a new job would be refused for, a deadline that is over, is no fault of one that goes on.
            print(f"warning: {detail.job}: no plan: {error.problems[0]}", file=sys.stderr, flush=True)
    ask(question, yes=yes)


def show_on_stderr(task: Task, plan: PlanView, *, warnings: Iterable[str] = (), resumed: str = "") -> None:
    """See ``show``; stdout is left to what the command gives."""
    with contextlib.redirect_stdout(sys.stderr):
        show(task, plan, warnings=warnings, resumed=resumed)


def show(task: Task, plan: PlanView, *, warnings: Iterable[str] = (), resumed: str = "") -> None:
    """Prints the plan of a task.

    Args:
        task: what will run.
        plan: what the server would do now.
        warnings: shown above it, with the plan's own.
        resumed: who saves and resumes, in words.
    """
    from everstep.cli.offers import COLUMNS

    for warning in dict.fromkeys([*warnings, *plan.warnings]):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if plan.offers:
        machines = Counter(plan.offers)
        count = Column("MACHINES", lambda offer: str(machines[offer]), right=True)
        narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE
        shown = [column for column in COLUMNS if not (narrow and column.title in _LEFT_OUT)]
        table(list(machines)[:_OFFERS_SHOWN], (count, *shown))
        if len(machines) > _OFFERS_SHOWN:
            print(f"... and {len(machines) - _OFFERS_SHOWN} more (everstep offers)")
        print()
    nodes = f"{task.gang.size} node{'' if task.gang.size == 1 else 's'}"
    facts(
        [
            ("task", f"{task.name}, {nodes}, spot: {task.spot.value}"),
            ("choice", _choice(plan)),
            ("price", f"{wording.price(plan.hourly_usd)} in all" if plan.hourly_usd else ""),
            ("waits for", plan.wait),
            ("resumed by", resumed),
            *(("because", reason) for reason in plan.reasons[:3]),
        ]
    )


def _choice(plan: PlanView) -> str:
    """``local harbour-a gpu.large spot at $0.92/h``; empty if nothing can be had now."""
    chosen = plan.choice
    named = (str(chosen.get(key) or "") for key in ("provider", "zone", "machine_type", "market"))
    price = chosen.get("price_usd_per_h")
    at = f" at {wording.money(price)}/h" if price is not None else ""
    return " ".join(wording.words(name) if name == chosen.get("market") else name for name in named if name) + at
