"""``everstep sim replay``: what another policy would have done with the capacity that a journal saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import failures
from everstep.cli.output import Column, Output, OutputOption, document, facts, field, table
from everstep.cli.registry import nearest

if TYPE_CHECKING:
    from everstep.sim.past.replay import Comparison, Past

_COMMAND = "everstep sim replay"
_COLUMNS = (
    Column("POLICY", field("policy")),
    Column("COST $", lambda c: f"{c.cost_usd:.2f}", right=True),
    Column("MEAN FINISH H", lambda c: "" if c.mean_finish_h is None else f"{c.mean_finish_h:.2f}", right=True),
    Column("UNFINISHED", field("unfinished"), right=True),
    Column("DEADLINES MISSED", field("missed"), right=True),
    Column("LOSSES", field("preemptions"), right=True),
)


def replay(
    journal: Annotated[
        Path, typer.Argument(metavar="JOURNAL", help="A server's journal (SQLite), or JSON lines of `sim world`.")
    ],
    policy: Annotated[list[str], typer.Option("--policy", help="Who decides instead; may be repeated.")],
    *,
    egress: Annotated[
        Path | None, typer.Option("--egress", metavar="FILE.csv", help="Prices of transfer, USD per GB.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what the journal does not tell.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the jobs of a journal again, at the same times, on the capacity that was seen, under another policy.

    The first row is the bill as it was. The second has the recorded policies once more: how far it is from the first
    tells how well the market could be rebuilt.

    Example: `everstep sim replay ~/.everstep/journal.db --policy on_demand`
    """
    from everstep.sim.past import replay as past_of
    from everstep.sim.reference.egress import read_egress
    from everstep.sim.reference.grid import TRANSFER_USD_PER_GB
    from everstep.sim.trials import TransferPrices, selector_names

    known = selector_names()
    for name in policy:
        if name not in known:
            fix = nearest(name, known) or f"known: {', '.join(known)}"
            raise failures.usage(_COMMAND, "--policy", f"there is no policy {name!r}", fix)
    prices = {} if egress is None else read_egress(egress)
    tariff = TransferPrices(prices, TRANSFER_USD_PER_GB)
    past = past_of.read_past(journal)
    if not past.states:
        raise failures.usage(_COMMAND, "JOURNAL", f"{journal} holds no job that succeeded, so none can be replayed")
    rows = [past_of.recorded(past, tariff)]
    rows += [past_of.replay(past, name, tariff, seed=seed) for name in ("", *dict.fromkeys(policy))]
    if output is Output.TABLE:
        table(rows, _COLUMNS)
        print()
        facts([*_facts(past, journal), ("unfinished", next((r.stuck for r in rows if r.stuck), ""))])
    else:
        document(_document(past, journal, rows), output)


def _facts(past: Past, journal: Path) -> list[tuple[str, str]]:
    from everstep.sim.past.sightings import FILLED

    market = past.market
    return [
        ("world", f"{journal}: capacity as its jobs saw it, delays as they measured them"),
        ("jobs", f"{len(past.states)} replayed" + (f", {len(past.left_out)} left out" if past.left_out else "")),
        (
            "pool-hours",
            f"{market.pool_h * past.scale:.1f} of spot, {100 * market.unseen_share:.0f} % observed by nobody",
        ),
        ("filled", FILLED),
        ("left out", ", ".join(market.left_out)),
    ]


def _document(past: Past, journal: Path, rows: list[Comparison]) -> dict[str, Any]:
    from dataclasses import asdict

    from everstep.sim.past.sightings import FILLED

    return {
        "report": "sim replay",
        "mode": "realistic, on capacity as a journal saw it",
        "journal": str(journal),
        "pool_h": past.market.pool_h * past.scale,
        "unseen_h": past.market.unseen_h * past.scale,
        "unseen_share": past.market.unseen_share,
        "filled": FILLED,
        "pools_left_out": list(past.market.left_out),
        "jobs_left_out": dict(past.left_out),
        "policies": [asdict(row) for row in rows],
    }
