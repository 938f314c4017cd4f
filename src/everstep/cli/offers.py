"""``everstep offers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.output import Column, Output, OutputOption, field, listing

if TYPE_CHECKING:
    from everstep.client.results import OfferView


def _accelerator(offer: OfferView) -> str:
    return f"{offer.accelerator}:{offer.accelerator_count}" if offer.accelerator else wording.UNKNOWN


COLUMNS = (
    Column("PROVIDER", field("provider")),
    Column("ZONE", field("zone")),
    Column("TYPE", field("machine_type")),
    Column("ACCELERATOR", _accelerator),
    Column("CPUS", lambda o: f"{o.cpus:g}", right=True),
    Column("GIB", lambda o: f"{o.memory_gib:g}", right=True),
    Column("MARKET", wording.market),
    Column("$/H", lambda o: wording.price(o.price_usd_per_h), right=True),
    Column("ON DEMAND", lambda o: wording.price(o.on_demand_usd_per_h), right=True),
    Column("FREE", lambda o: "?" if o.available is None else str(o.available), right=True),
    Column("AS OF", lambda o: wording.ago(o.as_of)),
)


def offers(
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", "--gpu", help="Only machines with this one.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also what has no capacity now.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what can be leased now, cheapest first.

    Example: `everstep offers --gpu A100`
    """
    with link.connected() as client:
        found = client.offers(accelerator=accelerator, all=all_)
    listing(found, COLUMNS, output, empty="no offers")
