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
    free: Annotated[bool, typer.Option("--free", help="Only what has capacity now.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what is sold, cheapest first. What is sold out has FREE 0.

    Example: `everstep offers --gpu A100`
    """
    with link.connected() as client:
        found = client.offers(accelerator=accelerator, all=not free)
    empty = "no offers" if not accelerator else f"nobody sells a machine with {accelerator}"
    if free:
        empty = "nothing is free now (everstep offers shows what is sold out)"
    listing(found, COLUMNS, output, empty=empty, dim=lambda offer: offer.available == 0)
