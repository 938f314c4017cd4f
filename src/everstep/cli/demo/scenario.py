"""What the demo trains, on what cloud, and what goes wrong when. Pure: text and numbers, nothing is done here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SCRIPT, DATA = "charlm.py", "data/apache-2.0.txt"
WEIGHTS = "weights.pt"
NODES = 2

TRACE_HOUR_S = 10.0
"""One hour of the traces in so many seconds of the clock."""
_TICK_S = 600.0
DROUGHT_AT_H, DROUGHT_END_H, _TRACE_H = 11.0, 32.0, 38.0
"""From the first launch, in hours of the trace: when all spot capacity of all zones goes, and when it is back."""

DROUGHT_AT_S = DROUGHT_AT_H * TRACE_HOUR_S
USEFUL_S = 130.0
"""Training time aimed at: long enough to live through the drought and for what losses cost to be a small part of it,
short enough for a run of three minutes."""
_PACE = 1.3
"""How long a step of the demo lasts, against one measured beforehand. Servers and agents share the computer with the
ranks, and it is faster in one minute than in the next: with room to spare, training lasts as long as aimed at."""
LONGEST_S = 420.0
"""A run that takes longer than this is given up."""


class Kind(StrEnum):
    """The faults that are issued on command; the drought is in the traces."""

    CHILD = "a child lost with notice"
    MASTER = "the master lost with notice"
    SERVER = "the server killed with -9"
    NODE = "a node lost without notice"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something to break once so many of all steps are done, and the gang trains."""

    kind: Kind
    at_fraction: float


FAULTS = (
    Fault(Kind.CHILD, 0.09),
    Fault(Kind.SERVER, 0.20),
    Fault(Kind.MASTER, 0.31),
    Fault(Kind.NODE, 0.44),
)
DROUGHT = "a drought: every spot machine is taken back, none is to be had"
SERVER_AWAY_S = 3.0
"""Between the server's end and its next start."""


def next_fault(done: int, step: int | None, total: int | None, *, under_way: bool) -> Fault | None:
    """The fault that is due.

    Args:
        done: how many faults were issued.
        step, total: where training is, None if not known.
        under_way: the current attempt has done a step: the fault before it has been got over.
    """
    if done >= len(FAULTS) or not under_way or step is None or not total:
        return None
    fault = FAULTS[done]
    return fault if step >= fault.at_fraction * total else None


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained: how many steps, and how many seconds each of them takes at least."""

    steps: int
    step_s: float


def training(measured_step_s: float) -> Training:
    """A round number of steps that last ``USEFUL_S``, where one took ``measured_step_s`` with nothing else to do."""
    step_s = measured_step_s * _PACE
    return Training(max(round(USEFUL_S / step_s / 20) * 20, 100), step_s)


# --- The cloud -------------------------------------------------------------------------------------------------------

ZONES = ("harbour-a", "harbour-b", "meadow-a")
_REGIONS = {"harbour-a": "harbour", "harbour-b": "harbour", "meadow-a": "meadow"}
_ON_DEMAND_USD_PER_H = 3.06
#: Spot price by hour of the trace, USD; the three zones differ, and none is the cheapest all the time.
_PRICES = {
    "harbour-a": (0.92, 0.95, 0.99, 1.04, 1.10, 1.08, 1.02),
    "harbour-b": (1.01, 0.98, 0.96, 0.97, 1.00, 1.06, 1.12),
    "meadow-a": (1.15, 1.12, 1.09, 1.07, 1.05, 1.03, 1.02),
}
_AVAILABLE = {"harbour-a": (4, 3, 4, 5, 3), "harbour-b": (3, 4, 3, 4, 5), "meadow-a": (5, 4, 4, 3, 4)}

BOX_YAML = f"""\
# The demo's cloud: three zones in two regions, GPUs that are not there.
# One hour of the traces takes {TRACE_HOUR_S:g} seconds.
trace_hour_s: {TRACE_HOUR_S:g}
trace_start: first_launch
boot_s: 1
notice_s: 8
stop_grace_s: 3
billing: {{granularity_s: 1, minimum_s: 60}}
machines:
  gpu.large:
    cpus: 8
    memory_gib: 61
    accelerator: V100
    accelerator_count: 1
    prices: {{on_demand: {_ON_DEMAND_USD_PER_H}}}
zones:
""" + "".join(f"  {zone}: {{region: {_REGIONS[zone]}, spot: {{trace: {zone}.json}}}}\n" for zone in ZONES)


def traces() -> dict[str, str]:
    """The traces by file name, in the format of the public ones: per tick, how many machines and at what price."""
    ticks = int(_TRACE_H * 3600 / _TICK_S)
    found = {}
    for zone in ZONES:
        available, prices = [], []
        for tick in range(ticks):
            hour = tick * _TICK_S / 3600
            dry = DROUGHT_AT_H <= hour < DROUGHT_END_H
            available.append(0 if dry else _at(_AVAILABLE[zone], hour))
            prices.append(_at(_PRICES[zone], hour))
        metadata = {"gap_seconds": _TICK_S, "zone": zone, "made_for": "everstep demo", "capacity": max(available)}
        found[f"{zone}.json"] = json.dumps({"metadata": metadata, "data": available, "prices": prices})
    return found


def _at(values: Sequence[float], hour: float) -> float:
    return values[int(hour) % len(values)]


# --- The task --------------------------------------------------------------------------------------------------------


def task_yaml(work: Training, python: str) -> str:
    """The demo's task file.

    Args:
        work: how many steps, and how long they last.
        python: the Python to train with.
    """
    command = f"{shlex.quote(python)} {SCRIPT} --steps {work.steps} --step-s {work.step_s:.4f} --out {WEIGHTS}"
    return f"""\
# Two nodes, one rank on each. Spot is not mentioned, so the selector chooses between spot and on-demand.
name: charlm
num_nodes: {NODES}
workdir: .
resources: {{accelerators: V100, ranks_per_node: 1}}
recovery: {{cooldown: 20s}}
work: {{steps: {work.steps}}}
outputs: [{WEIGHTS}]
stop_grace: 5s
run: |
  {command}
"""
