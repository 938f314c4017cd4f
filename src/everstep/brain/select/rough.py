"""Rough expected costs, for policies that forecast nothing: price times what is left, as if nothing were ever lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import overload

from everstep.brain.select.course import Alternative, Mode, Place, Situation

BASIS = "price x (work left + changeover of a start) + cost of moving; losses are not forecast"


def remaining_usd(situation: Situation, place: Place, mode: Mode) -> float:
    """What the rest of the job costs on one machine that is never lost; infinite if it is not to be had.

    price x (work left / speed + changeover, if it has to be started) + cost of moving the checkpoint there.
    """
    price = place.spot_usd_per_h if mode is Mode.SPOT else place.on_demand_usd_per_h
    if price is None:
        return math.inf
    standing = situation.standing
    work_s = (situation.work_s - situation.done_s) / place.speed
    if standing.mode is mode and standing.place == place.name:
        return price * (work_s + standing.changeover_left_s) / 3600.0
    return price * (work_s + situation.changeover_s) / 3600.0 + place.move_usd


def cheapest_spot(situation: Situation, avoid: str = "") -> Place | None:
    """The running spot machine's place; else the cheapest place whose spot is up and no dearer than on-demand.

    ``avoid``: a region to be taken only when no other has spot. None if there is none.
    """
    if situation.standing.mode is Mode.SPOT:
        return situation.place(situation.standing.place)
    places = [place for place in situation.places if place.up and affordable(place)]
    if avoid:
        places = [place for place in places if place.region != avoid] or places
    if len(places) < 2:
        return places[0] if places else None
    return min(places, key=lambda place: (remaining_usd(situation, place, Mode.SPOT), place.name))


def affordable(place: Place) -> bool:
    """Spot is sold here, at no more than this place's on-demand price."""
    price, cap = place.spot_usd_per_h, place.on_demand_usd_per_h
    return price is not None and (cap is None or price <= cap)


def cheapest_on_demand(situation: Situation) -> Place | None:
    """The running on-demand machine's place; else the cheapest, cost of moving included; None if there is none."""
    if situation.standing.mode is Mode.ON_DEMAND:
        return situation.place(situation.standing.place)
    places = [place for place in situation.places if place.on_demand_usd_per_h is not None]
    if len(places) < 2:
        return places[0] if places else None
    return min(places, key=lambda place: (remaining_usd(situation, place, Mode.ON_DEMAND), place.name))


def weigh(situation: Situation) -> Sequence[Alternative]:
    """Every action with its rough cost. Idling costs what the cheapest spot costs, should it come back in time."""
    return _Weighed(situation)


class _Weighed(Sequence[Alternative]):
    """Reckoned when somebody looks: of the millions of decisions of a simulation nobody looks at most."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    @cached_property
    def _all(self) -> tuple[Alternative, ...]:
        situation, weighed, hoped = self._situation, list[Alternative](), math.inf
        for place in situation.places:
            spot_usd = remaining_usd(situation, place, Mode.SPOT)
            hoped = min(hoped, spot_usd)
            weighed.append(Alternative(Mode.SPOT, place.name, spot_usd if place.up is not False else math.inf))
            weighed.append(Alternative(Mode.ON_DEMAND, place.name, remaining_usd(situation, place, Mode.ON_DEMAND)))
        return (*weighed, Alternative(Mode.IDLE, None, hoped))

    @overload
    def __getitem__(self, index: int) -> Alternative: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Alternative, ...]: ...

    def __getitem__(self, index: int | slice) -> Alternative | tuple[Alternative, ...]:
        return self._all[index]

    def __len__(self) -> int:
        return 2 * len(self._situation.places) + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)
