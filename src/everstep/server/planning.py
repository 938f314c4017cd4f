"""What would be done with a task now; does nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import BadInput, Problem
from everstep.model.job import JobState
from everstep.model.offers import Offer
from everstep.model.task import Task
from everstep.server.reach import Reach
from everstep.server.room import too_small
from everstep.server.texts import said
from everstep.server.unsold import may_fit, unsold
from everstep.server.views import offer_view


class Seller(Protocol):
    """What is known of the market, by the controller."""

    async def offers(self) -> Sequence[Offer]:
        """What can be leased now: every cloud is asked."""
        ...

    @property
    def market(self) -> Sequence[Offer]:
        """What could be leased when the clouds were last asked."""
        ...

    @property
    def silent(self) -> Collection[str]:
        """Providers of which ``market`` does not have all: they did not answer, or not for every region."""
        ...


class Planner(Seller, Protocol):
    """What a plan needs of the controller."""

    async def preview(self, task: Task) -> Mapping[str, Any]:
        """The decision for a job that would come in now."""
        ...

    def live_states(self) -> Sequence[JobState]:
        """Jobs that may have machines."""
        ...


async def planned(task: Task, controller: Planner, reach: Reach) -> dict[str, Any]:
    """A ``PlanView`` as data. Raises BadInput for a task that would be refused."""
    reach.check(task)
    found = dict(await controller.preview(task))
    offers = [to_dict(offer_view(from_dict(Offer, offer))) for offer in found.get("offers", ())]
    choice = {key: offers[0][key] for key in ("provider", "zone", "machine_type", "market")} if offers else {}
    if not offers:
        market = await controller.offers()
        found["wait"] = too_small(task, market, controller.live_states()) or found.get("wait", "")
        found["unsold"] = unsold(task, market, controller.silent)
        if not any(group.machine.fits(offer) for group in task.gang.groups for offer in market):
            silent = {name for group in task.gang.groups for name in may_fit(group.machine, controller.silent)}
            found["wait"] += "".join(f"; {name} does not answer now, and may sell one" for name in sorted(silent))
    reasons = [said(reason) for reason in found.get("reasons", ())]
    plan: dict[str, Any] = to_dict({**found, "reasons": reasons, "offers": offers, "choice": choice})
    return plan


async def check_sold(task: Task, controller: Seller) -> None:
    """Raises BadInput if nothing on sale fits the task, which would wait for ever.

    Clouds are asked only if what they said last does not do: a submission mostly waits for none of them.
    """
    if controller.market and not unsold(task, controller.market, ()):
        return
    text = unsold(task, await controller.offers(), controller.silent)
    if text:
        raise BadInput(Problem("", "resources", text))
