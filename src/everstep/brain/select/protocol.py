"""The seam that policies fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, runtime_checkable

from everstep.brain.pools import PoolBook, PoolRecord
from everstep.model.errors import NoCapacity
from everstep.model.events import Candidate
from everstep.model.gang import Slot
from everstep.model.ids import JobId
from everstep.model.offers import MachineRequirement, Market, Offer, Pool
from everstep.model.task import OnNoCapacity, SpotMode

_IMPATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where the job stands that the machine is for, as far as known.

    Attributes:
        began_at: when the job came in, UTC seconds.
        deadline_at: UTC seconds; None = it has none.
        work_s, done_s: the whole job and what is done of it, seconds of the clock of undisturbed training;
            None = nobody knows the work.
        changeover_s: from a launch to the first step, seconds of the clock.
        machines: size of the gang.
        begun: pools whose spot machines the slot had, oldest first.
        lost: the pool of the slot's latest machine, if it was spot and was taken back.
        saved_in: the offer of the machine that published the newest checkpoint.
        saved_gb: size of that checkpoint, GB.
    """

    began_at: float
    deadline_at: float | None
    work_s: float | None
    done_s: float
    changeover_s: float
    machines: int = 1
    begun: tuple[Pool, ...] = ()
    lost: Pool | None = None
    saved_in: Offer | None = None
    saved_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Need:
    """One machine that a job lacks.

    Attributes:
        slot: the place to fill.
        machine: what it must have.
        spot: whether spot may be used.
        max_price_usd_per_h: cap for spot; None = each offer's own on-demand price.
        on_no_capacity: the task's wish for droughts, None = by ``spot``.
        cooldown_s: how long a pool that failed is avoided.
        must_on_demand: the deadline's safety net has spoken.
        zones, regions: where the machine must lie because of the rest of the gang or of its disk; empty = anywhere.
        outlook: where the job stands; None = not told.
    """

    job: JobId
    slot: Slot
    machine: MachineRequirement
    spot: SpotMode
    max_price_usd_per_h: float | None = None
    on_no_capacity: OnNoCapacity | None = None
    cooldown_s: float = 1800.0
    must_on_demand: bool = False
    zones: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    outlook: Outlook | None = None

    @property
    def on_demand_allowed(self) -> bool:
        """On-demand may be used now."""
        if self.must_on_demand or self.on_no_capacity is OnNoCapacity.ON_DEMAND:
            return True
        return self.spot is not SpotMode.TRUE and self.on_no_capacity is not OnNoCapacity.WAIT

    @property
    def spot_allowed(self) -> bool:
        """Spot may be used now."""
        return self.spot is not SpotMode.FALSE and not self.must_on_demand


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chose.

    Attributes:
        offer: what to lease, None = wait.
        candidates: everything that was weighed, with verdicts: feeds ``everstep why``.
        reason: one line.
        retry_at: when waiting makes sense to end, UTC seconds; None = when offers change.
    """

    offer: Offer | None
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""
    retry_at: float | None = None


class Selector(Protocol):
    """A policy: pure, registered by name."""

    def choose(
        self,
        need: Need,
        offers: Sequence[Offer],
        *,
        beliefs: PoolBook,
        inflight: Mapping[Pool, int],
        now: float,
        rng: Random,
    ) -> Choice:
        """Chooses an offer for one missing machine.

        Args:
            need: the machine.
            offers: everything on the market that fits the machine's requirement.
            beliefs: what we remember of the pools.
            inflight: launches that the provider has not answered yet, by pool.
            now: UTC seconds.
            rng: the only source of chance; its seed is in the journal.
        """
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """A machine that works in a slot.

    Attributes:
        offer: what was leased. since: UTC seconds since when it works there.
    """

    offer: Offer
    since: float


@runtime_checkable
class Mover(Selector, Protocol):
    """A selector that also says when a machine that works should be left for another one."""

    def reconsider(
        self,
        need: Need,
        held: Held,
        offers: Sequence[Offer],
        *,
        beliefs: PoolBook,
        inflight: Mapping[Pool, int],
        now: float,
    ) -> Choice:
        """Where the slot should go on; called whenever the market moves, and at ``retry_at``.

        Returns:
            A choice whose ``offer`` is where to move; None = stay.
        """
        ...


@dataclass(slots=True)
class Weighing:
    """Collects verdicts on offers while a policy looks at them; shared by the built-in policies."""

    need: Need
    beliefs: PoolBook
    inflight: Mapping[Pool, int]
    now: float
    verdicts: dict[str, Candidate] = field(default_factory=dict)
    cooling_until: list[float] = field(default_factory=list)

    def spot(self, offers: Iterable[Offer]) -> list[Offer]:
        """Spot offers that may be taken now; pools that failed lately are left out."""
        return [o for o in offers if o.market is Market.SPOT and self._usable(o)]

    def steady(self, offers: Iterable[Offer]) -> list[Offer]:
        """On-demand, reserved and static offers that may be taken now."""
        return [o for o in offers if o.market is not Market.SPOT and self._usable(o)]

    def rested(self, offers: Iterable[Offer]) -> Offer | None:
        """When nothing else is left: the spot pool that has rested longest, if a tenth of the cool-down is over.

        So a job in a small market is not starved by our caution, and no pool is hammered either.
        """
        rest_s = self.need.cooldown_s / _IMPATIENCE
        cooling = [o for o in offers if o.market is Market.SPOT and not self._objection(o, patient=False)]
        self.cooling_until = [max(self.beliefs.cooling_until(o.pool, rest_s), self.now) for o in cooling]
        ready = [o for o in cooling if self.beliefs.cooling_until(o.pool, rest_s) <= self.now]
        return min(ready, key=lambda o: (self.beliefs.record(o.pool).failed_at or 0.0, *by_price(o)), default=None)

    def choose(self, offer: Offer, reason: str) -> Choice:
        """The choice of ``offer``."""
        self.note(offer, "chosen")
        return Choice(offer, tuple(self.verdicts.values()), reason)

    def wait(self, reason: str) -> Choice:
        """The choice to wait, until the first pool has cooled down."""
        return Choice(None, tuple(self.verdicts.values()), reason, min(self.cooling_until, default=None))

    def note(self, offer: Offer, verdict: str) -> None:
        """Records what was thought of an offer."""
        self.verdicts[str(offer.pool)] = Candidate(
            what=str(offer.pool), price_usd_per_h=offer.price_usd_per_h, score=offer.price_usd_per_h, verdict=verdict
        )

    def _usable(self, offer: Offer) -> bool:
        verdict = self._objection(offer, patient=True)
        self.note(offer, verdict or "possible")
        return not verdict

    def _objection(self, offer: Offer, *, patient: bool) -> str:
        need = self.need
        if offer.market is Market.SPOT:
            if not need.spot_allowed:
                return "spot is not allowed now"
            # Never above on-demand, whatever the task says (rule 9).
            bound = offer.on_demand_usd_per_h
            cap = bound if need.max_price_usd_per_h is None else min(bound, need.max_price_usd_per_h)
            if offer.price_usd_per_h > cap + 1e-9:
                return f"price above the maximum of ${cap:g}/h"
        elif not need.on_demand_allowed and (offer.market is Market.ON_DEMAND or need.spot is SpotMode.TRUE):
            return f"{offer.market.value} is not allowed now"
        if need.zones and offer.zone not in need.zones:
            return f"not in zone {'/'.join(sorted(need.zones))}, where the disk or the rest of the gang is"
        if need.regions and offer.region not in need.regions:
            return f"not in region {'/'.join(sorted(need.regions))}, where the rest of the gang is"
        if offer.available is not None and offer.available - self.inflight.get(offer.pool, 0) <= 0:
            return offer.bound or "no capacity"
        record = self.beliefs.record(offer.pool)
        until = self.beliefs.cooling_until(offer.pool, need.cooldown_s if offer.market is Market.SPOT else 10.0)
        if patient and until > self.now and not _contradicted(record, offer):
            self.cooling_until.append(until)
            return f"cooling down after {record.failure} for {until - self.now:.0f} s more"
        return ""


def _contradicted(record: PoolRecord, offer: Offer) -> bool:
    """The pool was dry when we asked, and the vendor has counted free machines since: newer word than our own."""
    dry = record.failure == NoCapacity.kind and record.failed_at is not None
    return dry and bool(offer.available) and offer.price_as_of > (record.failed_at or 0.0)


def by_price(offer: Offer) -> tuple[float, str]:
    """Sort key: price, then name, so that ties are broken the same way everywhere."""
    return offer.price_usd_per_h, str(offer.pool)
