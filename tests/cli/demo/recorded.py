"""A small journal of a two-node job, made by hand: one machine is taken, one attempt follows, the job succeeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.cli.demo import evidence
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.codec import to_dict
from everstep.model.events import (
    CauseSettled,
    CheckpointSaved,
    Event,
    InstanceEnded,
    InstanceJoined,
    InstanceReady,
    JobSubmitted,
    LaunchIntended,
    LaunchSucceeded,
    NoticeReceived,
    OutputsStored,
    PeersChecked,
    ProgressSeen,
    RanksEnded,
    RanksStarted,
    Restored,
    TerminateIntended,
)
from everstep.model.gang import Gang, Slot, SlotGroup
from everstep.model.handshake import OUTCOME_FAILED, OUTCOME_OK
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.offers import BillingRule, MachineRequirement, MachineType, Market, Offer
from everstep.model.task import Task

ZERO = 1_900_000_000.0
RULE = BillingRule(granularity_s=1.0, minimum_s=60.0, time_scale=360.0)
SPOT = Offer(
    provider="local",
    region="harbour",
    zone="harbour-a",
    machine=MachineType("gpu.large", "V100", 1, 8, 61),
    market=Market.SPOT,
    price_usd_per_h=1.0,
    on_demand_usd_per_h=3.0,
    price_as_of=ZERO,
    price_source="trace",
    billing=RULE,
)
ON_DEMAND = replace(SPOT, market=Market.ON_DEMAND, price_usd_per_h=3.0, price_source="list")
TASK = Task(name="charlm", run="x", gang=Gang((SlotGroup("worker", MachineRequirement(), 2, ranks_per_node=1),)))

ACTS = (
    {"at": ZERO + 29, "step": 190, "what": "a child lost with notice", "target": "i-2"},
    {"at": ZERO + 35, "step": 200, "what": "the server killed with -9", "target": "server"},
)


def launch(number: int, slot: int, at: float, offer: Offer) -> list[tuple[float, Event]]:
    """Machine ``i-<number>`` from intent to ready, in three seconds."""
    instance, token = InstanceId(f"i-{number}"), LaunchToken(f"ev{number}")
    return [
        (at, LaunchIntended(token, number, Slot(0, slot), offer, None)),
        (at, LaunchSucceeded(token, instance, at, offer.price_usd_per_h)),
        (at + 1, InstanceJoined(instance, f"127.0.0.{number}", 1000)),
        (at + 3, InstanceReady(instance, 2000)),
    ]


def attempt(number: int, members: tuple[int, int], at: float, base: str | None) -> list[tuple[float, Event]]:
    """Attempt ``number`` from its check to its first step, in four seconds."""
    ids = [InstanceId(f"i-{n}") for n in members]
    return [
        *((at, PeersChecked(i, number)) for i in ids),
        *((at + 1, RanksStarted(i, number, 1, at + 1)) for i in ids),
        (at + 3, Restored(ids[0], number, base, 0.1)),
        (at + 4, ProgressSeen(ids[0], number, int(base.partition(":")[2]) + 1 if base else 1, 400, at + 4)),
    ]


def events() -> list[tuple[float, Event]]:
    """What happened."""
    z = ZERO
    first, second, third = (InstanceId(f"i-{n}") for n in (1, 2, 3))
    return [
        (z, JobSubmitted(JobId("j-demo0001"), TASK, "ann", "default")),
        *launch(1, 0, z, SPOT),
        *launch(2, 1, z, SPOT),
        *attempt(1, (1, 2), z + 4, None),
        (z + 20, CheckpointSaved(first, 1, 150)),
        (z + 30, NoticeReceived(second, NoticeKind.TERMINATE, z + 38)),
        (z + 31, CheckpointSaved(first, 1, 200)),
        *launch(3, 1, z + 31, ON_DEMAND),
        (z + 38, InstanceEnded(second, z + 38, InstanceEnd.PREEMPTED)),
        (z + 38, RanksEnded(first, 1, OUTCOME_FAILED, 1, None, 0, 210, 400, z + 8, z + 37, 210, 1.0)),
        (z + 38, CauseSettled(1, Cause.PREEMPTION, "i-2 was taken back")),
        *attempt(2, (1, 3), z + 39, "1:200"),
        (z + 73, RanksEnded(first, 2, OUTCOME_OK, 0, None, None, 400, 400, z + 43, z + 73, 200, 0.5)),
        (z + 73, RanksEnded(third, 2, OUTCOME_OK, 0, None, None, 400, 400, z + 43, z + 73, 200, 0.5)),
        (z + 74, OutputsStored(first, 1, 10)),
        (z + 74, OutputsStored(third, 0, 0)),
        (z + 74, TerminateIntended(first, "the job is over")),
        (z + 74, TerminateIntended(third, "the job is over")),
        (z + 75, InstanceEnded(first, z + 75, InstanceEnd.OWNER)),
        (z + 75, InstanceEnded(third, z + 75, InstanceEnd.OWNER)),
    ]


def journal() -> list[dict[str, Any]]:
    """The export of it."""
    return [
        {"version": n, "at": at, "kind": type(event).__name__, "text": "", "body": to_dict(event)}
        for n, (at, event) in enumerate(events(), start=1)
    ]


def meter() -> list[dict[str, Any]]:
    """What a meter charges for it, worked out by hand: hours of the market = seconds / 10."""
    rows = (("i-1", 0.0, 75.0, 1.0), ("i-2", 0.0, 38.0, 1.0), ("i-3", 31.0, 75.0, 3.0))
    return [
        {"kind": "compute", "resource": i, "start": ZERO + a, "end": ZERO + b, "cost_usd": (b - a) / 10 * price}
        for i, a, b, price in rows
    ]


def write(folder: Path, *, same: bool = True) -> None:
    """Everything of a report but its summary; weights that are the same, or not."""
    import torch

    evidence.write_lines(folder / evidence.JOURNAL, journal())
    evidence.write_lines(folder / evidence.METER, meter())
    evidence.write_lines(folder / evidence.ACTS, ACTS)
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}
    torch.save(weights, folder / evidence.REFERENCE)
    if not same:
        weights["a"][1, 2] = torch.nextafter(weights["a"][1, 2], torch.tensor(9.0))
    torch.save(dict(reversed(weights.items())), folder / evidence.WEIGHTS)
