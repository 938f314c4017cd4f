"""What ``auto`` believes of the places: how often spot is there, how long it lasts, what falling back on it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everstep.brain.forecast.availability import BUILT_IN, Observed, Prior, Rates, pooled_rates
from everstep.brain.forecast.piecewise import Piecewise
from everstep.brain.select.course import Place, Situation, View
from everstep.brain.select.rough import affordable

FIRST_AGE_S = 3 * 3600.0
"""How long a run has lasted that is met under way: about the median by the built-in hazards."""
_LONG_H = 2000.0


def usable(place: Place) -> bool | None:
    """Spot is up and no dearer than on-demand; None = not observed."""
    return place.up if place.up is None else place.up and affordable(place)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen until the latest look.

    Attributes:
        at_s: when that was.
        places: in the order of the situation; None = never observed.
        any_place: spot was up in one place at least.
    """

    at_s: float
    places: tuple[Observed | None, ...]
    any_place: Observed

    @classmethod
    def each(cls, views: Iterable[View]) -> Iterator[Seen]:
        """What had been seen at each change of the past, oldest first."""
        seen: Seen | None = None
        ups: list[bool | None] = []
        for view in views:
            now = [usable(place) for place in view.places]
            if now != ups:
                ups = now
                seen = cls._begun(view.now_s, ups) if seen is None else seen._at(view.now_s, ups)
                yield seen

    @classmethod
    def first(cls, situation: Situation) -> Seen:
        """At the first look, if nothing was seen before."""
        return cls._begun(situation.now_s, [usable(place) for place in situation.places])

    @classmethod
    def nothing(cls, situation: Situation, at_s: float) -> Seen:
        """Of a market that nobody has looked at until then."""
        up = any(usable(place) is not False for place in situation.places)
        return cls(at_s, (None,) * len(situation.places), _begun(at_s, up))

    def after(self, situation: Situation) -> Seen:
        """With what this situation shows."""
        return self._at(situation.now_s, [usable(place) for place in situation.places])

    def lived(self, at_s: float) -> Seen:
        """If nothing changed until then."""
        return self._at(at_s, [None if one is None else one.up for one in self.places])

    @classmethod
    def _begun(cls, now_s: float, ups: list[bool | None]) -> Seen:
        places = tuple([None if up is None else _begun(now_s, up) for up in ups])
        return cls(now_s, places, _begun(now_s, any(ups)))

    def _at(self, now_s: float, ups: list[bool | None]) -> Seen:
        places = tuple([self._updated(held, now_s, up) for held, up in zip(self.places, ups, strict=True)])
        if len(places) == 1 and places[0] is not None:
            return Seen(now_s, places, places[0])
        return Seen(now_s, places, self.any_place.watched(now_s, any(ups)))

    def _updated(self, held: Observed | None, now_s: float, up: bool | None) -> Observed | None:
        if up is None:
            return held
        if held is None:
            return _begun(now_s, up)
        return held.watched(now_s, up) if held.at_s >= self.at_s else held.probed(now_s, up)


def _begun(at_s: float, up: bool) -> Observed:
    return Observed.begin(at_s, up, age_s=FIRST_AGE_S)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is expected of the market as a whole, kept from one solution of the programme to the next.

    Attributes:
        rates: hazards of each place's spot.
        together: hazards of "one place at least is up".
        spot_usd_per_h: mean price of the cheapest spot that is up.
        drop_per_h: how often a machine is lost there.
        leave_usd: of each place, the mean cost of transfer after a loss there; nothing where its region has spot.
        transfer_usd: the mean of that.
    """

    rates: tuple[Rates, ...]
    together: Rates
    spot_usd_per_h: float
    drop_per_h: float
    leave_usd: tuple[float, ...]
    transfer_usd: float


def prospect(situation: Situation, seen: Seen) -> Prospect | None:
    """None if no spot is sold at all. Prices count per unit of work."""
    places = situation.places
    rates = _rates(places, seen)
    sold = [n for n, place in enumerate(places) if affordable(place)]
    if not sold:
        return None
    price = [(place.spot_usd_per_h or 0.0) / place.speed for place in places]
    if len(sold) == 1:
        return Prospect(rates, rates[sold[0]], price[sold[0]], 0.0, (0.0,) * len(places), 0.0)
    lives = [(one.loss.mean_residual_h(0.0, _LONG_H), one.back.mean_residual_h(0.0, _LONG_H)) for one in rates]
    leave_usd = _leaving(places, sold, lives)
    none, usd, drops, transfer_usd = 1.0, 0.0, 0.0, 0.0
    for n in sorted(sold, key=lambda n: (price[n], n)):
        up_h, down_h = lives[n]
        part = none * up_h / (up_h + down_h)
        usd += part * price[n]
        drops += part / up_h
        transfer_usd += part * leave_usd[n]
        none *= down_h / (up_h + down_h)
    some = max(1.0 - none, 1e-9)
    together = seen.any_place.rates(Prior(rates=last_of(len(sold))))
    return Prospect(rates, together, usd / some, drops / some, leave_usd, transfer_usd / some)


def last_of(places: int) -> Rates:
    """Hazards of "one at least is up" before anything was seen: a last one is lost the less often, the more there are.

    Zones fail together, so independence would promise far too much; what is seen decides.
    """
    loss = Piecewise(BUILT_IN.loss.from_h, tuple([rate / places for rate in BUILT_IN.loss.per_h]))
    return Rates(loss=loss, back=BUILT_IN.back)


def _leaving(places: tuple[Place, ...], sold: list[int], lives: list[tuple[float, float]]) -> tuple[float, ...]:
    """Mean cost of transfer after a loss in each place: the other places of its region are tried first."""
    found = []
    for n, place in enumerate(places):
        down = 1.0
        for other in sold:
            if other != n and places[other].region == place.region:
                up_h, down_h = lives[other]
                down *= down_h / (up_h + down_h)
        found.append(down * place.leave_usd)
    return tuple(found)


def _rates(places: tuple[Place, ...], seen: Seen) -> tuple[Rates, ...]:
    """Of each place; where there are several, what its region has seen is where its estimate starts."""
    if len(places) == 1:
        return tuple(BUILT_IN if one is None else one.rates() for one in seen.places)
    regions: dict[str, list[Observed]] = {}
    for place, one in zip(places, seen.places, strict=True):
        if one is not None:
            regions.setdefault(place.region, []).append(one)
    priors = {region: Prior(rates=pooled_rates(pools)) for region, pools in regions.items()}
    return tuple(
        BUILT_IN if one is None else one.rates(priors[place.region])
        for place, one in zip(places, seen.places, strict=True)
    )
