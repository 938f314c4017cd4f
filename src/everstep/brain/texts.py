"""What decisions say to people."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.model.effects import DeleteVolume, Effect, EnsureVolume, Launch, Note, SendOrders, Terminate
from everstep.model.offers import Offer


def nothing_fits(offers: Sequence[Offer]) -> str:
    """Why a job waits for which nothing is offered."""
    # No counts: a text that changes with every look at the market would be a decision each time.
    providers = ", ".join(sorted({o.provider for o in offers}))
    # It is read behind "waits for": not as the end of "waits for nothing".
    return f"a machine that fits the task: {providers} offers none" if providers else "no provider offers anything"


def line_of(effect: Effect) -> str:
    """An effect in one line."""
    match effect:
        case Launch(event=e):
            return f"launch {e.offer.pool} for slot {e.slot} at ${e.offer.price_usd_per_h:.4f}/h"
        case Terminate(event=e):
            return f"end {e.instance}"
        case EnsureVolume(event=e):
            return f"make disk {e.name} in {e.zone}"
        case DeleteVolume(event=e):
            return f"delete disk {e.volume}"
        case Note(event=e):
            return type(e).__name__
        case SendOrders(instance=i):
            return f"orders to {i}"
