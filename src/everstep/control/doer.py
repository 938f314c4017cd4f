"""Does what was decided, once it is in the journal: every call idempotent, repeated until its outcome is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from everstep.control.faults import reach
from everstep.model.effects import DeleteVolume, Effect, EnsureVolume, Launch, Terminate
from everstep.model.errors import ProviderError, Throttled, Unreachable
from everstep.model.events import (
    Event,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    VolumeDeleted,
    VolumeDeleteIntended,
    VolumeFailed,
    VolumeIntended,
    VolumeReady,
)
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken
from everstep.model.job import InstancePhase, JobState
from everstep.model.offers import Pool
from everstep.ports import Clock, Launched, LaunchRequest, Provider, ProviderResource, VolumeSpec

T = TypeVar("T")
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 20.0
_TRUTH_TRIES = 6


class Doings(Protocol):
    """What the doer needs of the controller."""

    def put(self, job: JobId, event: Event) -> Awaitable[None]:
        """Hands the outcome over."""
        ...

    def user_data(self, job: JobId, token: LaunchToken) -> Mapping[str, str]:
        """Environment of the agent at boot."""
        ...

    def state(self, job: JobId) -> JobState | None:
        """The job as it is now."""
        ...

    def trouble(self, provider: str, text: str) -> None:
        """Shows that a provider makes trouble; an empty text takes it back."""
        ...


class Running(Protocol):
    """A call under way: an ``asyncio.Task``, or the simulator's like of it."""

    def done(self) -> bool:
        """Whether it is over."""
        ...

    def cancel(self) -> object:
        """Stops it."""
        ...

    def add_done_callback(self, act: Callable[[Any], object], /) -> object:
        """Calls ``act`` when it is over."""
        ...


def _final(answer: Launched | Exception) -> Launched | ProviderError:
    """An answer that need not be asked for again; raises what is none."""
    if isinstance(answer, Launched) or (
        isinstance(answer, ProviderError) and not isinstance(answer, Throttled | Unreachable)
    ):
        return answer
    raise answer


def _in_a_task(work: Coroutine[Any, Any, None], name: str) -> Running:
    return asyncio.get_running_loop().create_task(work, name=name)


class Doer:
    """Carries effects out, each in its own task; launches of one job in one pool that come together are one call.

    A call that is throttled or gets no answer is repeated with the same tokens, with growing pauses, until the
    provider says yes or no; so an effect is done once, however often the process dies in the middle.
    """

    def __init__(
        self,
        *,
        deployment: DeploymentId,
        providers: Mapping[str, Provider],
        clock: Clock,
        doings: Doings,
        spawn: Callable[[Coroutine[Any, Any, None], str], Running] = _in_a_task,
    ) -> None:
        """Args: deployment: goes into tags; providers: by name; doings: the controller; spawn: starts a call."""
        self._deployment = deployment
        self._providers = providers
        self._clock = clock
        self._doings = doings
        self._spawn = spawn
        self._tasks: dict[str, Running] = {}

    def do(self, *effects: Effect) -> None:
        """Starts effects that were decided together; one that is under way already is not started twice."""
        gangs: dict[tuple[JobId, Pool], dict[str, LaunchIntended]] = {}
        starts: list[tuple[Collection[str], Callable[[], Coroutine[None, None, None]]]] = []
        for effect in effects:
            if not isinstance(effect, Launch):
                name, work = self._work(effect)
                if work is not None:
                    starts.append(((name,), work))
            elif not self._is_under_way(name := f"launch/{effect.event.token}"):
                key = (effect.job, effect.event.offer.pool)
                if key not in gangs:
                    gangs[key] = {}
                    starts.append((gangs[key].keys(), partial(self._launch, effect.job, gangs[key].values())))
                gangs[key][name] = effect.event
        for names, work in starts:
            if not any(map(self._is_under_way, names)):
                self._start(tuple(names), work())

    def _is_under_way(self, name: str) -> bool:
        return name in self._tasks and not self._tasks[name].done()

    def _start(self, names: Sequence[str], work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work, names[0])

        def over(_: object) -> None:
            for name in names:
                if self._tasks.get(name) is task:
                    del self._tasks[name]

        self._tasks.update(dict.fromkeys(names, task))
        task.add_done_callback(over)

    def _work(self, effect: Effect) -> tuple[str, Callable[[], Coroutine[None, None, None]] | None]:
        match effect:
            case Terminate(job=job, event=t):
                return f"terminate/{t.instance}", lambda: self.terminate(job, t.instance)
            case EnsureVolume(event=v):
                return f"volume/{v.name}", lambda: self._ensure_volume(effect)
            case DeleteVolume(event=d):
                return f"delete/{d.volume}", lambda: self._delete_volume(effect)
            case _:
                return "", None  # facts and orders are not calls

    def resume(self, state: JobState) -> None:
        """After a restart: everything that was intended and has no outcome is done again."""
        # What was decided at one instant was one call; so it is again, but for those whose outcome was written.
        together: dict[float, list[Launch]] = {}
        for m in state.instances.values():
            if m.phase is InstancePhase.LAUNCHING:
                intent = LaunchIntended(
                    m.token, m.launch_no, m.slot, m.offer, m.max_price_usd_per_h, m.shared_folder, m.volume
                )
                together.setdefault(m.intended_at, []).append(Launch(state.id, intent))
        for launches in together.values():
            self.do(*launches)
        for v in state.volumes.values():
            if v.volume is None and v.failed_at is None:
                self.do(EnsureVolume(state.id, VolumeIntended(v.slot, v.name, v.zone, v.provider, v.size_gib)))
            elif v.volume is not None and v.deleting and v.deleted_at is None:
                self.do(DeleteVolume(state.id, VolumeDeleteIntended(v.volume)))
        # Terminations are repeated by the sweep, which sees what is still alive.

    async def close(self) -> None:
        """Stops waiting for outcomes; what was under way is done again after the next start."""
        tasks = list(dict.fromkeys(self._tasks.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(t for t in tasks if isinstance(t, asyncio.Task)), return_exceptions=True)

    # --- Effects ----------------------------------------------------------------------------------------------------

    async def _launch(self, job: JobId, intents: Collection[LaunchIntended]) -> None:
        """Machines of one pool, all or none of them; each has an outcome of its own in the journal."""
        requests = self._requests(job, intents)
        provider = self._providers[requests[0].offer.provider]
        asked: list[LaunchRequest] = []

        def wanted() -> bool:
            """Whether anything is left to ask for: what a sweep has told already is not."""
            asked[:] = [r for r in requests if self._still_launching(job, r.token)]
            return bool(asked)

        async def call() -> Sequence[tuple[LaunchToken, Launched | ProviderError]]:
            answers = await provider.launch(tuple(asked), all_or_nothing=True)
            return [(r.token, _final(answer)) for r, answer in zip(asked, answers, strict=True)]

        reach("launch.before")
        try:
            outcomes = await self._until_known(provider.name, call, wanted)
        except ProviderError as error:
            outcomes = [(r.token, error) for r in asked]
        else:
            reach("launch.after")
        # Without a pause in between: what one call told is looked at together, and decided upon together.
        for token, outcome in outcomes or ():
            if isinstance(outcome, Launched):
                event: Event = LaunchSucceeded(token, outcome.instance, outcome.started_at, outcome.price_usd_per_h)
            else:
                event = LaunchFailed(token, outcome.kind, str(outcome))
            self._doings.put(job, event)

    def _requests(self, job: JobId, intents: Collection[LaunchIntended]) -> list[LaunchRequest]:
        state = self._doings.state(job)
        return [
            LaunchRequest(
                token=e.token,
                deployment=self._deployment,
                job=job,
                launch_no=e.launch_no,
                offer=e.offer,
                max_price_usd_per_h=e.max_price_usd_per_h,
                user_data=self._doings.user_data(job, e.token),
                volume=e.volume,
                gang=1 if state is None else state.task.gang.size,
            )
            for e in intents
        ]

    def _still_launching(self, job: JobId, token: LaunchToken) -> bool:
        state = self._doings.state(job)
        machine = None if state is None else state.instances.get(token)
        return machine is not None and machine.phase is InstancePhase.LAUNCHING

    async def terminate(self, job: JobId, instance: InstanceId) -> None:
        """Ends a machine; that it ended is told by the provider's own list (see ``watch``)."""
        state = self._doings.state(job)
        machine = None if state is None else state.by_instance(instance)
        if machine is None:
            return
        provider = self._providers[machine.offer.provider]
        reach("terminate.before")
        try:
            await self._until_known(provider.name, lambda: provider.terminate((instance,)), lambda: True)
        except ProviderError as error:
            self._doings.trouble(provider.name, f"cannot end {instance}: {error}")
            return
        reach("terminate.after")

    async def _ensure_volume(self, effect: EnsureVolume) -> None:
        e = effect.event
        provider = self._providers[e.provider]
        spec = VolumeSpec(self._deployment, effect.job, e.name, e.zone, e.size_gib)
        reach("ensure_volume.before")
        try:
            volume = await self._until_known(
                provider.name, lambda: provider.ensure_volume(spec), lambda: self._lacks_disk(effect.job, e.name)
            )
        except ProviderError as error:
            self._doings.put(effect.job, VolumeFailed(e.slot, error.kind, str(error), e.name))
            return
        reach("ensure_volume.after")
        if volume is None:
            return
        # Asked again: when a disk was made is what it is billed from.
        truth = [r for r in await self._truth(provider, tries=_TRUTH_TRIES, shows=volume) if r.id == volume]
        created_at = truth[0].started_at if truth else self._clock.now()
        price = truth[0].price_usd_per_h / e.size_gib if truth and e.size_gib else 0.0
        self._doings.put(effect.job, VolumeReady(e.slot, volume, created_at, price, e.name))

    def _lacks_disk(self, job: JobId, name: str) -> bool:
        """Whether a disk is still to be made: a sweep may have told of it, and it may even be deleted by now."""
        state = self._doings.state(job)
        return state is None or name not in state.volumes or state.volumes[name].volume is None

    async def _delete_volume(self, effect: DeleteVolume) -> None:
        volume = effect.event.volume
        state = self._doings.state(effect.job)
        known = None if state is None else next((v for v in state.volumes.values() if v.volume == volume), None)
        if known is None:
            return
        provider = self._providers[known.provider]
        reach("delete_volume.before")
        try:
            await self._until_known(provider.name, lambda: provider.delete_volume(volume), lambda: True)
        except ProviderError as error:
            self._doings.trouble(provider.name, f"cannot delete disk {volume}: {error}")
            return
        reach("delete_volume.after")
        gone = [r for r in await self._truth(provider) if r.id == volume and r.ended_at is not None]
        ended_at = gone[0].ended_at if gone and gone[0].ended_at is not None else self._clock.now()
        self._doings.put(effect.job, VolumeDeleted(volume, ended_at))

    async def _truth(self, provider: Provider, *, tries: int = 1, shows: str = "") -> Sequence[ProviderResource]:
        """The provider's list; empty if it cannot be had in so many tries: then our own clock has to do.

        With ``shows`` it is asked again, as often, while that is not in it: lists lag behind.
        """
        seen: Sequence[ProviderResource] = ()
        for left in reversed(range(tries)):
            try:
                seen = await provider.resources(self._deployment)
            except ProviderError as error:
                self._doings.trouble(provider.name, str(error))
            else:
                if not shows or any(r.id == shows for r in seen):
                    break
            if left:
                await self._clock.sleep(_FIRST_PAUSE_S * 2 ** (tries - left))
        return seen

    async def _until_known(
        self, provider: str, call: Callable[[], Awaitable[T]], wanted: Callable[[], bool]
    ) -> T | None:
        """Repeats a call until the provider says yes (its answer) or no (the typed error); None when it is not wanted
        any more."""
        pause_s = _FIRST_PAUSE_S
        while wanted():
            try:
                answer = await call()
            except (Throttled, Unreachable) as error:
                self._doings.trouble(provider, str(error))
                await self._clock.sleep(error.retry_after_s if error.retry_after_s is not None else pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            except ProviderError:
                raise
            except Exception as error:
                # A provider that breaks its contract told us nothing: the effect may or may not have happened.
                self._doings.trouble(provider, f"unexpected {error!r}")
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            self._doings.trouble(provider, "")
            return answer
        return None
