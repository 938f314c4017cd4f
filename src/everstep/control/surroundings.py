"""What is around the loop: the market and the providers' lists, looked at again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from everstep.control.kernel import Kernel
from everstep.control.pending import Pending
from everstep.control.telemetry import Telemetry
from everstep.control.watch import Known, Watch
from everstep.model.errors import NotFound, ProviderError
from everstep.model.events import InstanceHeard
from everstep.model.ids import DeploymentId, InstanceId, VolumeId
from everstep.model.offers import Offer
from everstep.ports import AnswersInPart, Clock, OfferQuery, Provider, ProviderResource, ResourceKind, SharedFolder

GLANCE_S = 0.25
"""Between two glances at who is silent."""
GATHER_S = 0.05
"""Several suspicions at once are one look."""
_SUSPICIOUS_S = 1.25
"""A machine that is silent for so long makes us ask the provider at once; heartbeats come every second."""
_ASK_FOR_S = 5.0
"""How long a silence makes us ask: later it is a matter for the limit of silence."""


class Pace(Protocol):
    """How often to look, seconds (see ``controller.Options``)."""

    @property
    def poll_s(self) -> float:
        """Between two looks at a provider's list."""
        ...

    @property
    def offers_s(self) -> float:
        """Between two looks at the market."""
        ...


class Surroundings:
    """Follows every provider and the market; puts what it sees into the controller's inbox.

    Attributes:
        silent: providers that did not tell all they sell when they were last asked, or were not asked yet.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        deployment: DeploymentId,
        kernel: Kernel,
        known: Known,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        """Args: providers: by name; kernel: whose market is kept fresh; known: the controller."""
        self._providers = providers
        self._kernel = kernel
        self._known = known
        self._pending = Pending(known.put)
        self._clock = clock
        self._telemetry = telemetry
        self._poll_now = {name: asyncio.Event() for name in providers}
        self.silent: frozenset[str] = frozenset(providers)
        self.watches = [
            Watch(p, deployment=deployment, known=known, clock=clock, telemetry=telemetry) for p in providers.values()
        ]

    def works(self, pace: Pace) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the loop."""
        return [self._follow_market(pace), self._suspect(), *(self._follow(w, pace) for w in self.watches)]

    def poll_soon(self) -> None:
        """Something is suspicious: look at the providers' lists at once."""
        for event in self._poll_now.values():
            event.set()

    async def look(self) -> None:
        """Looks at everything once."""
        await self.look_at_market()
        for watch in self.watches:
            await watch.poll()

    async def look_at_market(self) -> None:
        """Refreshes offers and shared folders; trouble with a provider is shown and survived."""
        found: list[Offer] = []
        answered: list[str] = []
        in_part: list[str] = []
        for provider in self._providers.values():
            try:
                found.extend(await provider.offers(OfferQuery()))
                answered.append(provider.name)
                if isinstance(provider, AnswersInPart) and provider.unanswered:
                    in_part.append(provider.name)
            except Exception as error:
                # Also what no provider should raise: it must not take the jobs of all others down with it.
                text = str(error) if isinstance(error, ProviderError) else f"unexpected {error!r}"
                self._known.trouble(provider.name, text)
                # What was offered a moment ago is a better guess than nothing at all.
                found.extend(o for o in self._kernel.market.offers if o.provider == provider.name)
        for offer in found:
            source = self._providers[offer.provider]
            folder = source.shared_folder(offer.zone) if isinstance(source, SharedFolder) else None
            if folder:
                self._kernel.market.shared_folders[offer.zone] = folder
        self.silent = frozenset(self._providers) - frozenset(answered) | frozenset(in_part)
        moved = self._kernel.market.set_offers(found)
        self._kernel.looked(answered, self._clock.now())
        if moved:
            self._known.market_moved()

    def unknown(self) -> list[ProviderResource]:
        """What is there under our deployment and in no journal of ours."""
        return [r for watch in self.watches for r in watch.unknown]

    async def end_unknown(self, ids: Sequence[str]) -> None:
        """Ends some of it. Raises NotFound for an id that is not on the list, before anything is ended."""
        listed = {r.id: (w.provider, r) for w in self.watches for r in w.unknown}
        for wanted in ids:
            if wanted not in listed:
                raise NotFound(f"{wanted} is not among the unknown resources")
        for wanted in ids:
            provider, resource = listed[wanted]
            if resource.kind is ResourceKind.INSTANCE:
                await provider.terminate((InstanceId(wanted),))
            elif resource.kind is ResourceKind.VOLUME:
                await provider.delete_volume(VolumeId(wanted))
        self.poll_soon()

    # --- By the clock -----------------------------------------------------------------------------------------------

    async def _follow(self, watch: Watch, pace: Pace) -> None:
        poll_s = float(getattr(watch.provider, "poll_s", pace.poll_s))
        now = self._poll_now[watch.provider.name]
        while True:
            await watch.poll()
            try:
                async with asyncio.timeout(poll_s):  # `wait_for` may lose a cancellation, see `Inbox.take`
                    await now.wait()
            except TimeoutError:
                continue
            await self._clock.sleep(GATHER_S)
            now.clear()

    async def _follow_market(self, pace: Pace) -> None:
        while True:
            await self._clock.sleep(pace.offers_s)
            await self.look_at_market()

    async def _suspect(self) -> None:
        while True:
            await self._clock.sleep(GLANCE_S)
            self.glance()

    def glance(self) -> None:
        """Who is suspiciously silent, and who is back?"""
        now = self._clock.now()
        silences = [now - seen.last_heard for seen in self._telemetry.observed.values()]
        if any(_SUSPICIOUS_S < s < _SUSPICIOUS_S + _ASK_FOR_S for s in silences):
            self.poll_soon()
        self._welcome_back(now)
        if self._telemetry.end_grace(now):
            self._known.look_again()

    def _welcome_back(self, now: float) -> None:
        for state in self._known.live_states():
            for m in state.instances.values():
                if not (m.silent and m.alive) or m.instance is None:
                    continue
                seen = self._telemetry.observed.get(m.instance)
                if seen is not None and not seen.restarted and now - seen.last_heard < _SUSPICIOUS_S:
                    self._pending.tell(state.id, InstanceHeard(m.instance), m.instance)
