"""The heap driver: the kernel, the desk, the doer and the watch of the live loop, in virtual time.

What differs from ``control.controller`` is the loop itself: no inbox that fills while something is written, no tasks,
no waiting. For the same world both drivers must write the same journal (``tests/parity``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from everstep.brain.lifecycle import orders
from everstep.brain.select import Selector
from everstep.control.agents import AgentDesk
from everstep.control.doer import Doer
from everstep.control.kernel import Kernel, Line, Outcome, at_rest
from everstep.control.options import Options
from everstep.control.telemetry import Telemetry
from everstep.model import handshake as h
from everstep.model.effects import DeleteVolume, Terminate
from everstep.model.errors import Conflict, NotFound
from everstep.model.events import Event, JobSubmitted, TerminateIntended, VolumeDeleteIntended
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, VolumeId
from everstep.model.job import InstanceState, JobState
from everstep.ports import Provider
from everstep.sim.lookout import Lookout
from everstep.sim.strand import Promise, Timeline

_NO_KEY = b"simulated"


class Engine:
    """Runs jobs against providers in virtual time, deterministically.

    Providers and agents are ordinary: they are given ``timeline`` as their clock and may wait for nothing else.

    Args:
        providers: by name.
        deployment: goes into every token and every seed.
        start: UTC seconds.
        strict: raise on a move that no table lists instead of quarantining the job.
        timeline: instead of a new one that begins at ``start``.
        kernel: instead of a new one, for example one that records.
        lookout: how providers and market are followed.

    Attributes:
        timeline: the clock; also where worlds plan what happens.
        desk: where agents report. Give it a ``send`` of your own to hear of orders.
        journal: every line, in order.
        ended: jobs that have come to rest.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        deployment: DeploymentId,
        start: float = 0.0,
        options: Options | None = None,
        selectors: Mapping[str, Selector] | None = None,
        strict: bool = True,
        timeline: Timeline | None = None,
        kernel: Kernel | None = None,
        lookout: type[Lookout] = Lookout,
    ) -> None:
        """See the class."""
        self.timeline = timeline or Timeline(start)
        self.options = options or Options()
        self.kernel = kernel or Kernel(deployment, settings=self.options.settings, selectors=selectors, strict=strict)
        self.journal: list[Line] = []
        self.ended: dict[JobId, JobState] = {}
        self.troubles: dict[str, str] = {}
        self._inbox: deque[tuple[JobId, Event, bool, Promise] | None] = deque()
        self._job_of: dict[InstanceId, JobId] = {}
        telemetry = Telemetry(self.kernel.market.heard)
        self._telemetry = telemetry
        self.desk = AgentDesk(
            key=_NO_KEY,
            inbox=self,
            clock=self.timeline,
            telemetry=telemetry,
            lease_s=self.options.lease_s,
            heartbeat_s=self.options.heartbeat_s,
        )
        self.around = lookout(
            providers, deployment=deployment, kernel=self.kernel, known=self, clock=self.timeline, telemetry=telemetry
        )
        self.desk.on_failure = lambda instance: self.around.poll_soon()
        self._doer = Doer(
            deployment=deployment,
            providers=providers,
            clock=self.timeline,
            doings=self,
            spawn=self.timeline.spawn,
        )

    # --- Driving ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes the first look at everything."""
        self.timeline.spawn(self.around.look(), "first look")
        self._turn()
        self.around.begin(self.timeline, self.options)
        self._turn()

    def run(self, until: float) -> None:
        """Lets time pass up to the instant ``until`` (UTC seconds), which is included."""
        self._turn()
        while True:
            happens, wakes = self.timeline.next_at(), self.kernel.next_wake()
            # What happens at an instant is looked at before what was to be thought over at that instant.
            if happens is not None and happens <= until and (wakes is None or happens <= wakes):
                self.timeline.advance()
            elif wakes is not None and wakes <= until:
                self.timeline.advance(wakes)
            else:
                self.timeline.advance(until)
                return
            self._turn()

    def _turn(self) -> None:
        """Everything that follows at this instant."""
        self.timeline.settle()
        while True:
            self._decide()
            self.timeline.settle()
            wakes = self.kernel.next_wake()
            if not self._inbox and (wakes is None or wakes > self.timeline.now()):
                return

    def _decide(self) -> None:
        now = self.timeline.now()
        answers: list[tuple[Promise, Exception | None]] = []
        awakened = set()
        while self._inbox:
            item = self._inbox.popleft()
            if item is None:
                self.kernel.market_moved(now)
                continue
            job, event, asked, promise = item
            try:
                if self._take(job, event, now, asked=asked):
                    awakened.add(job)
                answers.append((promise, None))
            except (NotFound, Conflict) as error:
                answers.append((promise, error if asked else None))
        self.kernel.wake(now)
        outcome = self.kernel.take()
        self.journal.extend(outcome.lines)
        self._carry_out(outcome, awakened)
        for promise, refusal in answers:
            promise.keep(refusal)

    def _take(self, job: JobId, event: Event, now: float, *, asked: bool) -> bool:
        """Hands an event to the kernel; True if an ended job was taken out for it."""
        if isinstance(event, JobSubmitted):
            self.kernel.submit(event, now)
            return False
        ended = self.ended.pop(job, None)
        if ended is not None:
            self.kernel.adopt(ended)
        elif job not in self.kernel.states:
            raise NotFound(f"there is no job {job}")
        try:
            (self.kernel.ask if asked else self.kernel.handle)(job, event, now)
        except Conflict:
            if ended is not None:
                self.ended[job] = self.kernel.drop(job)
            raise
        return ended is not None

    def _carry_out(self, outcome: Outcome, awakened: set[JobId]) -> None:
        self._doer.do(*outcome.effects)
        for instance, job in outcome.orders.items():
            state = self.kernel.states[job]
            machine = state.by_instance(instance)
            if machine is not None:
                self.desk.send(instance, orders(state, machine))
        for job in outcome.touched | awakened:
            self._settle_down(self.kernel.states[job])

    def _settle_down(self, state: JobState) -> None:
        for m in state.instances.values():
            if m.instance is None:
                continue
            if m.alive:
                self._job_of[m.instance] = state.id
            else:
                self._job_of.pop(m.instance, None)
                self.desk.forget(m.instance)
                self._telemetry.forget(m.instance)
        if at_rest(state) and state.id not in self.kernel.wakes:
            self.ended[state.id] = self.kernel.drop(state.id)

    # --- What users ask ---------------------------------------------------------------------------------------------

    def ask(self, job: JobId, event: Event) -> Promise:
        """A user's request; the promise raises NotFound or Conflict if it is refused."""
        promise = Promise(self.timeline)
        self._inbox.append((job, event, True, promise))
        return promise

    # --- What the other parts need ----------------------------------------------------------------------------------

    def put(self, job: JobId, event: Event) -> Promise:
        """Hands a fact over."""
        promise = Promise(self.timeline)
        self._inbox.append((job, event, False, promise))
        return promise

    def look_again(self) -> None:
        """Every job is looked at again, at once."""
        self.kernel.wakes.update(dict.fromkeys(self.kernel.states, self.timeline.now()))

    def market_moved(self) -> None:
        """The offers changed."""
        self._inbox.append(None)

    def state(self, job: JobId) -> JobState | None:
        """The job as it is now, ended ones included."""
        return self.kernel.states.get(job) or self.ended.get(job)

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
        state = self.state(job)
        return 0 if state is None else max(state.attempt_no, state.attempt_floor)

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job a living machine is for."""
        return self._job_of.get(instance)

    def user_data(self, job: JobId, token: LaunchToken) -> Mapping[str, str]:
        """Environment of the agent at boot."""
        return {h.BOOT_SERVER: "", h.BOOT_TOKEN: self.desk.join_token(job, token), h.BOOT_CA_FINGERPRINT: ""}

    def terminate(self, job: JobId, instance: InstanceId) -> None:
        """Ends again a machine that should be gone."""
        self._doer.do(Terminate(job, TerminateIntended(instance, "")))

    def delete_volume(self, job: JobId, volume: VolumeId) -> None:
        """Deletes again a disk that should be gone."""
        self._doer.do(DeleteVolume(job, VolumeDeleteIntended(volume)))

    def trouble(self, provider: str, text: str) -> None:
        """Keeps that a provider makes trouble; an empty text takes it back."""
        if text:
            self.troubles[provider] = text
        else:
            self.troubles.pop(provider, None)
