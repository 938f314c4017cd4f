"""``everstep cloud sweep``: what of ours is in an account, who knows it, and the end of what nobody does."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import wording
from everstep.cli.failures import usage
from everstep.cli.output import Column, Output, OutputOption, field, listing
from everstep.client.home import default_home
from everstep.model.errors import BadInput, EverstepError, Problem, ProviderError

if TYPE_CHECKING:
    from everstep.cli.cloudbooks import Judged
    from everstep.providers.leftovers import Leftover, Sweeper

app = typer.Typer(no_args_is_help=True)

_BARE: Mapping[str, Mapping[str, Any]] = {
    # A provider that is not configured needs this much to be looked at; nothing is leased by it.
    "aws": {"types": ["*"], "regions": ["us-east-1"]},
    "gcp": {"types": ["*"], "regions": ["us-central1"]},
}
_ORDER = {"instance": 0, "volume": 1, "address": 2, "group": 3, "firewall": 4}
"""What uses others ends first."""


@app.callback()
def _cloud() -> None:
    """What of ours is in a cloud account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One thing of ours, as it is listed.

    Attributes:
        standing: ``stray``, ``in the books``, ``its server answers``, ``a server`` or ``nobody to ask``; why: in words.
        outcome: ``ended``, ``kept`` or ``failed``; empty where nothing was to be ended.
        trouble: why ending it failed.
    """

    kind: str
    id: str
    region: str
    zone: str
    what: str
    market: str
    state: str
    since: float | None
    price_usd_per_h: float | None
    cost_usd: float | None
    attached_to: str
    deployment: str
    job: str
    standing: str
    why: str
    outcome: str = ""
    trouble: str = ""


_COLUMNS = (
    Column("KIND", field("kind")),
    Column("ID", field("id")),
    Column("WHERE", lambda r: r.zone or r.region),
    Column("WHAT", lambda r: f"{r.what} {wording.words(r.market)}".strip()),
    Column("STATE", field("state")),
    Column("AGE", lambda r: wording.UNKNOWN if r.since is None else wording.duration(max(time.time() - r.since, 0.0))),
    Column("$/H", lambda r: wording.price(r.price_usd_per_h), right=True),
    Column("COST", lambda r: wording.money(r.cost_usd), right=True),
    Column("DEPLOYMENT", lambda r: r.deployment[:8]),
    Column("JOB", lambda r: r.job or wording.UNKNOWN),
    Column("", lambda r: r.outcome or r.standing),
    Column("WHY", lambda r: r.trouble or r.why),
)


@app.command()
def sweep(
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="aws, gcp, or a name in `config.yaml`.")],
    *,
    region: Annotated[
        list[str] | None, typer.Option("--region", metavar="REGION", help="Only there; may be given several times.")
    ] = None,
    deployment: Annotated[
        str, typer.Option("--deployment", metavar="ID", help="Only of this deployment, which is over.")
    ] = "",
    project: Annotated[str, typer.Option("--project", help="Google Cloud project, if none is configured.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="End the strays.")] = False,
    all: Annotated[
        bool, typer.Option("--all", help="With --yes: end also what servers know, and the servers.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List everything that everstep ever made in this account and that is still there; with --yes, end the strays.

    A stray is what the server of this home does not know, or what belongs to a deployment whose server does not answer
    any more. What a server knows is left alone, and so is what nobody can be asked about, until you name its
    deployment. Nothing without our tags is ever listed or ended. COST is what machines and disks have cost so far, at
    the price of their lease. Needs no server, and looks at every region unless told otherwise.

    Exit code 0: no stray is left; 1: one is, or something could not be looked at; 2: wrong use.

    Example: `everstep cloud sweep aws --region us-east-1 --yes`
    """
    if all and not yes:
        raise usage("everstep cloud sweep", "--all", "goes with --yes", "leave it out to see what there is")
    sweeper = _sweeper(provider, region or [], project)
    rows, unseen = asyncio.run(_swept(sweeper, region or [], deployment=deployment, ends=yes, everything=all))
    listing(rows, _COLUMNS, output, empty="nothing of ours is there", dim=lambda r: r.standing != "stray")
    for line in unseen:
        print(f"not looked at: {' '.join(line.split())}", file=sys.stderr)
    if rows and output is Output.TABLE:
        print(_summary(rows, ended=yes), file=sys.stderr)
    left = [r for r in rows if r.outcome == "failed" or (r.standing in ("stray", "nobody to ask") and not r.outcome)]
    left += [r for r in rows if r.outcome == "kept" and r.standing == "nobody to ask"]
    if left or unseen:
        raise typer.Exit(1)


async def _swept(
    sweeper: Sweeper, regions: Sequence[str], *, deployment: str, ends: bool, everything: bool
) -> tuple[list[SweepRow], tuple[str, ...]]:
    from everstep.cli.cloudbooks import Standing, judged, read_books

    found = await sweeper.look(regions)
    things = [t for t in found.things if deployment in ("", t.deployment)]
    books = await asyncio.to_thread(read_books, default_home(), things)
    verdicts = await judged(sweeper, things, books, deployment)
    verdicts.sort(key=lambda j: (j.thing.deployment, j.thing.job, _ORDER[j.thing.kind], j.thing.zone, j.thing.id))
    if not ends:
        return [_row(j) for j in verdicts], found.unseen
    wanted = [j for j in verdicts if everything or j.standing is Standing.STRAY]
    troubles = await _ended(sweeper, [j.thing for j in wanted])
    rows = []
    for verdict in verdicts:
        thing = verdict.thing
        outcome = "kept" if verdict not in wanted else "failed" if thing.id in troubles else "ended"
        rows.append(_row(verdict, outcome, troubles.get(thing.id, "")))
    return rows, found.unseen


async def _ended(sweeper: Sweeper, things: Sequence[Leftover]) -> dict[str, str]:
    """Ends them, kind after kind. What went wrong, by id."""
    troubles: dict[str, str] = {}

    async def one(thing: Leftover) -> None:
        try:
            await sweeper.end(thing)
        except ProviderError as error:
            troubles[thing.id] = str(error)

    for kind in sorted({t.kind for t in things}, key=_ORDER.__getitem__):
        await asyncio.gather(*(one(t) for t in things if t.kind == kind))
    return troubles


def _sweeper(provider: str, regions: list[str], project: str) -> Sweeper:
    """Of the provider as it is configured; of one that is not, of what the command line says."""
    from everstep import providers
    from everstep.providers.leftovers import Swept
    from everstep.server.configured import check_keys
    from everstep.server.options import read_config

    file = default_home().config_file
    configured = (read_config(file).get("providers") or {}).get(provider)
    factory = providers.load(provider)
    if configured is None:
        if provider not in _BARE:
            raise BadInput(Problem(str(file), f"providers.{provider}", "is not configured"))
        project = project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
        if provider == "gcp" and not project:
            raise usage("everstep cloud sweep", "--project", f"{file} configures no gcp", "name it: --project ID")
        configured = {**_BARE[provider], **({"regions": regions} if regions else {})}
    if project:
        configured = {**configured, "project": project}
    check_keys(factory, configured, str(file), provider)
    made = factory(**configured)
    if not isinstance(made, Swept):
        raise EverstepError(f"provider {provider} leaves nothing behind that could be swept")
    return made.sweeper()


def _row(verdict: Judged, outcome: str = "", trouble: str = "") -> SweepRow:
    thing = verdict.thing
    return SweepRow(
        kind=thing.kind,
        id=thing.id,
        region=thing.region,
        zone=thing.zone,
        what=thing.what,
        market=thing.market,
        state=thing.state,
        since=thing.since,
        price_usd_per_h=thing.price_usd_per_h,
        cost_usd=thing.cost_usd,
        attached_to=thing.attached_to,
        deployment=thing.deployment,
        job=thing.job,
        standing=str(verdict.standing),
        why=verdict.why,
        outcome=outcome,
        trouble=trouble,
    )


def _summary(rows: Sequence[SweepRow], *, ended: bool) -> str:
    """``3 things, $1.23/h; 2 strays, $0.40/h: --yes ends them``."""
    strays = [r for r in rows if r.standing == "stray"]
    if ended:
        done, failed = [r for r in rows if r.outcome == "ended"], [r for r in rows if r.outcome == "failed"]
        kept = len(rows) - len(done) - len(failed)
        text = f"ended {wording.count(len(done), 'thing')} of {_usd(done)}, kept {kept}"
        return text + (f", {len(failed)} could not be ended" if failed else "")
    text = f"{wording.count(len(rows), 'thing')}, {_usd(rows)}; {wording.count(len(strays), 'stray')}"
    return text + (f", {_usd(strays)}: --yes ends {'them' if len(strays) > 1 else 'it'}" if strays else "")


def _usd(rows: Sequence[SweepRow]) -> str:
    return wording.price(sum(r.price_usd_per_h or 0.0 for r in rows)).replace(wording.UNKNOWN, "$0/h")
