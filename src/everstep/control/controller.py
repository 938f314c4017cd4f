"""The live loop: observe -> decide -> record -> act.

One task owns the kernel. Everything that happens is put into its inbox; it takes what is there, lets the kernel
decide, writes the lines in one transaction, and only then does what was decided and tells those who wait.
"""

from __future__ import annotations

import asyncio
import os
import secrets as chance
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.brain.lifecycle import accepts, orders
from everstep.brain.select import Selector
from everstep.control.agents import AgentDesk
from everstep.control.book import Book
from everstep.control.clock import SystemClock
from everstep.control.doer import Doer
from everstep.control.faults import reach
from everstep.control.highwater import HighWater
from everstep.control.journal import LEASE_S, Journal
from everstep.control.kernel import Kernel, Outcome, at_rest
from everstep.control.options import Options, Vault
from everstep.control.preview import check_task, preview
from everstep.control.surroundings import Surroundings
from everstep.control.telemetry import Observed, Telemetry
from everstep.model import handshake as h
from everstep.model.access import Actor
from everstep.model.effects import Terminate
from everstep.model.errors import (
    Conflict,
    EverstepError,
    LeaseHeld,
    NotFound,
    StoreClosed,
    StoreError,
    StoreUnusable,
)
from everstep.model.events import AttemptsSkipped, Event, JobSubmitted, TerminateIntended
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken
from everstep.model.job import InstanceState, JobState
from everstep.model.offers import Offer
from everstep.model.task import Task
from everstep.ports import Provider, ProviderResource, Store

_BATCH = 512
_SKIPPED = 1_000
"""More attempts than any job begins between two backups."""
LOOP = "everstep loop"
"""Name of the task that owns the kernel."""
_SUSPICIOUS_S = 2.0
"""A machine that is silent for so long makes us ask the provider at once."""


@dataclass(slots=True)
class _Item:
    job: JobId
    event: Event
    done: asyncio.Future[None]
    asked: bool = False


class _Market:
    """The offers changed."""


class Controller:
    """The live loop.

    Args:
        store: the journal.
        providers: by name.
        deployment: this installation.
        key: its secret, for join tokens and credentials.
        server_url: base URL that agents dial.
        vault: values of secrets.
        ca_sha256: fingerprint of the server's certificate, empty for plain HTTP on loopback.
        high_water: how far the journal once was, kept outside of the store.
        exclusive: the caller holds a lock that nobody else can hold, so a lease that a dead predecessor left behind
        is ours.
    """

    def __init__(
        self,
        *,
        store: Store,
        providers: Mapping[str, Provider],
        deployment: DeploymentId,
        key: bytes,
        server_url: Callable[[], str],
        vault: Vault,
        ca_sha256: str = "",
        selectors: Mapping[str, Selector] | None = None,
        options: Options | None = None,
        clock: SystemClock | None = None,
        exclusive: bool = False,
        high_water: HighWater | None = None,
    ) -> None:
        """See the class."""
        self.deployment = deployment
        self.clock = clock or SystemClock()
        self.options = options or Options()
        self.kernel = Kernel(deployment, settings=self.options.settings, selectors=selectors)
        self.book = Book(self.kernel.states)
        self.troubles: dict[str, str] = {}
        self.journal = Journal(
            store,
            clock=self.clock,
            holder=f"lock/{deployment}" if exclusive else f"{os.getpid()}.{chance.token_hex(4)}",
            snapshot_every=self.options.snapshot_every,
        )
        self._high_water = high_water
        self._providers = dict(providers)
        self._server_url = server_url
        self._ca_sha256 = ca_sha256
        self._vault = vault
        self._telemetry = Telemetry(self.kernel.market.heard)
        self.desk = AgentDesk(
            key=key,
            inbox=self,
            clock=self.clock,
            telemetry=self._telemetry,
            lease_s=self.options.lease_s,
            heartbeat_s=self.options.heartbeat_s,
        )
        # Ranks that fail are often the first sign of a machine that went away.
        self.desk.on_failure = lambda instance: self.around.poll_soon()
        self._doer = Doer(deployment=deployment, providers=self._providers, clock=self.clock, doings=self)
        self.around = Surroundings(
            self._providers,
            deployment=deployment,
            kernel=self.kernel,
            known=self,
            clock=self.clock,
            telemetry=self._telemetry,
        )
        self._inbox: asyncio.Queue[_Item | _Market | None] = asyncio.Queue()
        self._awakened: set[JobId] = set()
        self._batch: list[_Item | _Market | None] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sound = False
        self.failed: asyncio.Future[None] | None = None

    # --- Life -------------------------------------------------------------------------------------------------------

    @property
    def states(self) -> Mapping[JobId, JobState]:
        """Every job known, live and ended."""
        return self.book

    async def start(self) -> None:
        """Takes the lease, reads the journal, resumes what was under way.

        Raises:
            LeaseHeld: another server writes this journal.
            EverstepError: the journal cannot be read, or a provider is missing where jobs have something.
        """
        await self._take_lease()
        await self.journal.restore(self.kernel, self.book)
        self._sound = True
        self._check_providers()
        await self.journal.note("ServerStarted", {"pid": os.getpid()})
        now = self.clock.now()
        for state in list(self.kernel.states.values()):
            self._settle_down(state.id)
        for state in list(self.kernel.states.values()):
            for m in state.instances.values():
                if m.instance is not None and m.alive:
                    # Nobody is judged before a full lease has passed, unless the provider says that the machine is
                    # gone.
                    self._telemetry.grace(m.instance, now + self.options.lease_s)
                    self._send(state, m)
            self.kernel.wakes[state.id] = now
        self._skip_attempts()
        await self.around.look()
        for state in list(self.kernel.states.values()):
            self._doer.resume(state)
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        works = [self._run(), self._keep_lease(), self._mind_the_clock(), *self.around.works(self.options)]
        self._tasks = [loop.create_task(work, name=LOOP if n == 0 else None) for n, work in enumerate(works)]
        for task in self._tasks:
            task.add_done_callback(self._notice)

    def _check_providers(self) -> None:
        """Without its provider a machine could be neither followed nor ended, and would go on being billed."""
        for state in self.kernel.states.values():
            held = {str(m.instance or m.token): m.offer.provider for m in state.instances.values() if m.alive}
            held |= {v.name: v.provider for v in state.volumes.values() if v.volume and v.deleted_at is None}
            for name, provider in held.items():
                if provider not in self._providers:
                    raise EverstepError(
                        f"job {state.id} has {name} at provider {provider!r}, which is not configured; start the "
                        f"server with it, or end the job before you take it away (configured: "
                        f"{', '.join(sorted(self._providers)) or 'none'})"
                    )

    def _skip_attempts(self) -> None:
        """A journal that was longer once was put back: attempts that it forgot may hold machines and checkpoints."""
        if self._high_water is None or self._high_water.read() <= self.journal.seq:
            return
        for state in self.kernel.states.values():
            text = "the journal was put back to an earlier hour"
            self.put(state.id, AttemptsSkipped(state.attempt_no + _SKIPPED, text))

    async def _take_lease(self) -> None:
        """Waits out the lease of a predecessor that was killed."""
        patience = self.clock.now() + LEASE_S + 2.0
        while True:
            try:
                await self.journal.lease()
                return
            except LeaseHeld:
                if self.clock.now() > patience:
                    raise
                await self.clock.sleep(0.1)

    async def stop(self) -> None:
        """Stops the loop; machines and jobs go on without us."""
        await self._inbox.put(None)
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._doer.close()
        while not self._inbox.empty():
            self._batch.append(self._inbox.get_nowait())
        for item in self._batch:
            # Nobody will look at it any more; those who wait for it must know.
            if isinstance(item, _Item) and not item.done.done():
                item.done.cancel()
        if self._sound:
            await self.journal.close(self.kernel, self.book)

    def _notice(self, task: asyncio.Task[None]) -> None:
        """A loop that dies takes the server down: half a controller is worse than none, and a restart loses nothing."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)

    # --- What users ask ---------------------------------------------------------------------------------------------

    async def submit(self, task: Task, *, secrets: Mapping[str, str], actor: Actor, project: str) -> JobId:
        """Takes a task in; durable when it returns. Raises BadInput."""
        check_task(task, self.kernel.selectors, self.clock.now())
        job = JobId("j-" + "".join(chance.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(8)))
        if secrets:
            self._vault.put(job, secrets)
        await self.put(job, JobSubmitted(job, task, actor.user, project))
        reach("submit.after")
        return job

    async def ask(self, job: JobId, event: Event) -> JobState:
        """A user's request; durable when it returns. Raises NotFound, Conflict."""
        if job not in self.book:
            raise NotFound(f"there is no job {job}")
        await self._put(job, event, asked=True)
        return self.book[job]

    def observed(self, instance: InstanceId) -> Observed | None:
        """Telemetry of a machine."""
        return self._telemetry.observed.get(instance)

    async def offers(self) -> Sequence[Offer]:
        """What can be leased now."""
        await self.around.look_at_market()
        return self.kernel.market.offers

    async def preview(self, task: Task) -> dict[str, Any]:
        """What would be done with a task now; does nothing. Raises BadInput."""
        await self.around.look_at_market()
        return preview(self.kernel, task, self.clock.now())

    def unknown(self) -> Sequence[ProviderResource]:
        """What is there under our deployment and in no journal of ours."""
        return self.around.unknown()

    async def end_unknown(self, ids: Sequence[str]) -> None:
        """Ends some of it, on an explicit command. Raises NotFound for an id that is not on the list."""
        await self.around.end_unknown(ids)

    # --- What the other parts need ----------------------------------------------------------------------------------

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        """Hands an event over; the future is done when it is durable."""
        return self._put(job, event, asked=False)

    def _put(self, job: JobId, event: Event, *, asked: bool) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(_Item(job, event, done, asked))
        return done

    def state(self, job: JobId) -> JobState | None:
        """The job as it is now, ended ones included."""
        return self.book.get(job)

    def live_states(self) -> Sequence[JobState]:
        """Jobs that may have machines."""
        return list(self.kernel.states.values())

    def find(self, job: JobId, token: LaunchToken) -> tuple[JobState, InstanceState] | None:
        """The machine of a launch."""
        state = self.state(job)
        machine = None if state is None else state.instances.get(token)
        return None if state is None or machine is None else (state, machine)

    def newest_attempt(self, job: JobId) -> int:
        """The highest number of an attempt that is known to have been given out."""
        state = self.book.get(job)
        return 0 if state is None else max(state.attempt_no, state.attempt_floor)

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job a living machine is for."""
        return self.book.job_of(instance)

    def user_data(self, job: JobId, token: LaunchToken) -> Mapping[str, str]:
        """Environment of the agent at boot."""
        return {
            h.BOOT_SERVER: self._server_url(),
            h.BOOT_TOKEN: self.desk.join_token(job, token),
            h.BOOT_CA_FINGERPRINT: self._ca_sha256,
        }

    def terminate(self, job: JobId, instance: InstanceId) -> None:
        """Ends again a machine that should be gone."""
        self._doer.do(Terminate(job, TerminateIntended(instance, "")))

    def look_again(self) -> None:
        """Every job is looked at again, at once."""
        self.kernel.wakes.update(dict.fromkeys(self.kernel.states, self.clock.now()))
        self._inbox.put_nowait(_Market())

    def market_moved(self) -> None:
        """The offers changed: jobs that wait for capacity are looked at again."""
        self._inbox.put_nowait(_Market())

    def trouble(self, provider: str, text: str) -> None:
        """Shows that a provider makes trouble; an empty text takes it back."""
        if text:
            self.troubles[provider] = text
        else:
            self.troubles.pop(provider, None)

    # --- The loop ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            items = await self._next_items()
            self._batch = items
            self._sound = False  # until the journal holds what the kernel has taken in
            now = self.clock.now()
            refused: list[tuple[_Item, EverstepError]] = []
            taken: list[_Item] = []
            stop = False
            for item in items:
                if item is None:
                    stop = True
                    continue
                if isinstance(item, _Market):
                    self.kernel.market_moved(now)
                    continue
                try:
                    self._take(item, now)
                    taken.append(item)
                except (NotFound, Conflict) as error:
                    refused.append((item, error))
            self.kernel.wake(now)
            outcome = self.kernel.take()
            await self.journal.write(outcome)
            self._after(outcome)
            _answer(taken, refused)
            self._sound = True
            if stop:
                return

    async def _next_items(self) -> list[_Item | _Market | None]:
        wake = self.kernel.next_wake()
        timeout_s = 1.0 if wake is None else min(max(wake - self.clock.now(), 0.0), 1.0)
        items: list[_Item | _Market | None] = []
        if timeout_s > 0 or not self._inbox.empty():
            try:
                items.append(await asyncio.wait_for(self._inbox.get(), timeout_s))
            except TimeoutError:
                return items
        while len(items) < _BATCH and not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        return items

    def _take(self, item: _Item, now: float) -> None:
        if isinstance(item.event, JobSubmitted):
            self.kernel.submit(item.event, now)
            return
        if item.job not in self.kernel.states:
            if item.job not in self.book:
                raise NotFound(f"there is no job {item.job}")
            # Look before unpacking: a request that is refused must not bring an ended job back to life.
            if item.asked and not accepts(self.book[item.job], item.event):
                self._refuse(item, self.book[item.job])
            self.kernel.adopt(self.book.take_out(item.job))
            self._awakened.add(item.job)
        if item.asked:
            self.kernel.ask(item.job, item.event, now)
        else:
            self.kernel.handle(item.job, item.event, now)

    @staticmethod
    def _refuse(item: _Item, state: JobState) -> None:
        what = type(item.event).__name__.removesuffix("Requested").lower()
        raise Conflict(f"job {item.job} is {state.phase.value}: {what} is not possible now")

    def _after(self, outcome: Outcome) -> None:
        """What was decided is in the journal: do it."""
        for effect in outcome.effects:
            self._doer.do(effect)
        if outcome.orders:
            reach("orders.before")
        for instance, job in outcome.orders.items():
            state = self.kernel.states.get(job)
            machine = None if state is None else state.by_instance(instance)
            if state is not None and machine is not None:
                self._send(state, machine)
        if outcome.orders:
            reach("orders.after")
        for job in outcome.touched | self._awakened:
            self._settle_down(job)
        self._awakened.clear()
        if self.journal.snapshot_due():
            self.journal.start_snapshot(self.kernel, self.book)

    def _send(self, state: JobState, machine: InstanceState) -> None:
        assert machine.instance is not None
        document = orders(state, machine)
        # The vault reads a file: most jobs have none.
        secrets = self._vault.get(state.id) if state.task.secret_names else {}
        if secrets:
            document[h.ORDERS_SPEC][h.SPEC_ENVS] = {**document[h.ORDERS_SPEC][h.SPEC_ENVS], **secrets}
        self.desk.send(machine.instance, document)

    def _settle_down(self, job: JobId) -> None:
        """Indexes a job's machines; packs the job when nothing can happen to it any more by itself."""
        state = self.kernel.states.get(job)
        if state is None:
            return
        self.book.index(state)
        for m in state.instances.values():
            if m.instance is not None and not m.alive:
                self.desk.forget(m.instance)
                self._telemetry.forget(m.instance)
        if at_rest(state) and job not in self.kernel.wakes:
            self.book.put_away(self.kernel.drop(job))

    # --- By the clock -----------------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        while True:
            await self.clock.sleep(LEASE_S / 3)
            try:
                await self.journal.lease()
            except (StoreUnusable, StoreClosed):
                raise
            except (OSError, StoreError) as error:
                self.journal.trouble = f"the lease cannot be renewed: {error}"

    async def _mind_the_clock(self) -> None:
        """A step of the system clock moves no deadline of ours; it is journalled, then we follow it forward."""
        while True:
            await self.clock.sleep(1.0)
            if self._high_water is not None:
                self._high_water.keep(self.journal.seq)
            stepped_s = self.clock.stepped_s()
            if abs(stepped_s) > 5.0:
                self.clock.reanchor()
                await self.journal.note("ClockStepped", {"seconds": stepped_s})


def _answer(taken: Sequence[_Item], refused: Sequence[tuple[_Item, EverstepError]]) -> None:
    """Tells those who wait. Facts that concern nobody any more are dropped in silence: only requests have somebody to
    tell."""
    for item in taken:
        if not item.done.done():
            item.done.set_result(None)
    for item, error in refused:
        if item.done.done():
            continue
        if item.asked:
            item.done.set_exception(error)
        else:
            item.done.set_result(None)
