"""Watching a provider: its list is the truth about what lives and what ended.

The sweep adopts what the journal knows, tells of what ended, ends again what should be gone, and lists (never ends)
what it does not know: a database restored from an hour ago must not end live machines (rule 1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

from everstep.control.faults import reach
from everstep.control.pending import Handed, Pending
from everstep.control.telemetry import Telemetry
from everstep.model.causes import InstanceEnd
from everstep.model.errors import ProviderError
from everstep.model.events import Event, InstanceEnded, LaunchSucceeded, NoticeReceived, VolumeDeleted, VolumeReady
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import InstancePhase, InstanceState, JobState
from everstep.ports import Clock, Provider, ProviderResource, ResourceKind

_MISSING_S = 60.0
"""A machine that the provider does not list counts as gone after so long: new ones take a while to be visible."""
_AGAIN_S = 10.0


class Known(Protocol):
    """What the watch needs of the controller."""

    def put(self, job: JobId, event: Event) -> Handed:
        """Hands a fact over."""
        ...

    def state(self, job: JobId) -> JobState | None:
        """The job as it is now, ended ones included."""
        ...

    def live_states(self) -> Sequence[JobState]:
        """Jobs that may have machines."""
        ...

    def terminate(self, job: JobId, instance: InstanceId) -> None:
        """Ends a machine that should be gone (its intent is in the journal)."""
        ...

    def delete_volume(self, job: JobId, volume: VolumeId) -> None:
        """Deletes a disk that should be gone (its intent is in the journal)."""
        ...

    def look_again(self) -> None:
        """What is known of machines changed without an event: every job is looked at again."""
        ...

    def market_moved(self) -> None:
        """The offers changed: jobs that wait for capacity are looked at again."""
        ...

    def trouble(self, provider: str, text: str) -> None:
        """Shows that the provider makes trouble; an empty text takes it back."""
        ...


class Watch:
    """Watches one provider.

    Attributes:
        unknown: what is there under our deployment and in no journal of ours.
    """

    def __init__(
        self, provider: Provider, *, deployment: DeploymentId, known: Known, clock: Clock, telemetry: Telemetry
    ) -> None:
        """Args: provider: the one to watch; known: the controller."""
        self.provider = provider
        self.unknown: list[ProviderResource] = []
        self._deployment = deployment
        self._known = known
        self._clock = clock
        self._telemetry = telemetry
        self._missing_since: dict[InstanceId, float] = {}
        self._ended_again_at: dict[InstanceId, float] = {}
        self._deleted_again_at: dict[VolumeId, float] = {}
        self._pending = Pending(known.put)
        self._lock = asyncio.Lock()
        self.polled_at = 0.0

    async def poll(self) -> None:
        """One sweep. Trouble with the provider is shown and survived."""
        async with self._lock:
            # States are read before the provider is asked: what was launched in between is not taken for missing.
            before = self._expected()
            try:
                resources = await self.provider.resources(self._deployment)
                notices = await self.provider.notices(self._deployment)
            except ProviderError as error:
                self._known.trouble(self.provider.name, str(error))
                return
            except Exception as error:
                # A provider that breaks its contract must not take the jobs of all others down with it.
                self._known.trouble(self.provider.name, f"unexpected {error!r}")
                return
            self._known.trouble(self.provider.name, "")
            self.polled_at = self._clock.now()
        reach("sweep.before")
        self._compare(resources, before)
        for notice in notices:
            self._note_notice(
                notice.instance, NoticeReceived(notice.instance, notice.kind, notice.deadline, "provider")
            )
        reach("sweep.after")

    def _expected(self) -> dict[InstanceId, tuple[JobId, InstanceState]]:
        return {
            m.instance: (s.id, m)
            for s in self._known.live_states()
            for m in s.instances.values()
            if m.instance is not None and m.alive and m.offer.provider == self.provider.name
        }

    def _compare(
        self, resources: Sequence[ProviderResource], expected: dict[InstanceId, tuple[JobId, InstanceState]]
    ) -> None:
        self.unknown = []
        listed = set()
        live = {state.id for state in self._known.live_states()}
        for resource in resources:
            if resource.kind is ResourceKind.INSTANCE:
                listed.add(InstanceId(resource.id))
                # Providers list what ended for a while. Of a job that is put away nothing lives, so there is nothing
                # to tell; to look at it would mean to unpack it, in each sweep.
                if resource.alive or resource.job in live:
                    self._instance(resource)
            elif resource.kind is ResourceKind.VOLUME:
                self._volume(resource)
        now = self._clock.now()
        for instance, (job, machine) in expected.items():
            if instance in listed:
                self._missing_since.pop(instance, None)
            elif now - self._missing_since.setdefault(instance, now) > _MISSING_S:
                seen = self._telemetry.observed.get(instance)
                at = machine.leave_at or (seen.last_heard if seen is not None else now)
                self._ended(job, instance, min(at, now), InstanceEnd.OWNER if machine.leave_at else InstanceEnd.LOST)
        # Nothing is remembered of machines that nobody waits for any more, or that are not there.
        self._missing_since = {i: at for i, at in self._missing_since.items() if i in expected}
        self._ended_again_at = {i: at for i, at in self._ended_again_at.items() if i in listed}
        disks = {r.id for r in resources if r.kind is ResourceKind.VOLUME and r.alive}
        self._deleted_again_at = {v: at for v, at in self._deleted_again_at.items() if v in disks}

    def _instance(self, r: ProviderResource) -> None:
        state = None if r.job is None else self._known.state(r.job)
        machine = None if state is None else _machine_of(state, r)
        if state is None or machine is None:
            if r.alive:
                self.unknown.append(r)
            return
        instance = InstanceId(r.id)
        if machine.phase in (InstancePhase.LAUNCHING, InstancePhase.REFUSED):
            # A launch whose answer was lost: the machine is ours, with the price the provider says. So is one that has
            # ended since, unless it never ran: then the refusal was the truth, and costs nothing.
            if machine.phase is InstancePhase.LAUNCHING or r.end is not InstanceEnd.BOOT_FAILED:
                price = r.price_usd_per_h or machine.offer.price_usd_per_h
                event = LaunchSucceeded(machine.token, instance, r.started_at, price)
                self._pending.tell(state.id, event, instance)
            return
        if not r.alive and machine.alive:
            ended_at = r.ended_at if r.ended_at is not None else self._clock.now()
            self._ended(state.id, instance, ended_at, _end_of(r, machine))
        elif r.alive and machine.phase in (InstancePhase.LEAVING, InstancePhase.ENDED):
            self._end_again(state.id, machine, instance)

    def _end_again(self, job: JobId, machine: InstanceState, instance: InstanceId) -> None:
        now = self._clock.now()
        if now - self._ended_again_at.get(instance, machine.leave_at or 0.0) > _AGAIN_S:
            self._ended_again_at[instance] = now
            self._known.terminate(job, instance)

    def _ended(self, job: JobId, instance: InstanceId, at: float, end: InstanceEnd) -> None:
        seen = self._telemetry.observed.get(instance)
        state = self._known.state(job)
        mine = seen is not None and state is not None and seen.attempt == state.attempt_no
        step, step_at = (seen.step, seen.step_at) if seen is not None and mine else (None, None)
        self._pending.tell(job, InstanceEnded(instance, at, end, step, step_at), instance)
        self._telemetry.forget(instance)
        self._missing_since.pop(instance, None)

    def _volume(self, r: ProviderResource) -> None:
        state = None if r.job is None else self._known.state(r.job)
        volumes = [] if state is None else [v for v in state.volumes.values() if v.zone == r.zone]
        mine = next((v for v in volumes if v.volume == r.id), None)
        if state is not None and mine is None:
            # Made, but the answer was lost: the one disk of that zone that has no id yet.
            unanswered = [v for v in volumes if v.volume is None]
            if r.alive and len(unanswered) == 1:
                price = r.price_usd_per_h / r.size_gib if r.size_gib else 0.0
                event = VolumeReady(unanswered[0].slot, VolumeId(r.id), r.started_at, price, unanswered[0].name)
                self._pending.tell(state.id, event, r.id)
                return
        if mine is None:
            if r.alive:
                self.unknown.append(r)
        elif not r.alive and mine.deleted_at is None and state is not None:
            ended_at = r.ended_at if r.ended_at is not None else self._clock.now()
            self._pending.tell(state.id, VolumeDeleted(VolumeId(r.id), ended_at), r.id)
        elif r.alive and mine.deleting and mine.deleted_at is None and state is not None:
            self._delete_again(state.id, VolumeId(r.id))

    def _delete_again(self, job: JobId, volume: VolumeId) -> None:
        """The vendor refused the deletion, and may not do so for ever: a disk that is forgotten costs for ever."""
        now = self._clock.now()
        if now - self._deleted_again_at.setdefault(volume, now) > _AGAIN_S:
            self._deleted_again_at[volume] = now
            self._known.delete_volume(job, volume)

    def _note_notice(self, instance: InstanceId, event: NoticeReceived) -> None:
        for job, machine in self._of(instance):
            if machine.alive and (machine.notice, machine.notice_deadline) != (event.notice, event.deadline):
                if machine.notice is event.notice and machine.notice_deadline is not None:
                    continue  # the agent told it first, to the second or so
                self._pending.tell(job, event, event)

    def _of(self, instance: InstanceId) -> Iterator[tuple[JobId, InstanceState]]:
        for state in self._known.live_states():
            machine = state.by_instance(instance)
            if machine is not None:
                yield state.id, machine


def _machine_of(state: JobState, r: ProviderResource) -> InstanceState | None:
    """The job's machine behind a row of the list: that of its launch; else the one that the journal knows by its id.

    A provider may take back a machine that a sweep has adopted already (its disk cannot be attached), and then it
    answers no launch any more. Another machine of the same launch is not the job's.
    """
    instance = InstanceId(r.id)
    launched = None if r.token is None else state.instances.get(LaunchToken(r.token))
    if launched is not None and launched.instance in (None, instance):
        return launched
    return state.by_instance(instance)


def _end_of(r: ProviderResource, machine: InstanceState) -> InstanceEnd:
    """Why a machine ended: the provider's word; else ours if we ended it; else it was lost."""
    if r.end is not None:
        return r.end
    return InstanceEnd.OWNER if machine.leave_at is not None else InstanceEnd.LOST
