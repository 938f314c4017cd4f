"""``everstep offers``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import link, wording
from everstep.cli.failures import usage
from everstep.cli.output import Column, Output, OutputOption, field, listing

if TYPE_CHECKING:
    from everstep.client.results import OfferView


def _accelerator(offer: OfferView) -> str:
    return f"{offer.accelerator}:{offer.accelerator_count}" if offer.accelerator else wording.UNKNOWN


def _advice(offer: OfferView) -> str:
    """``80 % (2 h ago)``: what the vendor thinks of it; or the quota that keeps it out of reach."""
    if offer.bound:
        return offer.bound
    return wording.UNKNOWN if offer.advice is None else f"{offer.advice:.0%} ({wording.ago(offer.advice_as_of)})"


_WHAT = (
    Column("PROVIDER", field("provider")),
    Column("ZONE", field("zone")),
    Column("TYPE", field("machine_type")),
    Column("ACCELERATOR", _accelerator),
    Column("CPUS", lambda o: f"{o.cpus:g}", right=True),
    Column("GIB", lambda o: f"{o.memory_gib:g}", right=True),
    Column("MARKET", wording.market),
    Column("$/H", lambda o: wording.price(o.price_usd_per_h), right=True),
    Column("ON DEMAND", lambda o: wording.price(o.on_demand_usd_per_h), right=True),
)
COLUMNS = (
    *_WHAT,
    Column("FREE", lambda o: "?" if o.available is None else str(o.available), right=True),
    Column("ADVICE", _advice, sparse=True),
    Column("AS OF", lambda o: wording.ago(o.as_of)),
)


def offers(
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", "--gpu", help="Only machines with this one.")
    ] = None,
    free: Annotated[bool, typer.Option("--free", help="Only what has capacity now.")] = False,
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="FILE|URL", help="From a public price catalog, without a server.")
    ] = None,
    cloud: Annotated[
        str, typer.Option("--cloud", help="Whose catalog it is, if its name does not say.", metavar="NAME")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List what is sold, cheapest first. What is sold out has FREE 0.

    ADVICE is how likely the vendor itself thinks that some can be had, and when it was asked: EC2's spot placement
    score, Compute Engine's obtainability. Where a quota of the account holds not even one, it names that. The column
    is left out where no vendor says anything.

    A catalog says what machines cost, not whether there are any: SkyPilot's CSV, as a file, `file://` or `https://`.

    Example: `everstep offers --gpu A100`
    """
    empty = "no offers" if not accelerator else f"nobody sells a machine with {accelerator}"
    if catalog is not None:
        if free:
            raise usage(
                "everstep offers", "--free", "a catalog does not say what has capacity", "leave one of the two out"
            )
        _listed(catalog, cloud, accelerator or "", output, empty)
        return
    if cloud:
        raise usage("everstep offers", "--cloud", "goes with --catalog", "leave it out")
    with link.connected() as client:
        found = client.offers(accelerator=accelerator, all=not free)
    if free:
        empty = "nothing is free now (everstep offers shows what is sold out)"
    listing(found, COLUMNS, output, empty=empty, dim=lambda offer: offer.available == 0)


def _listed(catalog: str, cloud: str, accelerator: str, output: Output, empty: str) -> None:
    """The offers of a catalog. Which they are, and how old, is said once on the way out."""
    from everstep.cli.marketdata import located
    from everstep.market.catalog import read_catalog
    from everstep.market.freshness import age
    from everstep.server.views import offer_view

    now = time.time()
    found = located(catalog, now)
    offers = read_catalog(found.path, as_of=found.as_of, cloud=cloud, source=found.source)
    fit = [one for one in offers if accelerator.lower() in ("", one.machine.accelerator.lower())]
    fit.sort(key=lambda one: (one.price_usd_per_h, str(one.pool)))
    columns = (*_WHAT, Column("AS OF", lambda o: age(o.as_of, now)))
    listing([offer_view(one) for one in fit], columns, output, empty=empty)
    if output is Output.TABLE and fit:
        print(f"prices: {found.source}, {age(found.as_of, now)}", file=sys.stderr)
