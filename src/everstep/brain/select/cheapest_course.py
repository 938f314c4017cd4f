"""``cheapest`` over offers of several clouds: the least money per unit of work, and when it pays to move there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cheapest(value: NDArray[np.float64], now_on: int | None, margin: float = 0.0) -> int | None:
    """Which offer to be on.

    Args:
        value: shape (offers,): USD per unit of work, that is price per hour over the work done in it;
            ``inf`` = not sold, or cannot do the work.
        now_on: the offer that the job is on; None = on none.
        margin: move only to an offer that is cheaper by at least this fraction; 0 = to any that is cheaper.

    Returns:
        Its index; the first of equals, and the present one before any that is not cheaper. None where nothing is sold.
    """
    best = int(np.argmin(value)) if len(value) else None
    if best is None or value[best] == np.inf:
        return None
    if now_on is None or value[now_on] == np.inf:
        return best
    pays = value[best] < value[now_on] and value[best] <= (1.0 - margin) * value[now_on]
    return best if pays else now_on
