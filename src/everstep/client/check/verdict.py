"""What two plain runs and a drill say about a script."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from everstep.client.check.causes import why_not_deterministic, why_not_exact
from everstep.client.check.compare import STATE, Aside, Difference, Part, differences
from everstep.client.check.drill import Drilled, Launched
from everstep.client.check.evidence import Ending
from everstep.client.check.scene import Mode

#: A process that trained for so long before it was killed could have saved.
_TIME_TO_SAVE_S = 5.0


class Verdict(StrEnum):
    """The answers of a check, in the words of its report."""

    EXACT = "exact"
    NOT_EXACT = "resumes, not exact"
    REFUSES = "refuses"
    NO_RESUME = "no resume"
    NOT_DETERMINISTIC = "not deterministic"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where a run begins to be another one.

    Attributes:
        object: the object by name.
        what: how it differs.
        step: the first step after which the parameters differ; None: not known.
        likely_cause: a rule of thumb, with what helps.
    """

    object: str
    what: str
    step: int | None
    likely_cause: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons.

    Attributes:
        verdict: the answer.
        reason: one sentence.
        first_difference: None where nothing differs, or nothing could be compared.
        differences: all of them.
    """

    verdict: Verdict
    reason: str
    first_difference: FirstDifference | None = None
    differences: tuple[Difference, ...] = ()


def judge_plain(plain: Ending, again: Ending, script: Path | None, diverged_at: int | None) -> Judgement | None:
    """`Verdict.NOT_DETERMINISTIC` if two plain runs differ in what a training is about; None if not.

    Output may differ where the trained state was seen to be the same: logs carry times.
    """
    found = differences(plain, again)
    state = [d for d in found if d.part in STATE]
    if not state and (_saw_weights(plain) or not found):
        return None
    decisive = state or found
    cause = why_not_deterministic(decisive, script, cuda=plain.cuda)
    return Judgement(
        Verdict.NOT_DETERMINISTIC,
        f"two plain runs from the same initial random state differ: {decisive[0].name}",
        FirstDifference(decisive[0].name, decisive[0].what, diverged_at, cause),
        tuple(found),
    )


def judge_drilled(plain: Ending, drilled: Drilled, aside: Aside) -> Judgement:
    """The verdict on a script whose plain runs agree."""
    last = drilled.launches[-1]
    refused = next((launch for launch in drilled.launches if launch.refused), None)
    if refused is not None:
        return Judgement(Verdict.REFUSES, refused.complaint or "it gave no reason")
    resumed = any(_went_on(launch) for launch in drilled.launches[1:])
    if drilled.hung:
        return Judgement(Verdict.NOT_EXACT if resumed else Verdict.NO_RESUME, drilled.hung)
    if not resumed:
        return Judgement(Verdict.NO_RESUME, _why_no_resume(plain, last))
    astray = next((launch for launch in drilled.launches if launch.diverged_at is not None), None)
    at = None if astray is None else astray.diverged_at
    since = "" if at is None else f", from step {at} on"
    found = differences(plain, drilled.ending, aside)
    reason = f"it goes on after a kill, but ends otherwise{since}"
    if not found and astray is not None and not aside.way:
        found, reason = [_way(astray)], f"it goes on after a kill, and ends the same, but on another way{since}"
    if not found:
        return Judgement(Verdict.EXACT, f"killed {_times(drilled)}, it ends as if nothing had happened")
    first = FirstDifference(found[0].name, found[0].what, at, why_not_exact(found, plain.cuda))
    return Judgement(Verdict.NOT_EXACT, f"{reason}: {first.object}", first, tuple(found))


def was_fair(drilled: Drilled, mode: Mode, plain: Ending) -> bool:
    """Whether a drill that nothing came back from says that nothing would.

    Not if each kill came before a first save of everstep's was through. Whether a script that saves by itself has
    saved, nobody tells.
    """
    last = drilled.launches[-1]
    if drilled.hung or last.exit_code != plain.exit_code or mode is Mode.OFF:
        return True
    if mode is Mode.LIBRARY and not plain.attached:
        return True
    return any(_could_save(launch) for launch in drilled.launches if launch.kill is not None)


def _could_save(launch: Launched) -> bool:
    first = launch.moments.get("first_step")
    return bool(launch.facts.saves) or (first is not None and launch.seconds - first >= _TIME_TO_SAVE_S)


def _way(astray: Launched) -> Difference:
    """Of a launch that differed from the plain run, which is not seen at the end any more."""
    what = f"differ from step {astray.diverged_at} on in launch {astray.number}, and come together again"
    return Difference(Part.PARAMETERS, "parameters", what)


def _saw_weights(ending: Ending) -> bool:
    return any(final is not None and (final["optimizers"] or final["globals"]) for final in ending.finals)


def _went_on(launch: Launched) -> bool:
    """Whether a relaunch began behind the beginning."""
    return bool(launch.base) or (launch.base is None and launch.facts.base_step is not None)


def _why_no_resume(plain: Ending, last: Launched) -> str:
    if last.exit_code != plain.exit_code:
        said = f": {last.complaint}" if last.complaint else ""
        return f"the relaunch ended with exit code {last.exit_code} instead of {plain.exit_code}{said}"
    warning = f"; {last.facts.warnings[-1]}" if last.facts.warnings else ""
    return f"nothing is carried over: every relaunch begins at the first step{warning}"


def _times(drilled: Drilled) -> str:
    count = len(drilled.kills)
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
