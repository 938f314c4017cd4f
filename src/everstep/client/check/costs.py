"""What resuming costs: time, saves, lost steps, and the advice that follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from everstep.client.check.drill import Drilled, Launched
from everstep.client.check.scene import Mode
from everstep.model.pacing import local_interval_s, slowdown
from everstep.model.units import exact_duration

_LONGEST_S = 1800.0
_SHORTEST_S = 5.0


@dataclass(frozen=True, slots=True)
class Costs:
    """All of it; None: not measured.

    Attributes:
        resume_s: seconds of a relaunch, medians, by part, and ``total`` up to the end of the first new step.
        save_s: seconds from the begin of a save until it is durable, the median.
        stall_s: seconds of it that training stood still, the median.
        state_bytes: size of a checkpoint, the largest.
        lost_steps: per kill, steps that had to be done again; None where it is not known.
        checkpoint: recommended block of the task file.
        overhead: expected extra time, as a fraction, at ``rate_per_h`` preemptions per hour.
        rate_per_h: that rate.
    """

    resume_s: Mapping[str, float]
    save_s: float | None
    stall_s: float | None
    state_bytes: int | None
    lost_steps: Sequence[int | None]
    checkpoint: Mapping[str, Any]
    overhead: float | None
    rate_per_h: float


def costs(drilled: Drilled, mode: Mode, *, rate_per_h: float) -> Costs:
    """Read from what the launches of a drill reported."""
    saves = [save for launch in drilled.launches for save in launch.facts.saves]
    save_s, stall_s = _median(saves, "save_s"), _median(saves, "stall_s")
    resume_s = _resume(drilled.launches[1:])
    interval_s, overhead = _pacing(stall_s, resume_s.get("total"), rate_per_h)
    block: dict[str, Any] = {"mode": mode.value}
    if interval_s is not None:
        block["every"] = exact_duration(interval_s)
    return Costs(
        resume_s=resume_s,
        save_s=save_s,
        stall_s=stall_s,
        state_bytes=max((int(save["bytes"]) for save in saves), default=None),
        lost_steps=_lost(drilled.launches),
        checkpoint=block,
        overhead=overhead,
        rate_per_h=rate_per_h,
    )


def _median(facts: Iterable[Mapping[str, Any]], key: str) -> float | None:
    values = [float(fact[key]) for fact in facts if fact.get(key) is not None]
    return median(values) if values else None


def _lost(launches: Sequence[Launched]) -> list[int | None]:
    """For each kill the steps between where it came and where the next launch that came to a step went on."""
    lost: list[int | None] = []
    for at, launch in enumerate(launches):
        if launch.kill is None:
            continue
        following = next((later for later in launches[at + 1 :] if later.steps), None)
        if launch.steps == 0:
            lost.append(0)
        elif launch.base is None or following is None or following.base is None:
            lost.append(None)
        else:
            lost.append(max(launch.base + launch.steps - following.base, 0))
    return lost


#: Part of a resume -> the moments between which it lies.
_PARTS = {
    "interpreter": ("", "started"),
    "import_torch": ("torch", "ready"),
    "setup": ("ready", "replayed"),
    "restore": ("replayed", "restored"),
    "first_step": ("restored", "first_step"),
}


def _resume(relaunches: Sequence[Launched]) -> dict[str, float]:
    """Medians over the relaunches that came to a step."""
    found: dict[str, list[float]] = {}
    for launch in relaunches:
        moments = {"": 0.0, **launch.moments}
        if "first_step" not in moments:
            continue
        restored = launch.facts.restored
        if restored is not None and "restored" in moments:
            moments["replayed"] = moments["restored"] - float(restored.get("restore_s") or 0.0)
        for part, (since, until) in _PARTS.items():
            if since in moments and until in moments:
                found.setdefault(part, []).append(max(moments[until] - moments[since], 0.0))
        found.setdefault("total", []).append(moments["first_step"])
    return {part: round(median(values), 4) for part, values in found.items()}


def _pacing(stall_s: float | None, restart_s: float | None, rate_per_h: float) -> tuple[float | None, float | None]:
    """Seconds between saves, and the expected overhead, at a rate of preemptions."""
    if stall_s is None or rate_per_h <= 0.0:
        return None, None
    rate_per_s = rate_per_h / 3600.0
    exact = local_interval_s(stall_s, lambda age_s: age_s * rate_per_s, longest_s=_LONGEST_S)
    interval_s = float(round(max(exact, _SHORTEST_S)))
    factor = slowdown(interval_s, save_s=stall_s, mean_life_s=1.0 / rate_per_s, restart_s=restart_s or 0.0)
    return interval_s, factor - 1.0
