"""What Compute Engine itself thinks of its pools: ``advice.capacity`` of compute v1.

Its ``obtainability`` is "the likelihood of successfully obtaining (provisioning) the requested number of VMs", 0 to 1,
of spot machines in one zone (the discovery document of compute v1, which google-api-python-client ships). One question
is one call, so few pools are asked about, those with accelerators first, six hours apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.model.errors import BadRequest, ProviderError
from everstep.model.offers import MachineType
from everstep.providers.gcp.accelerators import parted, vendors_name
from everstep.providers.gcp.calls import Calls

GOOD_FOR_S = 6 * 3600.0
_POOLS = 20
_MACHINES = 4
"""A gang of the usual size."""


class Advice:
    """Obtainability by zone and machine type; kept, and asked for anew when it is old."""

    def __init__(self, calls: Calls, *, now: Callable[[], float]) -> None:
        """Args: now: UTC seconds."""
        self._calls = calls
        self._now = now
        self._asked_at = float("-inf")
        self._known: dict[tuple[str, str], float] = {}

    def of(self, zone: str, machine_type: str) -> tuple[float, float] | None:
        """Obtainability, and when it was asked for, UTC seconds; None if the vendor does not say."""
        known = self._known.get((zone, machine_type))
        return None if known is None else (known, self._asked_at)

    async def refresh(self, machines: Mapping[str, Sequence[MachineType]]) -> str:
        """Asks where that is due. Returns why there is no answer, empty if there is one; never raises for it.

        Args:
            machines: by zone.
        """
        if self._now() - self._asked_at < GOOD_FOR_S:
            return ""
        self._asked_at, self._known = self._now(), {}
        pools = [(zone, m) for zone, here in machines.items() for m in here]
        pools.sort(key=lambda pool: (not pool[1].accelerator, pool[0], pool[1].name))
        answers = await asyncio.gather(*(self._ask(z, m) for z, m in pools[:_POOLS]), return_exceptions=True)
        trouble = ""
        for (zone, machine), answer in zip(pools, answers, strict=False):
            if isinstance(answer, BadRequest):
                continue  # of this pool it says nothing, accelerators that are attached and new types among them
            if isinstance(answer, ProviderError):
                trouble = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                self._known[zone, machine.name] = answer
        return trouble

    async def _ask(self, zone: str, machine: MachineType) -> float | None:
        kind, attached = parted(machine.name)
        selection: dict[str, Any] = {"machineTypes": [kind]}
        if attached is not None:
            one = {"acceleratorType": vendors_name(attached[0]), "acceleratorCount": attached[1]}
            selection["guestAccelerators"] = [one]
        body = {
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
            "instanceFlexibilityPolicy": {"instanceSelections": {"wanted": selection}},
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "size": _MACHINES,
        }
        region = zone.rpartition("-")[0]
        answer = await self._calls.call("advice", "capacity", ("capacity_advice_request_resource", body), region=region)
        scores = [r.get("scores", {}).get("obtainability") for r in answer.get("recommendations", [])]
        return float(scores[0]) if scores and scores[0] is not None else None
