"""What the box can lease now, at what price: configuration and traces against the clock and what is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everstep.model.offers import MachineType, Market, Offer, Pool
from everstep.ports import HistoryPoint, OfferQuery
from everstep.providers.local.config import THIS_COMPUTER, BoxConfig, Supply, Zone
from everstep.providers.local.state import InstanceRecord


@dataclass(frozen=True, slots=True)
class Quote:
    """A pool now: ``available`` None = without limit."""

    machine: MachineType
    price_usd_per_h: float
    on_demand_usd_per_h: float
    available: int | None


class SupplyBook:
    """The supply side of one box. Pure: time and what is held are arguments.

    Args:
        config: what there is.
        provider: name of the provider in pools and offers.
        workstation: this computer, for static zones.
        began_at: when the traces began to play, UTC seconds; None = not yet (they show their beginning).
    """

    def __init__(
        self, config: BoxConfig, *, provider: str, workstation: MachineType | None, began_at: float | None
    ) -> None:
        self.config = config
        self.provider = provider
        self.workstation = workstation
        self.began_at = began_at

    def market_s(self, now: float) -> float:
        """Market seconds since the traces began; 0 while they have not."""
        return 0.0 if self.began_at is None else (now - self.began_at) * self.config.billing.time_scale

    def clock(self, market_s: float) -> float:
        """UTC seconds of a market second; the traces must have begun."""
        assert self.began_at is not None
        return self.began_at + market_s / self.config.billing.time_scale

    def offers(self, query: OfferQuery, held: Iterable[InstanceRecord], now: float) -> list[Offer]:
        """Every pool that is sold, also those that are sold out."""
        held = list(held)
        offers = []
        for zone, market, name in self._pools():
            quote = self.quote(zone.name, market, name, held, now)
            if quote is None or (query.regions and zone.region not in query.regions):
                continue
            if query.machine_types and name not in query.machine_types:
                continue
            offers.append(
                Offer(
                    provider=self.provider,
                    region=zone.region,
                    zone=zone.name,
                    machine=quote.machine,
                    market=market,
                    price_usd_per_h=quote.price_usd_per_h,
                    on_demand_usd_per_h=quote.on_demand_usd_per_h,
                    price_as_of=now,
                    price_source=f"{self.provider} box",
                    billing=self.config.billing,
                    available=quote.available,
                    max_life_s=self.config.max_life_s if market is Market.SPOT else None,
                    notice_s=self.config.notice_s if market is Market.SPOT else 0.0,
                )
            )
        return offers

    def quote(
        self, zone_name: str, market: Market, machine_name: str, held: Iterable[InstanceRecord], now: float
    ) -> Quote | None:
        """Price and availability of a pool; None if the box does not sell it."""
        zone = self.config.zones.get(zone_name)
        supply = zone.supply.get(market) if zone else None
        if zone is None or supply is None:
            return None
        left = self._left(zone, market, supply, held, now)
        if market is Market.STATIC:
            if self.workstation is None or machine_name != self.workstation.name:
                return None
            return Quote(self.workstation, supply.usd_per_h, supply.usd_per_h, left)
        if machine_name not in zone.machines:
            return None
        spec = self.config.machines[machine_name]
        price: float | None = spec.on_demand_usd_per_h
        if market is Market.SPOT:
            price = self._spot_price(supply, spec.spot_usd_per_h, spec.on_demand_usd_per_h, self.market_s(now))
        return None if price is None else Quote(spec.machine, price, spec.on_demand_usd_per_h, left)

    def surplus(self, held: Iterable[InstanceRecord], now: float) -> list[InstanceRecord]:
        """Spot machines that the market takes back now: those beyond what each zone has, in the configured order."""
        taken = []
        machines = sorted(_holding(held, Market.SPOT), key=lambda r: (r.started_at, r.number))
        for zone in self.config.zones.values():
            here = [r for r in machines if r.zone == zone.name]
            supply = zone.supply.get(Market.SPOT)
            room = self._capacity(supply, now) if supply else 0
            if room is not None and len(here) > room:
                taken += here[: len(here) - room] if self.config.preempt_oldest else here[room:]
        return taken

    def next_change(self, held: Iterable[InstanceRecord], now: float) -> float | None:
        """UTC seconds at which a zone where spot machines are held changes next."""
        if self.began_at is None:
            return None
        market_s = self.market_s(now)
        at = []
        for name in {r.zone for r in _holding(held, Market.SPOT)}:
            zone = self.config.zones.get(name)
            supply = zone.supply.get(Market.SPOT) if zone else None
            change = supply.trace.next_change(market_s) if supply and supply.trace else None
            if change is not None:
                at.append(self.clock(change))
        return min(at, default=None)

    def history(self, pools: Iterable[Pool], since: float, now: float) -> list[HistoryPoint]:
        """What each pool had from ``since`` to now: one point at the beginning and one per change, oldest first."""
        points = []
        for pool in pools:
            zone = self.config.zones.get(pool.zone)
            supply = zone.supply.get(pool.market) if zone and pool.provider == self.provider else None
            spec = self.config.machines.get(pool.machine_type)
            if zone is None or supply is None or spec is None or pool.machine_type not in zone.machines:
                continue
            for at, market_s in self._instants(supply, since, now):
                price: float | None = spec.on_demand_usd_per_h
                if pool.market is Market.SPOT:
                    price = self._spot_price(supply, spec.spot_usd_per_h, spec.on_demand_usd_per_h, market_s)
                room = supply.trace.available_at(market_s) if supply.trace else supply.capacity
                points.append(HistoryPoint(pool, at, price, room))
        return sorted(points, key=lambda p: p.at)

    def _instants(self, supply: Supply, since: float, now: float) -> Iterator[tuple[float, float]]:
        if since > now:
            return
        began = now if self.began_at is None else self.began_at
        scale = self.config.billing.time_scale
        # A trace that starts in its middle has a past; nothing is known from before its first tick.
        first = (since - began) * scale
        if supply.trace is not None:
            first = max(first, -supply.trace.offset_s)
        if began + first / scale > now:
            return
        yield began + first / scale, first
        if supply.trace is not None:
            for market_s in supply.trace.changes(first, (now - began) * scale):
                yield began + market_s / scale, market_s

    def _pools(self) -> Iterator[tuple[Zone, Market, str]]:
        for zone in self.config.zones.values():
            for market in zone.supply:
                for name in (THIS_COMPUTER,) if market is Market.STATIC else zone.machines:
                    yield zone, market, name

    def _capacity(self, supply: Supply, now: float) -> int | None:
        return supply.trace.available_at(self.market_s(now)) if supply.trace else supply.capacity

    def _left(
        self, zone: Zone, market: Market, supply: Supply, held: Iterable[InstanceRecord], now: float
    ) -> int | None:
        room = self._capacity(supply, now)
        if room is None:
            return None
        # A workstation is free only when the last one has really gone; a cloud has more where that came from.
        counted = held if market is Market.STATIC else _holding(held, market)
        return max(room - sum(r.zone == zone.name and r.market == market and r.alive for r in counted), 0)

    @staticmethod
    def _spot_price(supply: Supply, listed: float | None, on_demand: float, market_s: float) -> float | None:
        price = listed
        if price is None and supply.trace is not None:
            price = supply.trace.price_at(market_s)
        # As EC2: spot never costs more than on demand.
        return None if price is None else min(price, on_demand)


def _holding(held: Iterable[InstanceRecord], market: Market) -> list[InstanceRecord]:
    return [r for r in held if r.market == market and r.alive and not r.doomed]
