"""Jobs as people and programs see them: from the state, the telemetry and the bill to the types of
``everstep.client.results``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from everstep.client import results as r
from everstep.model.codec import to_dict
from everstep.model.events import Decided, decode
from everstep.model.ids import InstanceId, JobId
from everstep.model.job import AttemptState, InstancePhase, InstanceState, JobState
from everstep.model.ledger import LedgerLine
from everstep.model.offers import Offer
from everstep.ports import ProviderResource, Record
from everstep.server.checkpoints import checkpoints
from everstep.server.live import Bill, BillAccount, LiveController, Seen
from everstep.server.texts import said, text_of, utc


@dataclass(frozen=True, slots=True)
class _Kept:
    view: r.JobView
    cost: r.JobCost


_ENDED_KEPT = 5_000


class Views:
    """Makes views.

    Those of a few thousand ended jobs are kept: getting their state means unpacking it, and they change only on
    request.
    """

    def __init__(self, controller: LiveController, bill: Bill) -> None:
        self._controller = controller
        self._bill = bill
        self._ended: dict[JobId, _Kept] = {}

    def job(self, state: JobState, now: float) -> r.JobView:
        """The line of a job."""
        return self._both(state, now).view

    def forget(self, job: JobId) -> None:
        """Somebody asks something of the job: what was kept of it may be out of date."""
        self._ended.pop(job, None)

    async def all(self, now: float, *, limit: int | None = None) -> AsyncIterator[r.JobView]:
        """Lines of live jobs and of the ``limit`` that ended last, in no order."""
        async for kept in self._all(now, limit):
            yield kept.view

    async def costs(self, now: float, shown: Callable[[r.JobView], bool]) -> r.Costs:
        """The bills of all jobs that may be ``shown``, oldest first."""
        kept = [k async for k in self._all(now, None) if shown(k.view)]
        kept.sort(key=lambda k: (k.view.submitted_at, k.view.job))
        return r.Costs(tuple(k.cost for k in kept), sum(k.cost.cost_usd for k in kept))

    async def _all(self, now: float, limit: int | None) -> AsyncIterator[_Kept]:
        live = {state.id: state for state in self._controller.live_states()}
        ended = [job for job in self._controller.states if job not in live]
        for state in live.values():
            yield self._both(state, now)
        for job in ended[-limit:] if limit is not None else ended:
            kept = self._ended.get(job)
            if kept is None:
                kept = self._both(self._controller.states[job], now)
                # Thousands of jobs may have to be unpacked; the loop that looks after machines goes first.
                await asyncio.sleep(0)
            yield kept

    def _both(self, state: JobState, now: float) -> _Kept:
        kept = self._ended.get(state.id) if state.phase.ended else None
        if kept is None:
            sums = self._bill.account(state, now)
            cost = r.JobCost(state.id, state.task.name, sums.cost_usd, sums.on_demand_cost_usd, sums.saved_fraction)
            kept = _Kept(r.JobView(**self._line(state, sums)), cost)
            # A disk may go on billing after the end of its job: only a bill that stands still is kept.
            if state.phase.ended and not _still_billing(state):
                self._ended[state.id] = kept
                while len(self._ended) > _ENDED_KEPT:
                    del self._ended[next(iter(self._ended))]
        return kept

    def detail(self, state: JobState, now: float) -> r.JobDetail:
        """All about a job."""
        newest = self._newest(state)
        return r.JobDetail(
            **self._line(state, self._bill.account(state, now)),
            attempts=tuple(_attempt(state, a) for a in state.attempts),
            machines=tuple(self._machine(i) for i in state.instances.values()),
            volumes=tuple(
                r.VolumeView(
                    name=v.name,
                    slot=str(v.slot),
                    provider=v.provider,
                    zone=v.zone,
                    size_gib=v.size_gib,
                    volume=v.volume or "",
                    created_at=v.created_at,
                    deleted_at=v.deleted_at,
                )
                for v in state.volumes.values()
            ),
            saves=checkpoints(state),
            metrics=dict(newest.metrics) if newest is not None else {},
            warnings=self._warnings(state),
            keep_until=state.keep_until,
            user_failures=state.user_failures,
            task=to_dict(state.task),
        )

    def account(self, state: JobState, now: float) -> r.AccountView:
        """The bill of a job."""
        sums = self._bill.account(state, now)
        return r.AccountView(
            lines=tuple(line_view(line) for line in sums.lines),
            cost_usd=sums.cost_usd,
            on_demand_cost_usd=sums.on_demand_cost_usd,
            saved_usd=sums.saved_usd,
            saved_fraction=sums.saved_fraction,
            useful_instance_s=sums.useful_instance_s,
            billed_instance_s=sums.billed_instance_s,
            lost_steps=sums.lost_steps,
            overhead={str(k): v for k, v in sums.overhead.items()},
        )

    def _line(self, state: JobState, sums: BillAccount) -> dict[str, Any]:
        alive = [i for i in state.instances.values() if i.alive]
        running = [i for i in alive if i.phase is not InstancePhase.LAUNCHING]
        step, total = self._progress(state)
        return {
            "job": state.id,
            "name": state.task.name,
            "phase": str(state.phase),
            "goal": str(state.goal),
            "since": state.since,
            "submitted_at": state.submitted_at,
            "ended_at": state.ended_at,
            "attempt": state.attempt_no,
            "step": step,
            "total": total,
            "nodes": state.task.gang.size,
            "instances": {"alive": len(alive), "ready": sum(i.phase is InstancePhase.READY for i in alive)},
            "market": _market(running),
            "price_usd_per_h": sum(i.price_usd_per_h for i in running),
            "cost_usd": sums.cost_usd,
            "wait": _wait(state, {} if alive else self._controller.troubles),
            "why": state.quarantined or state.why,
            "alarm": state.alarm,
            "exit_code": state.exit_code,
            "user": state.user,
            "project": state.project,
            "preemptions": sums.preemptions,
            "recoveries": sums.recoveries,
        }

    def _warnings(self, state: JobState) -> tuple[str, ...]:
        """What agents of machines that are there warn of, each with its machine."""
        machines = [i.instance for i in state.instances.values() if i.alive and i.instance is not None]
        seen = [(machine, self._controller.observed(machine)) for machine in machines]
        return tuple(f"{machine}: {text}" for machine, s in seen if s is not None for text in s.warnings)

    def _newest(self, state: JobState) -> Seen | None:
        """The telemetry that is furthest on in the current attempt."""
        attempt = state.attempt
        if attempt is None:
            return None
        seen = [
            s
            for token in attempt.members
            if (i := state.instances.get(token)) is not None
            and i.instance is not None
            and (s := self._controller.observed(i.instance)) is not None
            and s.attempt == attempt.no
            and s.step is not None
        ]
        return max(seen, key=lambda s: s.step or 0, default=None)

    def _progress(self, state: JobState) -> tuple[int | None, int | None]:
        known = [(a.step, a.total) for a in reversed(state.attempts) if a.step is not None]
        step, total = known[0] if known else (None, None)
        newest = None if state.phase.ended else self._newest(state)
        attempt = state.attempt
        if newest is not None and newest.step is not None:
            inside = attempt.step if attempt is not None and attempt.step is not None else newest.step
            step, total = max(newest.step, inside), newest.total or total
        return step, total or next((a.total for a in reversed(state.attempts) if a.total), state.task.work.steps)

    def _machine(self, i: InstanceState) -> r.InstanceView:
        seen = self._controller.observed(i.instance) if i.instance is not None else None
        return r.InstanceView(
            token=i.token,
            phase=str(i.phase),
            slot=str(i.slot),
            provider=i.offer.provider,
            zone=i.offer.zone,
            machine_type=i.offer.machine.name,
            market=str(i.offer.market),
            price_usd_per_h=i.price_usd_per_h or i.offer.price_usd_per_h,
            instance=i.instance or "",
            address=i.address,
            gpus=i.gpus,
            intended_at=i.intended_at,
            started_at=i.started_at,
            joined_at=i.joined_at,
            ready_at=i.ready_at,
            ended_at=i.ended_at,
            end=str(i.end) if i.end is not None else "",
            notice=str(i.notice) if i.notice is not None else "",
            notice_deadline=i.notice_deadline,
            silent=i.silent,
            last_heard=seen.last_heard if seen is not None else None,
            leave_reason=i.leave_reason,
            failure=i.failure or i.refusal,
        )


def event_view(record: Record) -> r.EventView:
    """A line of the journal. A kind that this version does not know is shown as it is."""
    try:
        text = text_of(decode(record.kind, record.body))
    except (KeyError, TypeError, ValueError):
        text = f"{record.kind} (of another version of everstep)"
    return r.EventView(record.version, record.at, record.kind, text, dict(record.body))


def decision_view(record: Record) -> r.DecisionView:
    """A ``Decided`` of the journal."""
    decided = decode(record.kind, record.body)
    assert isinstance(decided, Decided)
    return r.DecisionView(
        at=record.at,
        effects=tuple(map(said, decided.effects)),
        candidates=tuple(r.CandidateView(c.what, c.price_usd_per_h, c.score, c.verdict) for c in decided.candidates),
        reasons=tuple(map(said, decided.reasons)),
        inputs=decided.inputs,
        wait=said(decided.wait),
        wake_at=decided.wake_at,
    )


def offer_view(offer: Offer) -> r.OfferView:
    """An offer."""
    return r.OfferView(
        provider=offer.provider,
        region=offer.region,
        zone=offer.zone,
        machine_type=offer.machine.name,
        market=str(offer.market),
        accelerator=offer.machine.accelerator,
        accelerator_count=offer.machine.accelerator_count,
        cpus=offer.machine.cpus,
        memory_gib=offer.machine.memory_gib,
        price_usd_per_h=offer.price_usd_per_h,
        on_demand_usd_per_h=offer.on_demand_usd_per_h,
        as_of=offer.price_as_of,
        source=offer.price_source,
        available=offer.available,
        bound=offer.bound,
        advice=offer.advice,
        advice_as_of=offer.advice_as_of,
    )


def line_view(line: LedgerLine) -> r.LineView:
    """A line of a bill."""
    data = to_dict(line)
    return r.LineView(**{f.name: data[f.name] for f in fields(r.LineView)})


def unknown_view(resource: ProviderResource) -> r.UnknownView:
    """A resource that the journal does not know."""
    return r.UnknownView(
        kind=str(resource.kind),
        id=resource.id,
        zone=resource.zone,
        machine_type=resource.machine_type,
        market=str(resource.market),
        job=resource.job,
        started_at=resource.started_at,
        price_usd_per_h=resource.price_usd_per_h,
        size_gib=resource.size_gib,
    )


def node_of(state: JobState, attempt: int, instance: InstanceId) -> int:
    """Place of a machine in an attempt: its node rank, else (set-up, which precedes attempts) the place of its slot."""
    machine = state.by_instance(instance)
    if machine is None:
        return 0
    for a in state.attempts:
        if a.no == attempt and machine.token in a.members:
            return a.members.index(machine.token)
    return machine.slot.index


def _attempt(state: JobState, a: AttemptState) -> r.AttemptView:
    members = (state.instances.get(token) for token in a.members)
    return r.AttemptView(
        attempt=a.no,
        phase=str(a.phase),
        begun_at=a.begun_at,
        members=tuple((m.instance or "") if m is not None else "" for m in members),
        base=a.base,
        spawned_at=a.spawned_at,
        restored_at=a.restored_at,
        first_step_at=a.first_step_at,
        last_step_at=a.last_step_at,
        ended_at=a.ended_at,
        step=a.step,
        steps_done=a.steps_done,
        cause=str(a.cause) if a.ended_at is not None else "",
        evidence=a.evidence,
        rc=a.rc,
        tail=a.tail,
        hint=a.hint,
        audit=a.audit.text or f"audit of save {a.audit.save}: {a.audit.verdict}" if a.audit is not None else "",
    )


def _wait(state: JobState, troubles: Mapping[str, str]) -> str:
    """What the job waits for; kept machines cost, and are to be seen in every list.

    Args:
        troubles: why providers offer nothing at the moment, by name.
    """
    if state.keep_until is not None:
        return f"cancel, or {utc(state.keep_until)}: its machines are kept for debugging"
    if not state.wait or not troubles:
        return state.wait
    return f"{state.wait} ({'; '.join(f'{name}: {text}' for name, text in sorted(troubles.items()))})"


def _market(machines: Sequence[InstanceState]) -> str:
    markets = {str(i.offer.market) for i in machines}
    return "mixed" if len(markets) > 1 else next(iter(markets), "")


def _still_billing(state: JobState) -> bool:
    machines = any(i.alive for i in state.instances.values())
    return machines or any(v.created_at is not None and v.deleted_at is None for v in state.volumes.values())
