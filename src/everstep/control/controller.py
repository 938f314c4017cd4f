"""The live loop: observe -> decide -> record -> act.

One task owns the kernel. Everything that happens is put into its inbox; it takes what is there, lets the kernel
decide, writes the lines in one transaction, and only then does what was decided and tells those who wait.
"""

from __future__ import annotations

import asyncio
import os
import secrets as chance
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from everstep.brain.lifecycle import Briefing, accepts
from everstep.brain.select import Selector
from everstep.control.agents import AgentDesk
from everstep.control.book import Book
from everstep.control.clock import SystemClock
from everstep.control.doer import Doer
from everstep.control.faults import reach
from everstep.control.highwater import HighWater
from everstep.control.inbox import Inbox, Item, Market, answer
from everstep.control.journal import Journal
from everstep.control.kernel import Kernel, Outcome, at_rest
from everstep.control.options import Options, Vault
from everstep.control.preview import check_task, preview
from everstep.control.shelf import Shelf
from everstep.control.surroundings import Surroundings
from everstep.control.telemetry import Observed, Telemetry
from everstep.control.upkeep import check_providers, keep_lease, mind_the_clock, take_lease
from everstep.model import handshake as h
from everstep.model.access import Actor
from everstep.model.effects import DeleteVolume, Terminate
from everstep.model.errors import Conflict, EverstepError, NotFound
from everstep.model.events import AttemptsSkipped, Event, JobSubmitted, TerminateIntended, VolumeDeleteIntended
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import InstanceState, JobState
from everstep.model.offers import Offer
from everstep.model.task import Task
from everstep.ports import ProvesIdentity, Provider, ProviderResource, Store

_SKIPPED = 1_000
"""More attempts than any job begins between two backups."""
LOOP = "everstep loop"
"""Name of the task that owns the kernel."""


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
        agent_sha256: digest of the agent that machines fetch at boot, empty where they have it already.
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
        agent_sha256: str = "",
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
        shelf = Shelf(None if high_water is None else high_water.folder)
        self.book = Book(self.kernel.states, shelf)
        self.troubles: dict[str, str] = {}
        self.journal = Journal(
            store,
            clock=self.clock,
            holder=f"lock/{deployment}" if exclusive else f"{os.getpid()}.{chance.token_hex(4)}",
            snapshot_every=self.options.snapshot_every,
            shelf=shelf,
        )
        self._high_water = high_water
        self._providers = dict(providers)
        self._server_url = server_url
        self._ca_sha256 = ca_sha256
        self._agent_sha256 = agent_sha256
        self._vault = vault
        self._telemetry = Telemetry(self.kernel.market.heard)
        self.desk = AgentDesk(
            key=key, inbox=self, clock=self.clock, telemetry=self._telemetry, lease_s=self.options.lease_s,
            heartbeat_s=self.options.heartbeat_s, identify=self._identify,
        )  # fmt: skip
        # Ranks that fail are often the first sign of a machine that went away.
        self.desk.on_failure = lambda instance: self.around.poll_soon()
        self._doer = Doer(deployment=deployment, providers=self._providers, clock=self.clock, doings=self)
        self.around = Surroundings(
            self._providers, deployment=deployment, kernel=self.kernel, known=self, clock=self.clock,
            telemetry=self._telemetry,
        )  # fmt: skip
        self._inbox = Inbox()
        self._awakened: set[JobId] = set()
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
        await take_lease(self.journal, self.clock)
        await self.journal.restore(self.kernel, self.book)
        self._sound = True
        check_providers(self.kernel.states.values(), self._providers)
        await self.journal.note("ServerStarted", {"pid": os.getpid()})
        now = self.clock.now()
        for state in list(self.kernel.states.values()):
            self._settle_down(state.id)
        for state in list(self.kernel.states.values()):
            briefing = Briefing(state)
            for m in state.instances.values():
                if m.instance is not None and m.alive:
                    # Nobody is judged before a full lease has passed, unless the provider says that the machine is
                    # gone.
                    self._telemetry.grace(m.instance, now + self.options.lease_s)
                    self._send(state, m, briefing)
            self.kernel.wakes[state.id] = now
        self._skip_attempts()
        await self.around.look()
        for state in list(self.kernel.states.values()):
            self._doer.resume(state)
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        beside = [keep_lease(self.journal, self.clock), mind_the_clock(self.journal, self.clock, self._high_water)]
        works = [self._run(), *beside, *self.around.works(self.options)]
        self._tasks = [loop.create_task(work, name=LOOP if n == 0 else None) for n, work in enumerate(works)]
        for task in self._tasks:
            task.add_done_callback(self._notice)

    def _skip_attempts(self) -> None:
        """A journal that was longer once was put back: attempts that it forgot may hold machines and checkpoints."""
        if self._high_water is None or self._high_water.read() <= self.journal.seq:
            return
        for state in self.kernel.states.values():
            text = "the journal was put back to an earlier hour"
            self.put(state.id, AttemptsSkipped(state.attempt_no + _SKIPPED, text))

    async def stop(self) -> None:
        """Stops the loop; machines and jobs go on without us."""
        self._inbox.close()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._doer.close()
        self._inbox.give_up()
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
        await self._inbox.put(job, event, asked=True)
        return self.book[job]

    def observed(self, instance: InstanceId) -> Observed | None:
        """Telemetry of a machine."""
        return self._telemetry.observed.get(instance)

    async def offers(self) -> Sequence[Offer]:
        """What can be leased now."""
        await self.around.look_at_market()
        return self.kernel.market.offers

    @property
    def market(self) -> Sequence[Offer]:
        """What could be leased when the clouds were last asked."""
        return self.kernel.market.offers

    @property
    def silent(self) -> Collection[str]:
        """Providers of which ``market`` does not have all."""
        return self.around.silent

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
        return self._inbox.put(job, event)

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
            h.BOOT_AGENT_SHA256: self._agent_sha256,
        }

    async def _identify(self, machine: InstanceState, proof: Mapping[str, str]) -> None:
        provider = self._providers[machine.offer.provider]
        if isinstance(provider, ProvesIdentity) and machine.instance is not None:
            await provider.check_identity(machine.instance, machine.offer, proof, server_url=self._server_url())

    def terminate(self, job: JobId, instance: InstanceId) -> None:
        """Ends again a machine that should be gone."""
        self._doer.do(Terminate(job, TerminateIntended(instance, "")))

    def delete_volume(self, job: JobId, volume: VolumeId) -> None:
        """Deletes again a disk that should be gone."""
        self._doer.do(DeleteVolume(job, VolumeDeleteIntended(volume)))

    def look_again(self) -> None:
        """Every job is looked at again, at once."""
        self.kernel.wakes.update(dict.fromkeys(self.kernel.states, self.clock.now()))
        self._inbox.market_moved()

    def market_moved(self) -> None:
        """The offers changed: jobs that wait for capacity are looked at again."""
        self._inbox.market_moved()

    def trouble(self, provider: str, text: str) -> None:
        """Shows that a provider makes trouble; an empty text takes it back."""
        if text:
            self.troubles[provider] = text
        else:
            self.troubles.pop(provider, None)

    # --- The loop ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            wake = self.kernel.next_wake()
            items = await self._inbox.take(1.0 if wake is None else min(max(wake - self.clock.now(), 0.0), 1.0))
            self._sound = False  # until the journal holds what the kernel has taken in
            now = self.clock.now()
            refused: list[tuple[Item, EverstepError]] = []
            taken: list[Item] = []
            stop = False
            for item in items:
                if item is None:
                    stop = True
                    continue
                if isinstance(item, Market):
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
            answer(taken, refused)
            self._sound = True
            if stop:
                return

    def _take(self, item: Item, now: float) -> None:
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
    def _refuse(item: Item, state: JobState) -> None:
        what = type(item.event).__name__.removesuffix("Requested").lower()
        raise Conflict(f"job {item.job} is {state.phase.value}: {what} is not possible now")

    def _after(self, outcome: Outcome) -> None:
        """What was decided is in the journal: do it."""
        self._doer.do(*outcome.effects)
        if outcome.orders:
            reach("orders.before")
        briefings: dict[JobId, Briefing] = {}
        for instance, job in outcome.orders.items():
            state = self.kernel.states.get(job)
            machine = None if state is None else state.by_instance(instance)
            if state is not None and machine is not None:
                briefings[job] = briefings.get(job) or Briefing(state)
                self._send(state, machine, briefings[job])
        if outcome.orders:
            reach("orders.after")
        for job in outcome.touched | self._awakened:
            self._settle_down(job)
        self._awakened.clear()
        if self.journal.snapshot_due():
            self.journal.start_snapshot(self.kernel, self.book)

    def _send(self, state: JobState, machine: InstanceState, briefing: Briefing) -> None:
        assert machine.instance is not None
        document = briefing.orders(machine)
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
