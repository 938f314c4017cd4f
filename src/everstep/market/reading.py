"""Prices from any file that has some: the format is told by what is in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from everstep.market import aws_history, catalog, change_log, gcp_monthly, list_prices, three_clouds
from everstep.market.availability import Series, read_series
from everstep.market.documents import read_document
from everstep.market.faults import Malformed
from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.rows import header
from everstep.market.source import Found
from everstep.model.offers import Market, Offer

_KNOWN = (
    "AWS spot price history (JSON), an availability trace with prices (JSON), a SkyPilot catalog, a change log, "
    "GCP's monthly prices, prices of three clouds, or list prices (CSV)"
)


def read_prices(found: Found) -> tuple[PriceSeries, ...]:
    """Every price of a file, named by the source that the user gave.

    Raises:
        Malformed: it is malformed, or of no known format.
    """
    path = found.path
    if path.name.endswith(".json"):
        series = _document(found)
    else:
        names = set(header(path))
        read = next((read for columns, read in _TABLES if columns <= names), None)
        if read is None:
            raise Malformed(path, "", "is of no known format of prices", line=1, fix=f"expected {_KNOWN}")
        series = read(found)
    return tuple(replace(one, source=found.source) for one in series)


def _document(found: Found) -> tuple[PriceSeries, ...]:
    document, _ = read_document(found.path)
    if aws_history.KEY in document:
        return aws_history.read_aws_history(found.path)
    if "metadata" in document:
        return (_of_trace(read_series(found.path)),)
    raise Malformed(found.path, "", "is of no known format of prices", fix=f"expected {_KNOWN}")


def _of_trace(series: Series) -> PriceSeries:
    """Spot prices of an availability trace: rows at which the price changes, and the last tick."""
    if series.prices is None or series.start is None:
        raise Malformed(series.file, "prices", "this trace has no prices, or no time at which it starts")
    rows = np.union1d(np.flatnonzero(np.diff(series.prices, prepend=math.nan) != 0), [series.ticks - 1])
    prices = series.prices[rows]
    listed = math.nan if series.on_demand_usd_per_h is None else series.on_demand_usd_per_h
    place = Place(series.cloud, series.region, series.zone, series.machine_type, series.accelerator)
    at = np.asarray(series.start + series.gap_s * rows, dtype=np.float64)
    return PriceSeries(place, series.file, at, prices, np.full(len(rows), listed))


def _of_catalog(found: Found) -> tuple[PriceSeries, ...]:
    gathered = Gathering(found.source)
    prices: dict[Place, dict[Market, float]] = {}
    for offer in catalog.read_catalog(found.path, as_of=found.as_of, source=found.source):
        prices.setdefault(_place(offer), {})[offer.market] = offer.price_usd_per_h
    for place, by_market in prices.items():
        spot, listed = (by_market.get(market, math.nan) for market in (Market.SPOT, Market.ON_DEMAND))
        gathered.add(place, found.as_of, spot, listed)
    return gathered.series()


def _place(offer: Offer) -> Place:
    machine = offer.machine
    where = (offer.provider, offer.region, offer.zone, machine.name)
    return Place(*where, machine.accelerator, machine.accelerator_count)


_Reader = Callable[[Found], tuple[PriceSeries, ...]]
_TABLES: tuple[tuple[frozenset[str], _Reader], ...] = (
    (frozenset(catalog.COLUMNS), _of_catalog),
    (frozenset(change_log.COLUMNS), lambda found: change_log.read_change_log(found.path)),
    (frozenset(gcp_monthly.COLUMNS), lambda found: gcp_monthly.read_gcp_monthly(found.path)),
    (frozenset(three_clouds.COLUMNS), lambda found: three_clouds.read_three_clouds(found.path)),
    (frozenset(list_prices.COLUMNS), lambda found: list_prices.read_list_prices(found.path, as_of=found.as_of)),
)
"""Columns that tell a format, and its reader; what has more columns comes first."""
