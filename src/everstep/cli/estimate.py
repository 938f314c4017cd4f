"""``everstep estimate``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link
from everstep.cli.failures import usage
from everstep.cli.output import Column, Output, OutputOption, document, field, table, visible
from everstep.model.units import format_duration, format_money, format_price, parse_duration

if TYPE_CHECKING:
    from everstep.client.results import OfferView
    from everstep.model.offers import Offer
    from everstep.model.task import Task
    from everstep.sim.estimate import Ask, Estimate, Pool
    from everstep.sim.futures import OwnForecast, Sight, Ups

_COMMAND = "everstep estimate"
_PATIENCE_S = 9.0


@dataclass(frozen=True, slots=True)
class Row:
    """One policy under one deadline; seconds and USD; None = not within the futures, or no deadline."""

    policy: str
    deadline_s: float | None
    futures: int
    cost_p10_usd: float
    cost_p50_usd: float
    cost_p90_usd: float
    finish_p10_s: float | None
    finish_p50_s: float | None
    finish_p90_s: float | None
    chance: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """What is printed as JSON. ``world`` says whose beliefs the futures are."""

    world: str
    assumed: tuple[str, ...]
    estimates: tuple[Row, ...]


def _later(seconds: float | None) -> str:
    return "later" if seconds is None else format_duration(seconds)


_COLUMNS = (
    Column("POLICY", field("policy")),
    Column("DEADLINE", lambda r: "" if r.deadline_s is None else format_duration(r.deadline_s), right=True),
    Column("COST P10", lambda r: format_money(r.cost_p10_usd), right=True),
    Column("P50", lambda r: format_money(r.cost_p50_usd), right=True),
    Column("P90", lambda r: format_money(r.cost_p90_usd), right=True),
    Column("DONE IN P10", lambda r: _later(r.finish_p10_s), right=True),
    Column("P50", lambda r: _later(r.finish_p50_s), right=True),
    Column("P90", lambda r: _later(r.finish_p90_s), right=True),
    Column("IN TIME", lambda r: "" if r.chance is None else f"{r.chance:.1%}", right=True),
    Column("FUTURES", lambda r: str(r.futures), right=True),
)


def estimate(
    task: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="Its `work` says how much there is to do.")],
    *,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="May be given several times.")] = None,
    deadline: Annotated[
        list[str] | None, typer.Option("--deadline", metavar="DURATION", help="What if it were this? Several times.")
    ] = None,
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="FILE|URL", help="Prices of a catalog, without a server.")
    ] = None,
    cloud: Annotated[str, typer.Option("--cloud", metavar="NAME", help="Whose catalog, if its name is silent.")] = "",
    history: Annotated[
        Path | None, typer.Option("--history", metavar="DIR", help="Availability traces, by zone, to learn from.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="DURATION", help="Of a step, where `work` is in steps.")
    ] = None,
    changeover: Annotated[
        str, typer.Option("--changeover", metavar="DURATION", help="From a launch to the first step.")
    ] = "2m",
    futures: Annotated[int, typer.Option("--futures", min=20, max=100_000, help="How many are drawn.")] = 1000,
    zones: Annotated[int, typer.Option("--zones", min=1, max=50, help="The cheapest so many for spot.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the futures.")] = 0,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the picture.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell what a task will cost, by when, and how surely, for several policies.

    The futures are drawn from our own forecast, zone by zone: they are what the policies believe, not what will be.
    A policy that is slow meets fewer of them.

    Example: `everstep estimate train.yaml --deadline 30h --deadline 48h --html estimate.html`
    """
    from everstep.client.taskfile import load_task
    from everstep.sim import estimate as estimating
    from everstep.sim.reference.rows import check_target

    if html is not None:
        check_target(html)
    loaded = load_task(str(task)).task
    ends = _deadlines(loaded, deadline)
    offers = _offers(loaded, catalog, cloud)
    work_s = _work_s(loaded, step)
    ask, world, notes = _asked(loaded, offers, (work_s, _seconds("--changeover", changeover)), zones, history)
    notes = [f"world: {world.world}", f"work: {format_duration(work_s)} on undisturbed machines", *notes]
    wanted = policy or list(dict.fromkeys(["on_demand", loaded.policy or "greedy", "uniform_progress", "auto"]))
    runs = [(name, end) for end in ends for name in wanted if _fits(name, end, asked=policy is not None)]
    drawn = estimating.draws(ask, world, futures, estimating.horizon_s(ask, ends), seed)
    found = [_run(ask, drawn, name, end) for name, end in runs]
    if html is not None:
        from everstep.cli.estimatepage import page

        html.write_text(page(f"Estimate of {loaded.name}", notes, found), encoding="utf-8")
    rows = [_row(one) for one in found]
    if output is not Output.TABLE:
        document(Told(world.world, tuple(notes), tuple(rows)), output)
        return
    table(rows, _COLUMNS)
    for note in [*notes, *([f"picture: {html}"] if html is not None else [])]:
        print(visible(note))


def _fits(name: str, end: float | None, *, asked: bool) -> bool:
    """Whether the policy can be estimated; one that was not asked for is left out with a line."""
    from everstep.sim.estimate import Unfit, entrant

    try:
        entrant(name, deadline=end is not None)
    except Unfit as error:
        if asked:
            raise usage(_COMMAND, "--policy", str(error)) from None
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True


def _run(ask: Ask, drawn: Sequence[Sequence[Ups]], name: str, end: float | None) -> Estimate:
    from everstep.sim.estimate import estimate as run

    if not sys.stderr.isatty():
        return run(ask, drawn, name, end, patience_s=_PATIENCE_S)
    from rich.console import Console

    with Console(stderr=True).status(f"{name}: 0 futures") as status:
        return run(
            ask, drawn, name, end, patience_s=_PATIENCE_S,
            told=lambda done: status.update(f"{name}: {done} futures") if done % 20 == 0 else None,
        )  # fmt: skip


def _row(one: Estimate) -> Row:
    def told(seconds: float) -> float | None:
        return None if math.isinf(seconds) else seconds

    cost, finish = one.cost_usd, one.finish_s
    return Row(
        one.policy, one.deadline_s, one.futures, cost.p10, cost.p50, cost.p90,
        told(finish.p10), told(finish.p50), told(finish.p90), one.met,
    )  # fmt: skip


# --- The task --------------------------------------------------------------------------------------------------------


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise usage(_COMMAND, option, str(error)) from None
    if seconds < 0 or (seconds == 0 and option != "--changeover"):
        raise usage(_COMMAND, option, f"expected a time above 0, found {text}")
    return seconds


def _deadlines(task: Task, options: list[str] | None) -> list[float | None]:
    if options:
        return [_seconds("--deadline", text) for text in options]
    objective = task.objective
    if objective.deadline_at is not None:
        left_s = objective.deadline_at - time.time()
        if left_s <= 0:
            raise usage(_COMMAND, "objective.deadline", "the deadline of the task is past", "give --deadline")
        return [left_s]
    return [objective.deadline_s]


def _work_s(task: Task, step: str | None) -> float:
    work = task.work
    if work.hours is not None:
        return work.hours * 3600.0
    if work.steps is None:
        raise usage(_COMMAND, "work", "the task does not say how much there is to do", "add work: {hours: H, on: TYPE}")
    if step is None:
        text = f"the task has {work.steps} steps, but nobody knows how long one takes"
        raise usage(_COMMAND, "--step", text, "give --step 0.5s, or work: {hours: H, on: TYPE} in the task")
    return work.steps * _seconds("--step", step)


# --- The market ------------------------------------------------------------------------------------------------------


def _offers(task: Task, catalog: str | None, cloud: str) -> list[Offer]:
    """What fits the task, from a catalog or from the server."""
    if catalog is not None:
        from everstep.cli.marketdata import located
        from everstep.market.catalog import read_catalog

        found = located(catalog, time.time())
        offers = list(read_catalog(found.path, as_of=found.as_of, cloud=cloud, source=found.source))
    elif cloud:
        raise usage(_COMMAND, "--cloud", "goes with --catalog", "leave it out")
    else:
        with link.connected() as client:
            offers = [_offer(view) for view in client.offers(all=True)]
    fit = [offer for offer in offers if task.gang.groups[0].machine.fits(offer)]
    if not fit:
        raise usage(_COMMAND, "resources", "nothing that is offered fits the task")
    return fit


def _offer(view: OfferView) -> Offer:
    from everstep.model.offers import MachineType, Market, Offer

    machine = MachineType(
        view.machine_type, view.accelerator, view.accelerator_count, cpus=view.cpus, memory_gib=view.memory_gib
    )
    return Offer(
        view.provider, view.region, view.zone, machine, Market(view.market), view.price_usd_per_h,
        view.on_demand_usd_per_h, view.as_of, view.source, available=view.available,
    )  # fmt: skip


def _asked(
    task: Task, offers: list[Offer], times_s: tuple[float, float], zones: int, history: Path | None
) -> tuple[Ask, OwnForecast, list[str]]:
    """The job, what its pools may do, and what was assumed, in lines."""
    from everstep.model.offers import Market
    from everstep.sim.estimate import Ask, Pool
    from everstep.sim.futures import OwnForecast, Sight

    spot = sorted((o for o in offers if o.market is Market.SPOT), key=lambda o: (o.price_usd_per_h, str(o.pool)))
    steady = min((o.price_usd_per_h for o in offers if o.market is not Market.SPOT), default=None)
    if not spot:
        raise usage(_COMMAND, "resources", "no spot that fits the task is sold: its cost is price times work")
    spot = spot[:zones]
    nodes = task.gang.size
    dear = steady if steady is not None else min(o.on_demand_usd_per_h for o in spot)
    pools = tuple(
        Pool(str(o.pool), f"{o.provider}/{o.region}", float(o.price_usd_per_h * nodes), float(dear * nodes))
        for o in spot
    )
    learnt = _learnt(history, nodes) if history is not None else {}
    sights = [learnt.get(o.zone) or Sight(up=o.available is None or o.available >= nodes) for o in spot]
    notes = [_priced(pool, nodes) for pool in pools]
    known = [o.zone for o in spot if o.zone in learnt]
    notes.append(f"hazards: {_known_from(known, spot, history)}")
    others = sorted({o.machine.name for o in spot} - {task.work.on})
    if task.work.on and others:
        notes.append(f"{', '.join(others)}: taken to be as fast as {task.work.on}, which the hours of work are for")
    if len(spot) > 1:
        notes.append("zones are drawn independently; in fact they go down together now and then")
    return Ask(times_s[0], times_s[1], pools), OwnForecast(sights), notes


def _known_from(known: list[str], spot: list[Offer], history: Path | None) -> str:
    """What the hazards rest on; a history that tells of none of the zones is not passed over without a word."""
    if not known:
        zones = ", ".join(dict.fromkeys(o.zone for o in spot))
        return "the built-in prior" + (f" ({history} tells nothing of {zones})" if history is not None else "")
    return f"seen in {', '.join(known)}" + ("" if len(known) == len(spot) else ", the built-in prior elsewhere")


def _priced(pool: Pool, nodes: int) -> str:
    machines = "" if nodes == 1 else f" for {nodes} machines"
    spot, steady = format_price(pool.spot_usd_per_h), format_price(pool.on_demand_usd_per_h)
    return f"{pool.name}: {spot}{machines}, on-demand {steady}"


def _learnt(history: Path, nodes: int) -> dict[str, Sight]:
    from everstep.market.availability import read_folder
    from everstep.sim.estimate import sighted

    return {series.zone: sighted(series.up(nodes), series.gap_s) for series in read_folder(history)}
