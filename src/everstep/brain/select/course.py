"""The seam between policies and the worlds they run in: what a policy may know, and what it answers.

A driver (the reference simulator, the realistic one, the live selector) builds a ``Situation``, hands it to
``Policy.steer`` together with the memory the policy gave back last time, lets the safety net (``net.py``) have the last
word, and acts on the ``Course``. A policy keeps no state of its own, so the same object serves every job.

When a policy is called: at each change of a place's spot or price, when a running spot machine is lost, and at the
``wake_at`` of its last course. It may be called more often, and must then answer as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

#: Seconds below which two instants are one: traces and options come as decimal hours.
INSTANT_S = 1e-6

Memory = Hashable | None
"""What a policy learnt: immutable. ``None`` before the first decision of a job."""


class Mode(StrEnum):
    """What a job runs on."""

    IDLE = "idle"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere the job could run: one zone and machine type, or one gang of them.

    Attributes:
        name: unique among the places of a situation.
        region: transfers within a region cost nothing unless ``move_usd`` says otherwise.
        spot_usd_per_h: price of spot now; None = no spot is sold here.
        on_demand_usd_per_h: price of on-demand; None = it is not to be had.
        up: spot can be had now; None = not observed.
        move_usd: what it costs to bring the checkpoint here from where it lies.
        speed: work done per second here; 1 = as the job's work is stated.
        leave_usd: what it costs in the mean to bring the checkpoint from here to another region.
    """

    name: str
    region: str
    spot_usd_per_h: float | None
    on_demand_usd_per_h: float | None
    up: bool | None
    move_usd: float = 0.0
    speed: float = 1.0
    leave_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the job stands on at this instant.

    Attributes:
        mode: what it runs on.
        place: where; None when idle.
        changeover_left_s: how much of the changeover is still unpaid, seconds.
        since_s: when this began.
        lost_from: the place whose spot machine was lost at this very instant, else None.
    """

    mode: Mode = Mode.IDLE
    place: str | None = None
    changeover_left_s: float = 0.0
    since_s: float = 0.0
    lost_from: str | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a policy may know.

    Attributes:
        now_s, began_s, deadline_s: instants on one clock, seconds; the deadline may be infinite.
        work_s: the whole job, seconds of running at speed 1.
        done_s: how much of it is done.
        changeover_s: time each start costs, seconds: billed, no progress.
        tick_s: the world decides and bills in whole ticks of this length; 0 = it does not.
        standing: what the job stands on.
        places: where it could be, always in the same order.
        seed: the only source of chance, the same for the whole job.
    """

    now_s: float
    began_s: float
    deadline_s: float
    work_s: float
    done_s: float
    changeover_s: float
    tick_s: float
    standing: Standing
    places: tuple[Place, ...]
    seed: int = 0

    @property
    def work_left_s(self) -> float:
        """Work that is not done yet, seconds at speed 1."""
        return self.work_s - self.done_s

    @property
    def left_s(self) -> float:
        """Time to the deadline, seconds, whole ticks; negative when it is past."""
        left = self.deadline_s - self.now_s
        if self.tick_s <= 0 or math.isinf(left):
            return left
        return math.floor((left + INSTANT_S) / self.tick_s) * self.tick_s

    @property
    def slack_s(self) -> float:
        """Time left, less work left, less unpaid changeover, seconds."""
        return self.left_s - self.work_left_s - self.standing.changeover_left_s

    def place(self, name: str | None) -> Place | None:
        """The place of that name."""
        for place in self.places:
            if place.name == name:
                return place
        return None


@dataclass(frozen=True, slots=True)
class View:
    """The market at one instant before a job began.

    Attributes:
        now_s: when, on the clock of the job's situations.
        places: as the situations will have them.
    """

    now_s: float
    places: tuple[Place, ...]


class Alternative(NamedTuple):
    """Something that could be done instead.

    Attributes:
        mode, place: the action.
        expected_usd: what the policy expects the rest of the job to cost after it; infinite = not to be had now.
    """

    mode: Mode
    place: str | None
    expected_usd: float


@dataclass(frozen=True, slots=True)
class Course:
    """What a policy chose.

    Attributes:
        mode, place: what to run on from now until the next decision; place is None when idle.
        reason: one line.
        wake_at: the first instant at which the policy would look again although nothing in the world changed.
        memory: what the policy wants to be given next time.
        alternatives: every action that was weighed, the chosen one among them.
        basis: how the expected costs were reckoned, one line.
    """

    mode: Mode
    place: str | None
    reason: str
    wake_at: float = math.inf
    memory: Memory = None
    alternatives: Sequence[Alternative] = ()
    basis: str = ""

    def instead(self, mode: Mode, place: str | None, reason: str) -> Course:
        """This course with another action: what the policy learnt and weighed is kept."""
        return replace(self, mode=mode, place=place, reason=reason, wake_at=math.inf)


class Policy(Protocol):
    """How to steer one job through the market; pure, without state."""

    @property
    def guarded(self) -> bool:
        """Whether the safety net holds this policy to the deadline."""
        ...

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """Chooses what to run on now.

        Args:
            situation: all that may be known.
            memory: ``memory`` of this policy's last course of the same job; None at the first call.
        """
        ...


@runtime_checkable
class Learner(Protocol):
    """A policy that makes use of what was seen of the market before the job began."""

    def recall(self, views: Iterable[View]) -> Memory:
        """The memory to begin with.

        Args:
            views: oldest first: one where the record begins, one at each change of a place's spot or price, none at or
                after the job's beginning. Empty where nothing was seen.
        """
        ...
