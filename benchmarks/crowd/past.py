"""A journal as a server leaves it behind after many jobs, written by the real kernel in a time of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.crowd.cloud import Cloud, machine_type
from everstep.client.home import Home
from everstep.control.book import Book
from everstep.control.journal import Journal
from everstep.control.kernel import Kernel
from everstep.model import events as ev
from everstep.model.causes import InstanceEnd
from everstep.model.effects import Launch, Terminate
from everstep.model.gang import Gang, SlotGroup
from everstep.model.handshake import OUTCOME_OK
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import InstanceState
from everstep.model.offers import MachineRequirement
from everstep.model.task import Task
from everstep.ports import OfferQuery
from everstep.server import installation
from everstep.store.registry import open_store

_SAVES = 10
_TOGETHER = 50


class _Clock:
    """Moves when it is told to."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class Past:
    """Writes the journal of one installation.

    Args:
        home: its folder.
        nodes: machines of each job.
    """

    def __init__(self, home: Path, *, nodes: int) -> None:
        self._deployment = installation.deployment(Home(home))
        self._nodes = nodes
        self._clock = _Clock(time.time() - 100_000.0)
        self._kernel = Kernel(self._deployment, strict=True)
        self._book = Book(self._kernel.states)
        self._store = open_store(f"sqlite:///{home / 'journal.db'}")
        # The name under which the server will take the lease: it need not wait for ours to run out.
        self._journal = Journal(self._store, clock=self._clock, holder=f"lock/{self._deployment}")
        self._jobs = 0

    async def write(self, *, finished: int, live: int, after_snapshot: int) -> list[dict[str, Any]]:
        """Jobs that ended, jobs that train on, a snapshot, and so many lines after it; gives the machines alive."""
        await self._journal.lease()
        cloud = Cloud("")
        self._kernel.market.set_offers(await cloud.offers(OfferQuery()))
        self._kernel.market.shared_folders.update({o.zone: f"/shared/{o.zone}" for o in self._kernel.market.offers})
        for begin in range(0, finished, _TOGETHER):
            await self._wave(min(_TOGETHER, finished - begin), ends=True)
        jobs = [
            job
            for begin in range(0, live, _TOGETHER)
            for job in await self._wave(min(_TOGETHER, live - begin), ends=False)
        ]
        await self._journal.close(self._kernel, self._book)
        for number in range(after_snapshot if jobs else 0):
            self._save(jobs[number % len(jobs)], step=1000 + number)
            if number % _TOGETHER == 0:
                await self._flush()
        await self._flush()
        await self._store.close()
        return [self._machine(job, m) for job in jobs for m in self._kernel.states[job].instances.values()]

    async def _wave(self, count: int, *, ends: bool) -> list[JobId]:
        """Jobs that live through the same at the same time, so that they share transactions."""
        jobs = [self._submit() for _ in range(count)]
        await self._flush()
        for job in jobs:
            machines = [m.instance for m in self._kernel.states[job].instances.values() if m.instance is not None]
            for told in (self._joined, self._ready, self._checked, self._started):
                for instance in machines:
                    self._tell(job, told(instance))
            self._tell(job, ev.Restored(machines[0], 1, None, 0.5))
            self._tell(job, ev.ProgressSeen(machines[0], 1, 1, 1000, self._clock.now()))
            for step in range(_SAVES):
                self._save(job, step=100 * step)
            for instance in machines if ends else ():
                through = ev.RanksEnded(instance, 1, OUTCOME_OK, 0, None, None, 1000, 1000, None, None, 1000, 0.0, "")
                self._tell(job, through)
            for instance in machines if ends else ():
                self._tell(job, ev.ShutdownReported(instance, "normal"))
        await self._flush()
        return jobs

    def _submit(self) -> JobId:
        self._jobs += 1
        # A pool gives no more than so many machines a minute.
        self._clock.at += 1.0
        job = JobId(f"j-{self._jobs:08d}")
        group = SlotGroup("worker", MachineRequirement(machine_types=(machine_type(self._jobs),)), self._nodes)
        task = Task(name=f"task-{self._jobs}", policy="rotate", run="torchrun train.py", gang=Gang((group,)))
        self._kernel.submit(ev.JobSubmitted(job, task, "default", "default"), self._clock.now())
        return job

    def _tell(self, job: JobId, event: ev.Event) -> None:
        self._clock.at += 0.05
        self._kernel.handle(job, event, self._clock.now())

    def _save(self, job: JobId, *, step: int) -> None:
        master = next(iter(self._kernel.states[job].instances.values()))
        assert master.instance is not None
        self._tell(job, ev.CheckpointSaved(master.instance, 1, step, 1 << 30, 0.5, 0.01, True))

    def _joined(self, instance: InstanceId) -> ev.Event:
        return ev.InstanceJoined(instance, "10.0.0.1", 7000, 1, "past", self._clock.now())

    def _ready(self, instance: InstanceId) -> ev.Event:
        return ev.InstanceReady(instance, 29500, 0.1)

    def _checked(self, instance: InstanceId) -> ev.Event:
        return ev.PeersChecked(instance, 1, ())

    def _started(self, instance: InstanceId) -> ev.Event:
        return ev.RanksStarted(instance, 1, 1, self._clock.now())

    async def _flush(self) -> None:
        """Writes what was decided, and lets the cloud do it."""
        while (outcome := self._kernel.take()).lines:
            await self._journal.write(outcome)
            now = self._clock.now()
            for effect in outcome.effects:
                if isinstance(effect, Launch):
                    instance = InstanceId(f"i-{effect.event.token[-20:]}")
                    price = effect.event.offer.price_usd_per_h
                    self._kernel.handle(effect.job, ev.LaunchSucceeded(effect.event.token, instance, now, price), now)
                elif isinstance(effect, Terminate):
                    gone = ev.InstanceEnded(effect.event.instance, now, InstanceEnd.OWNER, None, None)
                    self._kernel.handle(effect.job, gone, now)
            self._put_away(outcome.touched)

    def _put_away(self, jobs: Sequence[JobId] | set[JobId]) -> None:
        for job in jobs:
            state = self._kernel.states.get(job)
            if state is not None and state.phase.ended and not any(m.alive for m in state.instances.values()):
                self._book.put_away(self._kernel.drop(job))

    def _machine(self, job: JobId, m: InstanceState) -> dict[str, Any]:
        return {
            "id": m.instance, "deployment": self._deployment, "job": job, "launch_no": m.launch_no, "token": m.token,
            "zone": m.offer.zone, "machine_type": m.offer.machine.name, "market": m.offer.market.value,
            "started_at": m.started_at, "price_usd_per_h": m.price_usd_per_h,
        }  # fmt: skip
