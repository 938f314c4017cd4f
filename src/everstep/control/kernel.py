"""The loop's arithmetic without its IO: events in, journal lines and effects out.

Both drivers use it: the asyncio loop (``controller``) and the heap of the simulator. Each event is handled
completely, with the decisions that follow from it, before the next one is looked at; so the journal depends on the
order of events and their times alone, not on how a driver batches them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from everstep.brain.lifecycle import accepts, submitted, transition
from everstep.brain.moving import is_mover
from everstep.brain.needs import policy_of
from everstep.brain.plan import Heard, Settings, Snapshot, advance, offers_digest, plan, worth_recording
from everstep.brain.pools import PoolBook, can_run_dry, note_pools, see_offers
from everstep.brain.select import SELECTORS, Selector
from everstep.control.sights import Sight, Sights, fold
from everstep.control.wakes import Wakes
from everstep.model.effects import Decision, DeleteVolume, Effect, EnsureVolume, Launch, SendOrders, Terminate
from everstep.model.errors import Conflict, NotFound, UnlistedTransition
from everstep.model.events import Event, JobSubmitted, Rejected
from everstep.model.ids import DeploymentId, InstanceId, JobId
from everstep.model.job import InstancePhase, InstanceState, JobPhase, JobState
from everstep.model.offers import Offer, Pool

_ROUNDS = 16
"""A decision may conclude something, which calls for another decision; more rounds than this would be a loop."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event for the journal of a job."""

    job: JobId
    event: Event
    at: float


@dataclass(slots=True)
class Outcome:
    """What a driver has to record (first) and to do (then).

    Attributes:
        lines: in order; durable before any effect is done.
        sights: for the market stream; written with the lines.
        effects: launches, terminations, volumes.
        orders: machines whose orders changed.
        touched: jobs whose state changed.
    """

    lines: list[Line] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    orders: dict[InstanceId, JobId] = field(default_factory=dict)
    touched: set[JobId] = field(default_factory=set)


@dataclass(slots=True)
class Market:
    """What the drivers see of the outside: offers, shared folders, telemetry."""

    offers: tuple[Offer, ...] = ()
    digest: str = ""
    shared_folders: dict[str, str] = field(default_factory=dict)
    heard: dict[InstanceId, Heard] = field(default_factory=dict)

    def set_offers(self, offers: Sequence[Offer]) -> bool:
        """Replaces the market; returns whether anything but the as-of time changed."""
        digest = offers_digest(offers)
        changed = digest != self.digest
        self.offers, self.digest = tuple(offers), digest
        return changed


class Kernel:
    """States of all live jobs and what follows from events. Not thread-safe; no IO; no clock.

    Args:
        deployment: part of every launch token and of every decision's seed.
        strict: raise on a move that no table lists (tests, simulator) instead of quarantining the job (live).
    """

    def __init__(
        self,
        deployment: DeploymentId,
        *,
        settings: Settings | None = None,
        selectors: Mapping[str, Selector] | None = None,
        strict: bool = False,
    ) -> None:
        """See the class."""
        self.deployment = deployment
        self.settings = settings or Settings()
        self.selectors = dict(selectors or SELECTORS)
        self.strict = strict
        self.states: dict[JobId, JobState] = {}
        self.pools = PoolBook()
        self.market = Market()
        self.wakes = Wakes()
        self.sights: Sights | None = None  # whoever keeps a market stream sets it
        self._outcome = Outcome()
        self._looked = False
        self._inflight: dict[JobId, dict[Pool, int]] = {}

    # --- Input ------------------------------------------------------------------------------------------------------

    def submit(self, event: JobSubmitted, now: float) -> None:
        """Takes a new job in."""
        self.states[event.job] = submitted(event, now)
        self._outcome.lines.append(Line(event.job, event, now))
        self._outcome.touched.add(event.job)
        self._plan(event.job, now)

    def handle(self, job: JobId, event: Event, now: float) -> None:
        """Applies one fact and decides what follows from it."""
        self._apply(job, event, now)
        self._plan(job, now)

    def ask(self, job: JobId, event: Event, now: float) -> None:
        """A user's request.

        Raises:
            NotFound: no such live job.
            Conflict: the job is in a phase in which this cannot be asked.
        """
        state = self.states.get(job)
        if state is None:
            raise NotFound(f"there is no job {job}")
        if not accepts(state, event):
            raise Conflict(f"job {job} is {state.phase.value}: {_asked(event)} is not possible now")
        self.handle(job, event, now)

    def wake(self, now: float) -> None:
        """Looks at every job whose wake-up time has come, in order of time and then of id."""
        for job in self.wakes.due(now):
            self._plan(job, now)
            self._outcome.touched.add(job)  # it may have come to rest

    def market_moved(self, now: float) -> None:
        """Looks at every job that waits for capacity, or may move to other machines: the offers changed."""
        # Before the first look nobody watched: the server was down, or this is the first time it runs.
        self.pools = see_offers(self.pools, self.market.offers, self._held(), now, watched=self._looked)
        self._looked = True
        for job in [j for j, s in self.states.items() if s.wait or self._may_move(s)]:
            self._plan(job, now)

    def looked(self, answered: Collection[str], now: float) -> None:
        """Somebody looked at the market, and these providers answered; what changed is for ``market_moved``."""
        if self.sights is not None:
            wanted = frozenset(group.machine for s in self.states.values() for group in s.task.gang.groups)
            self._sighted(self.sights.look(self.market.offers, answered, wanted, now))

    def _sighted(self, sight: Sight | None) -> None:
        if sight is not None:
            self._outcome.sights.append(sight)

    def next_wake(self) -> float | None:
        """UTC seconds of the next look at any job."""
        return self.wakes.earliest()

    # --- Output -----------------------------------------------------------------------------------------------------

    def take(self) -> Outcome:
        """What is to be recorded and done since the last call."""
        outcome, self._outcome = self._outcome, Outcome()
        return outcome

    def drop(self, job: JobId) -> JobState:
        """Forgets a job that has ended; the driver keeps its last state elsewhere."""
        self.wakes.pop(job, None)
        self._inflight.pop(job, None)
        return self.states.pop(job)

    def adopt(self, state: JobState) -> None:
        """Takes a job back in, for example to retry it or after a restart."""
        self.states[state.id] = state
        self._count_inflight(state)

    # --- Replay -----------------------------------------------------------------------------------------------------

    def replay(self, job: JobId, event: Event, at: float) -> None:
        """Folds one journal line without deciding anything."""
        if isinstance(event, JobSubmitted):
            self.adopt(submitted(event, at))
            return
        state = self.states[job]
        self.pools = note_pools(self.pools, event, _machine_of(state, event), at)
        self.adopt(transition(state, event, at))

    def replay_sight(self, sight: Sight) -> None:
        """Folds one line of the market stream."""
        self.pools = fold(self.pools, sight, self._held)

    # --- Inside -----------------------------------------------------------------------------------------------------

    def _apply(self, job: JobId, event: Event, now: float) -> bool:
        """Returns whether the journal holds what the event says: False for a move that was rejected."""
        state = self.states[job]
        try:
            after, effects = advance(state, event, now)
        except UnlistedTransition as error:
            if self.strict:
                raise
            self._quarantine(state, event, str(error), now)
            return False
        if after is state or after == state:
            return True  # fenced (a message of an older attempt), or known already: nothing to record
        machine = _machine_of(state, event)
        self.pools = note_pools(self.pools, event, machine, now)
        if self.sights is not None:
            self._sighted(self.sights.answer(event, machine, now))
        self._record(after, event, now)
        for effect in effects:
            if isinstance(effect, SendOrders):
                self._outcome.orders[effect.instance] = job
        return True

    def _record(self, after: JobState, event: Event, now: float) -> None:
        self.states[after.id] = after
        self._count_inflight(after)
        self._outcome.lines.append(Line(after.id, event, now))
        self._outcome.touched.add(after.id)

    def _quarantine(self, state: JobState, event: Event, text: str, now: float) -> None:
        """The loop goes on for all others; this job stays as it is, with a visible reason."""
        if state.quarantined == text:
            return
        rejected = Rejected(type(event).__name__, state.phase.value, text)
        self._record(transition(state, rejected, now), rejected, now)

    def _plan(self, job: JobId, now: float) -> None:
        for _ in range(_ROUNDS):
            self.wakes.pop(job, None)
            state = self.states[job]
            decision = plan(self._snapshot((state,)), now, Random(self._seed(state)))[0]
            if not self._carry_out(state, decision, now):
                continue  # quarantined: the job has to say so
            if decision.wake_at is None:
                return
            if decision.wake_at > now:
                self.wakes[job] = decision.wake_at
                return
        self.wakes[job] = now + 1.0

    def _carry_out(self, state: JobState, decision: Decision, now: float) -> bool:
        """Records the decision and hands its effects over; whether the journal holds all of it."""
        whole = True
        if worth_recording(state, decision):
            whole = self._apply(state.id, decision.record, now)
        for effect in decision.effects:
            if isinstance(effect, SendOrders):
                continue
            recorded = self._apply(state.id, effect.event, now)
            whole = whole and recorded
            if recorded and isinstance(effect, Launch | Terminate | EnsureVolume | DeleteVolume):
                self._outcome.effects.append(effect)
        return whole

    def _snapshot(self, jobs: Sequence[JobState]) -> Snapshot:
        inflight: dict[Pool, int] = {}
        for counts in self._inflight.values():
            for pool, count in counts.items():
                inflight[pool] = inflight.get(pool, 0) + count
        return Snapshot(
            deployment=self.deployment,
            jobs=jobs,
            offers=self.market.offers,
            pools=self.pools,
            heard=self.market.heard,
            shared_folders=self.market.shared_folders,
            inflight=inflight,
            selectors=self.selectors,
            settings=self.settings,
            digest=self.market.digest,
        )

    def _may_move(self, state: JobState) -> bool:
        if state.phase is not JobPhase.RUNNING:
            return False
        return is_mover(self.selectors.get(policy_of(state, self.market.heard)))

    def _held(self) -> dict[Pool, int]:
        """Spot machines of all jobs that nobody is about to take back, by pool."""
        held: dict[Pool, int] = {}
        for state in self.states.values():
            for m in state.instances.values():
                if can_run_dry(m.offer.market) and m.instance is not None and not m.doomed:
                    held[m.offer.pool] = held.get(m.offer.pool, 0) + 1
        return held

    def _seed(self, state: JobState) -> str:
        return f"{self.deployment}/{state.id}/{state.decisions}"

    def _count_inflight(self, state: JobState) -> None:
        counts: dict[Pool, int] = {}
        for machine in state.instances.values():
            if machine.phase is InstancePhase.LAUNCHING:
                counts[machine.offer.pool] = counts.get(machine.offer.pool, 0) + 1
        if counts:
            self._inflight[state.id] = counts
        else:
            self._inflight.pop(state.id, None)


def _machine_of(state: JobState, event: Event) -> InstanceState | None:
    token = getattr(event, "token", None)
    if token is not None:
        return state.instances.get(token)
    instance = getattr(event, "instance", None)
    return None if instance is None else state.by_instance(instance)


def _asked(event: Event) -> str:
    return type(event).__name__.removesuffix("Requested").lower()


def at_rest(state: JobState) -> bool:
    """Nothing can happen to the job any more by itself: it ended, nothing of it bills, every cause is settled."""
    return (
        state.phase.ended
        and not any(m.alive for m in state.instances.values())
        and all(v.deleted_at is not None or not v.deleting for v in state.volumes.values())
        and all(a.settled_at is not None for a in state.attempts)
    )
