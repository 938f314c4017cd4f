"""Offers, tasks and states for tests of the brain, small and named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.brain.lifecycle import submitted, transition
from everstep.model.events import (
    Event,
    InstanceJoined,
    InstanceReady,
    JobSubmitted,
    LaunchIntended,
    LaunchSucceeded,
    PeersChecked,
    RanksStarted,
)
from everstep.model.gang import Gang, Slot, SlotGroup, ZoneRule
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken
from everstep.model.job import JobState
from everstep.model.offers import BillingRule, MachineRequirement, MachineType, Market, Offer
from everstep.model.task import Task

DEPLOYMENT = DeploymentId("d-test")
JOB = JobId("j-test0001")
V100 = MachineType("p3.2xlarge", "V100", 1, 8, 61)
BY_SECOND = BillingRule(granularity_s=1.0, minimum_s=0.0)


def offer(
    zone: str = "a",
    market: Market = Market.SPOT,
    price: float = 1.0,
    *,
    on_demand: float = 3.0,
    available: int | None = None,
    billing: BillingRule = BY_SECOND,
    region: str = "r",
) -> Offer:
    return Offer("box", region, zone, V100, market, price, on_demand, 0.0, "test", billing, available)


def task(nodes: int = 1, *, zones: ZoneRule = ZoneRule.ANY, **fields: object) -> Task:
    gang = Gang((SlotGroup("worker", MachineRequirement(), nodes, zones=zones),))
    return replace(Task(name="t", run="true", gang=gang), **fields)  # type: ignore[arg-type]


def fresh(nodes: int = 1, **fields: object) -> JobState:
    """A job that was just submitted, at time 0."""
    return submitted(JobSubmitted(JOB, task(nodes, **fields), "u", "default"), 0.0)  # type: ignore[arg-type]


def fold(state: JobState, events: Iterable[Event], now: float = 0.0) -> JobState:
    """The events, all at one time."""
    for event in events:
        state = transition(state, event, now)
    return state


def machine(n: int, slot: int | None = None, *, on: Offer | None = None, shared: str = "/shared") -> list[Event]:
    """Launch number ``n`` (from 1) up to ready, as instance ``i-n``, for slot ``n - 1`` unless another is named."""
    instance = InstanceId(f"i-{n}")
    leased = on or offer()
    return [
        LaunchIntended(
            LaunchToken(f"t-{n}"), n, Slot(0, n - 1 if slot is None else slot), leased, None, shared_folder=shared
        ),
        LaunchSucceeded(LaunchToken(f"t-{n}"), instance, 0.0, leased.price_usd_per_h),
        InstanceJoined(instance, f"10.0.0.{n}", 7000 + n),
        InstanceReady(instance, 9000 + n, 1.0),
    ]


def prepared(nodes: int = 1, **fields: object) -> JobState:
    """All machines ready: one node runs at once, more are being checked."""
    state = fresh(nodes, **fields)
    for n in range(1, nodes + 1):
        state = fold(state, machine(n))
    return state


def running(nodes: int = 1, **fields: object) -> JobState:
    """Every rank of attempt 1 runs."""
    state = prepared(nodes, **fields)
    if nodes > 1:
        state = fold(state, [PeersChecked(InstanceId(f"i-{n}"), 1) for n in range(1, nodes + 1)])
    return fold(state, [RanksStarted(InstanceId(f"i-{n}"), 1, 1, 0.0) for n in range(1, nodes + 1)])
