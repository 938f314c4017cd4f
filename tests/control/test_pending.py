"""Facts on the way are not told again, however often somebody looks."""

from __future__ import annotations

import asyncio
from typing import Any

from everstep.control.clock import SystemClock
from everstep.control.pending import Pending
from everstep.control.telemetry import Telemetry
from everstep.control.watch import Watch
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.events import Event, InstanceEnded, InstanceHeard, LaunchSucceeded, NoticeReceived
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import JobState
from everstep.ports import Notice
from tests.brain.making import DEPLOYMENT, JOB, fold, fresh, machine, running
from tests.control import test_watch as sweeps

ME = InstanceId("i-1")


class Slow(sweeps.Known):
    """A controller whose journal is behind."""

    def __init__(self, state: JobState) -> None:
        super().__init__(state)
        self.open: list[asyncio.Future[None]] = []

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        super().put(job, event)
        self.open.append(asyncio.get_running_loop().create_future())
        return self.open[-1]


def watched(known: Slow) -> tuple[sweeps.Vendor, Watch]:
    vendor = sweeps.Vendor()
    telemetry = Telemetry({})
    made: Any = Watch  # the vendor is as much of a provider as a sweep asks for
    watch: Watch = made(vendor, deployment=DEPLOYMENT, known=known, clock=SystemClock(), telemetry=telemetry)
    return vendor, watch


async def test_a_fact_is_told_again_only_once_it_was_taken_in() -> None:
    told: list[tuple[JobId, Event]] = []
    open_: list[asyncio.Future[None]] = []

    def put(job: JobId, event: Event) -> asyncio.Future[None]:
        told.append((job, event))
        open_.append(asyncio.get_running_loop().create_future())
        return open_[-1]

    pending, other = Pending(put), JobId("j-other")
    for _ in range(3):
        pending.tell(JOB, InstanceHeard(ME), ME)
        pending.tell(other, InstanceHeard(ME), ME)
        pending.tell(JOB, InstanceHeard(InstanceId("i-2")), "i-2")
    assert len(told) == len(pending) == 3
    open_[0].set_result(None)
    open_[1].cancel()
    open_[2].set_exception(RuntimeError("no"))
    assert len(pending) == 0
    pending.tell(JOB, InstanceHeard(ME), ME)
    assert len(told) == 4
    for n in range(1000):
        pending.tell(JOB, InstanceHeard(ME), n)
        open_[-1].set_result(None)
    assert len(pending) == 1
    assert len(pending._open) < 200, "what was taken in is forgotten"
    assert isinstance(open_[2].exception(), RuntimeError)


async def test_sweeps_do_not_fill_the_inbox_while_the_journal_waits() -> None:
    known = Slow(running())
    vendor, watch = watched(known)
    vendor.rows = [sweeps.row(alive=False, ended_at=9.0, end=InstanceEnd.PREEMPTED)]
    vendor.warnings = [Notice(ME, NoticeKind.TERMINATE, 50.0)]
    for _ in range(20):
        await watch.poll()
    assert [type(event) for event in known.told] == [InstanceEnded, NoticeReceived]
    vendor.warnings = [Notice(ME, NoticeKind.TERMINATE, 40.0)]
    await watch.poll()
    assert known.told[2:] == [NoticeReceived(ME, NoticeKind.TERMINATE, 40.0, "provider")], "another deadline is news"


async def test_a_sweep_tells_again_what_was_dropped() -> None:
    known = Slow(fold(fresh(), machine(1)[:1]))
    vendor, watch = watched(known)
    vendor.rows = [sweeps.row()]
    await watch.poll()
    await watch.poll()
    assert [type(event) for event in known.told] == [LaunchSucceeded]
    known.open[0].set_result(None)  # and yet the state is as it was
    await watch.poll()
    assert [type(event) for event in known.told] == [LaunchSucceeded] * 2
