"""``everstep jobs`` and ``everstep status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.output import Column, Output, OutputOption, document, facts, field, listing, table
from everstep.cli.postmortem import last_words

if TYPE_CHECKING:
    from everstep.client.results import JobDetail

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job id, the beginning of one, or a name.")]
"""The job that a command is about."""

_TAIL_LINES = 20

COLUMNS = (
    Column("JOB", field("job")),
    Column("NAME", field("name")),
    Column("PHASE", field("phase")),
    Column("STEP", wording.progress, right=True),
    Column("NODES", wording.machines, right=True),
    Column("MARKET", wording.market),
    Column("$/H", lambda job: wording.price(job.price_usd_per_h), right=True),
    Column("COST", lambda job: wording.money(job.cost_usd), right=True),
    Column("RECOVERIES", field("recoveries"), right=True),
    Column("SUBMITTED", lambda job: wording.ago(job.submitted_at)),
    Column("WAITS FOR", lambda job: job.wait or job.alarm),
)

_ATTEMPTS = (
    Column("ATTEMPT", field("attempt"), right=True),
    Column("BEGUN", lambda a: wording.clock(a.begun_at)),
    Column("LASTED", lambda a: "still on" if a.ended_at is None else wording.duration(a.ended_at - a.begun_at)),
    Column("FROM", lambda a: a.base or "start"),
    Column("STEP", wording.progress, right=True),
    Column("ENDED BY", lambda a: "" if a.ended_at is None else wording.words(a.cause)),
    Column("EVIDENCE", field("evidence")),
)

_MACHINES = (
    Column("MACHINE", lambda m: m.instance or m.token[:10]),
    Column("SLOT", field("slot")),
    Column("ZONE", field("zone")),
    Column("TYPE", field("machine_type")),
    Column("MARKET", wording.market),
    Column("PHASE", field("phase")),
    Column("$/H", lambda m: wording.price(m.price_usd_per_h), right=True),
    Column("NOTICE", field("notice")),
    Column("ENDED BY", lambda m: wording.words(m.end) or wording.first_line(m.failure)),
)


def jobs(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that ended.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many, newest first.")
    ] = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs, newest first.

    Example: `everstep jobs --all -o json`
    """
    with link.connected() as client:
        found = client.jobs(all=all_, limit=limit)
    hint = "no jobs" if all_ else "no live jobs (everstep jobs --all lists those that ended)"
    listing(found, COLUMNS, output, empty=hint)


def status(job: JobArgument, output: OutputOption = Output.TABLE) -> None:
    """Show one job: attempts, machines, checkpoints, what it waits for.

    Example: `everstep status j-7k2m`
    """
    with link.connected() as client:
        detail = client.status(job)
    if output is not Output.TABLE:
        document(detail, output)
        return
    _summary(detail)
    if detail.attempts:
        print("\nattempts")
        table(detail.attempts, _ATTEMPTS, indent=2)
    if detail.machines:
        print("\nmachines")
        table(detail.machines, _MACHINES, indent=2)
    there = [save for save in detail.saves if save.restorable]
    if there:
        last = there[-1]
        safe = "durable" if last.durable else "not durable: lost with its machine"
        print(f"\nlast checkpoint: step {last.step}, {wording.ago(last.at)}, {safe}")
    audits = [attempt.audit for attempt in detail.attempts if attempt.audit]
    if audits:
        print(f"\n{audits[-1]}")
    words = last_words(detail)
    if words is not None:
        print(f"\nlast lines of {words.whose}:")
        for line in words.text.splitlines()[-_TAIL_LINES:]:
            print(f"  {line}")
        print(f"all of it: {words.more}")


def _cost(detail: JobDetail) -> str:
    cost = wording.money(detail.cost_usd)
    if detail.ended_at is not None and not detail.price_usd_per_h:
        return cost
    return f"{cost} so far, {wording.price(detail.price_usd_per_h)} now"


def _survived(detail: JobDetail) -> str:
    recoveries = f"{detail.recoveries} recover{'y' if detail.recoveries == 1 else 'ies'}"
    return f"{wording.count(detail.preemptions, 'preemption')}, {recoveries}"


def _summary(detail: JobDetail) -> None:
    facts(
        [
            ("job", f"{detail.job}  {detail.name}"),
            ("phase", f"{detail.phase} since {wording.instant(detail.since)}"),
            ("why", wording.first_line(detail.why)),
            ("waits for", detail.wait),
            ("alarm", detail.alarm),
            ("step", wording.progress(detail)),
            ("metrics", "  ".join(f"{name} {value:.4g}" for name, value in detail.metrics.items())),
            *(("warning", text) for text in detail.warnings),
            ("cost", _cost(detail)),
            ("survived", _survived(detail)),
            ("exit code", "" if detail.exit_code is None else str(detail.exit_code)),
            ("kept until", "" if detail.keep_until is None else wording.instant(detail.keep_until)),
            ("owner", f"{detail.user} / {detail.project}"),
        ]
    )
