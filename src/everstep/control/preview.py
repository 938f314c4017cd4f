"""What would be done with a task now: the production decision on a copy."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from everstep.brain.lifecycle import submitted
from everstep.brain.needs import policy_of
from everstep.brain.plan import Snapshot, plan
from everstep.brain.select import Selector
from everstep.control.kernel import Kernel
from everstep.model.codec import to_dict
from everstep.model.effects import Launch
from everstep.model.errors import BadInput, Problem
from everstep.model.events import JobSubmitted
from everstep.model.ids import JobId
from everstep.model.task import Task


def check_task(task: Task, selectors: Mapping[str, Selector], now: float) -> None:
    """What can only be judged here; raises BadInput.

    Args:
        task: what came in.
        selectors: policies by name.
        now: UTC seconds.
    """
    problems = []
    deadline = task.objective.deadline_at
    if deadline is not None and deadline <= now:
        late = f"the deadline was {now - deadline:.0f} s ago"
        problems.append(Problem("task", "objective.deadline", late, "give a time that is to come"))
    if not task.run and not task.argv:
        problems.append(Problem("task", "run", "there is nothing to run", "give 'run' or a command"))
    if len(task.gang.groups) != 1:
        problems.append(Problem("task", "gang", "gangs of several groups are not acted on yet"))
    if task.policy and task.policy not in selectors:
        problems.append(
            Problem("task", "policy", f"there is no policy '{task.policy}'", f"known: {', '.join(selectors)}")
        )
    if problems:
        raise BadInput(*problems)


def preview(kernel: Kernel, task: Task, now: float) -> dict[str, Any]:
    """The decision for a job that would come in now.

    Returns:
        ``offers`` (one per machine that would be leased), ``choice`` (the first), ``hourly_usd``, ``wait``,
        ``reasons``,
        ``candidates``, ``policy``, ``spot``.
    """
    check_task(task, kernel.selectors, now)
    job = submitted(JobSubmitted(JobId("j-preview"), task, "", ""), now)
    snapshot = Snapshot(
        deployment=kernel.deployment,
        jobs=(job,),
        offers=kernel.market.offers,
        pools=kernel.pools,
        shared_folders=dict.fromkeys((o.zone for o in kernel.market.offers), "preview"),
        selectors=kernel.selectors,
        settings=kernel.settings,
        digest=kernel.market.digest,
    )
    decision = plan(snapshot, now, Random(0))[0]
    offers = [e.event.offer for e in decision.effects if isinstance(e, Launch)]
    return {
        "offers": [to_dict(o) for o in offers],
        "choice": to_dict(offers[0]) if offers else None,
        "hourly_usd": sum(o.price_usd_per_h for o in offers),
        "wait": decision.record.wait,
        "reasons": list(decision.record.reasons),
        "candidates": [to_dict(c) for c in decision.record.candidates],
        "policy": policy_of(job, {}),
        "spot": task.spot.value,
        "warnings": [],
    }
