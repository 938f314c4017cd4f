"""Prices of transfer between regions: CSV with ``from_region, to_region, price_usd_per_gb``."""

from __future__ import annotations

from pathlib import Path

from everstep.market.rows import rows

COLUMNS = ("from_region", "to_region", "price_usd_per_gb")


def read_egress(path: Path) -> dict[tuple[str, str], float]:
    """USD per GB from region to region.

    Raises:
        Malformed: the file cannot be read, a column is missing, a price is negative or no number.
    """
    return {
        (row.word("from_region"), row.word("to_region")): row.number("price_usd_per_gb", "USD per GB, 0 or more")
        for row in rows(path, COLUMNS)
    }
