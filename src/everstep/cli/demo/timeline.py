"""What happened when, as spans and marks on lanes: what the pictures draw. A function of state and acts alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from everstep.model.job import AttemptState, InstanceState, JobState


class Phase(StrEnum):
    """What a machine was doing."""

    BOOT = "boot"
    SETUP = "set-up"
    IDLE = "waiting"
    RESTORE = "start and restore"
    TRAIN = "training"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on a lane, seconds since the submission."""

    start_s: float
    end_s: float
    phase: Phase


@dataclass(frozen=True, slots=True)
class Lane:
    """One machine.

    Attributes:
        name: its id. market: ``spot`` or ``on-demand``.
        spans: in order, without gaps, from its start to its end.
        notice_s: when it was warned. end: why it ended, as people say it.
    """

    name: str
    zone: str
    market: str
    spans: tuple[Span, ...]
    notice_s: float | None
    end: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was broken (or mended), and when."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The picture without its looks.

    Attributes:
        length_s: from the submission to the end.
        lanes: machines in the order of their launch.
        marks: what was broken.
        curve: (seconds, step): progress, falling back where steps were lost. One tuple per attempt.
    """

    length_s: float
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    curve: tuple[tuple[tuple[float, int], ...], ...]

    @property
    def most_steps(self) -> int:
        """The highest step."""
        return max((step for part in self.curve for _, step in part), default=0)


def timeline(state: JobState, acts: Sequence[Mapping[str, Any]], now: float) -> Timeline:
    """The timeline of a job up to ``now`` (UTC seconds)."""
    zero = state.submitted_at
    end = max([state.ended_at or now, *(m.ended_at for m in state.instances.values() if m.ended_at is not None)])
    machines = sorted((m for m in state.instances.values() if m.started_at is not None), key=lambda m: m.launch_no)
    return Timeline(
        length_s=end - zero,
        lanes=tuple(_lane(m, state, zero, end) for m in machines),
        marks=tuple(Mark(max(float(act["at"]) - zero, 0.0), str(act["what"])) for act in acts),
        curve=tuple(points for a in state.attempts if (points := tuple(_curve(a, zero)))),
    )


def _lane(m: InstanceState, state: JobState, zero: float, end: float) -> Lane:
    assert m.started_at is not None
    gone = m.ended_at if m.ended_at is not None else end
    joined = min(m.joined_at if m.joined_at is not None else gone, gone)
    ready = min(m.ready_at if m.ready_at is not None else gone, gone)
    cuts = [(m.started_at, joined, Phase.BOOT), (joined, ready, Phase.SETUP)]
    at = ready
    for start, until, phase in _work(m, state, gone):
        begin = max(start, at)
        cuts += [(at, begin, Phase.IDLE), (begin, max(until, begin), phase)]
        at = max(until, begin)
    cuts.append((at, gone, Phase.IDLE))
    spans = tuple(Span(a - zero, b - zero, phase) for a, b, phase in cuts if b > a)
    return Lane(
        name=str(m.instance or m.token),
        zone=m.offer.zone,
        market=m.offer.market.value.replace("_", "-"),
        spans=spans,
        notice_s=None if m.notice_at is None else m.notice_at - zero,
        end="" if m.end is None else m.end.value.replace("_", " "),
    )


def _work(m: InstanceState, state: JobState, gone: float) -> Iterator[tuple[float, float, Phase]]:
    """When the machine's ranks started and when they trained, attempt by attempt."""
    for attempt in state.attempts:
        if m.token not in attempt.members or attempt.spawned_at is None:
            continue
        over = min(attempt.ended_at if attempt.ended_at is not None else gone, gone)
        first = min(attempt.first_step_at if attempt.first_step_at is not None else over, over)
        last = min(attempt.last_step_at if attempt.last_step_at is not None else over, over)
        yield attempt.spawned_at, first, Phase.RESTORE
        yield first, max(last, first), Phase.TRAIN


def _curve(attempt: AttemptState, zero: float) -> Iterator[tuple[float, int]]:
    """Known points of an attempt's progress: its base, its saves, its last step."""
    base = int(attempt.base.partition(":")[2]) if attempt.base else 0
    points = {}
    if attempt.first_step_at is not None:
        points[attempt.first_step_at] = base
    points |= {save.at: save.step for save in attempt.saves}
    if attempt.last_step_at is not None and attempt.step is not None:
        points[attempt.last_step_at] = attempt.step
    # Saves are told a little later than steps: never draw progress backwards within an attempt.
    best = 0
    for at in sorted(points):
        best = max(best, points[at])
        yield at - zero, best
