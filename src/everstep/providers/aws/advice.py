"""What EC2 itself thinks of its zones: the spot placement score.

``GetSpotPlacementScores`` scores zones from 1 to 10 for a target of some machine types; "if you specify one or two
instance types ... the returned placement score will always be low", so it is asked for three or more that have the same
accelerator, and for fewer not at all (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/
API_GetSpotPlacementScores.html). How often an account may ask for something new in a day is bounded, so the same few
questions are asked again and again, six hours apart (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
spot-placement-score.html#sps-limitations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from everstep.model.errors import ProviderError
from everstep.model.offers import MachineType
from everstep.providers.aws.calls import Calls

GOOD_FOR_S = 6 * 3600.0
_TYPES = 3
_QUESTIONS = 5
_REGIONS = 10
"""So many regions a question may name."""
_TARGET = 4
"""Machines: a gang of the usual size. Of one, every zone is sure."""
_BEST = 10.0


class Scores:
    """Scores by zone and machine type; kept, and asked for anew when they are old."""

    def __init__(self, calls: Calls, regions: Sequence[str], *, now: Callable[[], float]) -> None:
        """Args: now: UTC seconds."""
        self._calls = calls
        self._regions = tuple(regions)[:_REGIONS]
        self._now = now
        self._zones: dict[str, str] = {}
        self._asked_at = float("-inf")
        self._known: dict[tuple[str, str], float] = {}

    def of(self, zone: str, machine_type: str) -> tuple[float, float] | None:
        """Score, 0.1 to 1, and when it was asked for, UTC seconds; None if there is none."""
        score = self._known.get((zone, machine_type))
        return None if score is None else (score, self._asked_at)

    async def refresh(self, machines: Iterable[MachineType]) -> str:
        """Asks where that is due. Returns why there is no answer, empty if there is one; never raises for it."""
        if self._now() - self._asked_at < GOOD_FOR_S:
            return ""
        self._asked_at = self._now()
        by_accelerator: dict[str, set[str]] = {}
        for machine in machines:
            by_accelerator.setdefault(machine.accelerator, set()).add(machine.name)
        asked = [sorted(types) for types in by_accelerator.values() if len(types) >= _TYPES]
        known: dict[tuple[str, str], float] = {}
        try:
            for types in sorted(asked)[:_QUESTIONS]:
                for zone, score in await self._scores(types):
                    known |= {(zone, machine_type): score for machine_type in types}
        except ProviderError as error:
            self._known = {}
            return str(error)
        self._known = known
        return ""

    async def _scores(self, types: list[str]) -> list[tuple[str, float]]:
        rows = await self._calls.pages(
            self._regions[0],
            "get_spot_placement_scores",
            "SpotPlacementScores",
            InstanceTypes=types,
            TargetCapacity=_TARGET,
            TargetCapacityUnitType="units",
            SingleAvailabilityZone=True,
            RegionNames=list(self._regions),
        )
        found = []
        for row in rows:
            zone = await self._zone(row["Region"], row.get("AvailabilityZoneId", ""))
            if zone:
                found.append((zone, row["Score"] / _BEST))
        return found

    async def _zone(self, region: str, zone_id: str) -> str:
        """The account's name of a zone: ids are the same for everybody, names are not."""
        if zone_id not in self._zones:
            answer = await self._calls.ec2(region, "describe_availability_zones")
            self._zones |= {z["ZoneId"]: z["ZoneName"] for z in answer["AvailabilityZones"]}
        return self._zones.get(zone_id, "")
