"""Where in the training a relaunch went on, and where it left the way of the plain run."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.client.check.evidence import Facts, Step
from everstep.client.check.launch import utc_to_monotonic

_CANDIDATES = 50
_TOLD_LITTLE = 2


def counts_alike(steps: Sequence[Step], facts: Facts) -> bool:
    """Whether the library reported steps of the optimizer: with accumulated gradients it counts batches."""
    if facts.step is None or facts.step_at is None or facts.step <= _TOLD_LITTLE:
        return False
    until = utc_to_monotonic(facts.step_at)
    return abs(sum(step.at <= until for step in steps) - facts.step) <= 1


def find_base(plain: Sequence[Step], own: Sequence[Step], most: int, hint: int | None) -> int | None:
    """The step of the plain run after which ``own`` go on, by their fingerprints; None: they tell nothing.

    Parameters may stand still for some steps, so that several places fit: of these ``hint`` is taken, else the one from
    which the most steps agree, else the last.

    Args:
        plain: steps of the plain run.
        own: those of the relaunch.
        most: it cannot have gone on behind that.
        hint: where else is said that it went on.
    """
    if not own:
        return None
    places = _places(plain, own[0], most)
    if hint in places:
        return hint
    longest, best = -1, None
    for place in places[: -_CANDIDATES - 1 : -1]:
        agreeing = _agreeing(plain, own, place)
        if agreeing > longest:
            longest, best = agreeing, place
    return best


def _places(plain: Sequence[Step], first: Step, most: int) -> list[int]:
    """Where a step of the plain run ends, or at least begins, with the same parameters."""
    within = plain[: most + 1]
    ends = [at for at, step in enumerate(within) if first.mark and step.mark == first.mark]
    return ends or [at for at, step in enumerate(within) if first.before and step.before == first.before]


def _agreeing(plain: Sequence[Step], own: Sequence[Step], base: int) -> int:
    """How many steps from ``base`` on are as in the plain run."""
    pairs = list(zip(plain[base:], own, strict=False))
    return next((at for at, (mine, theirs) in enumerate(pairs) if _astray(mine, theirs)), len(pairs))


def diverged_at(plain: Sequence[Step], own: Sequence[Step], base: int | None) -> int | None:
    """First step of the training after which the parameters of ``own``, which go on from ``base``, are others.

    Those before a step are compared as well: what was loaded may be wrong and be right again one step later.
    """
    if base is None:
        return None
    at = base + _agreeing(plain, own, base)
    if at >= min(len(plain), base + len(own)):
        return None
    return max(at, 1) if _differ(plain[at].before, own[at - base].before) else at + 1


def _astray(mine: Step, theirs: Step) -> bool:
    return _differ(mine.before, theirs.before) or _differ(mine.mark, theirs.mark)


def _differ(one: int, other: int) -> bool:
    return bool(one and other) and one != other
