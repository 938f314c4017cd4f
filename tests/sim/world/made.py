"""Small markets made for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.ids import JobId
from everstep.model.offers import MachineRequirement, MachineType
from everstep.model.task import Objective, Recovery, SpotMode, Task, Work
from everstep.sim.realistic import Entry, World
from everstep.sim.world.conditions import Conditions, Workload
from everstep.sim.world.supply import Lot, Supply

START = 1_000_000.0
JOB = JobId("j-1")
V100 = MachineType("p3.2xlarge", "V100", 1, 8, 61)


def supply(counts: Sequence[int], *, price: float = 1.0, gap_s: float = 600.0, begins_at: float = START) -> Supply:
    return Supply(np.array(counts, dtype=np.int64), None, price, gap_s, begins_at)


def lot(zone: str, counts: Sequence[int], *, region: str = "r1", price: float = 1.0, gap_s: float = 600.0) -> Lot:
    return Lot(zone, region, V100, 3.0, supply(counts, price=price, gap_s=gap_s))


def entry(
    hours: float = 2.0, *, nodes: int = 1, at: float = 10.0, job: JobId = JOB, policy: str = "greedy", **fields: Any
) -> Entry:
    work = Workload(steps=int(hours * 3600))
    group = SlotGroup("worker", MachineRequirement(), nodes, zones=ZoneRule.ANY)
    task = Task(
        name="t",
        run="train",
        gang=Gang((group,)),
        policy=policy,
        spot=fields.pop("spot", SpotMode.AUTO),
        recovery=fields.pop("recovery", Recovery()),
        work=Work(steps=work.steps, hours=hours),
        objective=Objective(deadline_s=fields.pop("deadline_s", None)),
    )
    return Entry(job, task, fields.pop("work", work), START + at)


def world(*lots: Lot, hours: float = 48.0, seed: int = 0, **fields: Any) -> World:
    return World(lots, START, START + hours * 3600.0, seed=seed, **fields)


def flaky(**fields: Any) -> Conditions:
    rough = {"launch_failure": 0.2, "boot_failure": 0.1, "loss_per_h": 0.2, "notice_chance": 0.7, "notice_s": 30.0}
    return Conditions(**{**rough, **fields})
