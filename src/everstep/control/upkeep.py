"""What has to be in order before the loop runs, and what is done beside it by the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep.control.clock import SystemClock
from everstep.control.highwater import HighWater
from everstep.control.journal import LEASE_S, Journal
from everstep.model.errors import EverstepError, LeaseHeld, StoreClosed, StoreError, StoreUnusable
from everstep.model.job import JobState
from everstep.ports import Provider


async def take_lease(journal: Journal, clock: SystemClock) -> None:
    """Waits out the lease of a predecessor that was killed; raises LeaseHeld if somebody goes on renewing it."""
    patience = clock.now() + LEASE_S + 2.0
    while True:
        try:
            await journal.lease()
            return
        except LeaseHeld:
            if clock.now() > patience:
                raise
            await clock.sleep(0.1)


def check_providers(states: Iterable[JobState], providers: Mapping[str, Provider]) -> None:
    """Without its provider a machine could be neither followed nor ended, and would go on being billed.

    Raises:
        EverstepError: a job has something at a provider that is not configured; the text names both.
    """
    for state in states:
        held = {str(m.instance or m.token): m.offer.provider for m in state.instances.values() if m.alive}
        held |= {v.name: v.provider for v in state.volumes.values() if v.volume and v.deleted_at is None}
        for name, provider in held.items():
            if provider not in providers:
                raise EverstepError(
                    f"job {state.id} has {name} at provider {provider!r}, which is not configured; start the "
                    f"server with it, or end the job before you take it away (configured: "
                    f"{', '.join(sorted(providers)) or 'none'})"
                )


async def keep_lease(journal: Journal, clock: SystemClock) -> None:
    """Renews the right to write; runs until it is cancelled, or the store is of no use any more."""
    while True:
        await clock.sleep(LEASE_S / 3)
        try:
            await journal.lease()
        except (StoreUnusable, StoreClosed):
            raise
        except (OSError, StoreError) as error:
            journal.trouble = f"the lease cannot be renewed: {error}"


async def mind_the_clock(journal: Journal, clock: SystemClock, high_water: HighWater | None) -> None:
    """A step of the system clock moves no deadline of ours; it is journalled, then we follow it forward."""
    while True:
        await clock.sleep(1.0)
        if high_water is not None:
            high_water.keep(journal.seq)
        stepped_s = clock.stepped_s()
        if abs(stepped_s) > 5.0:
            clock.reanchor()
            await journal.note("ClockStepped", {"seconds": stepped_s})
