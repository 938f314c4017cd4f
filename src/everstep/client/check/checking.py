"""The check: two plain runs, a drill, a verdict."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from everstep.client.check.bases import counts_alike
from everstep.client.check.command import Command
from everstep.client.check.compare import Aside, differences, set_aside, weights_sha256
from everstep.client.check.costs import Costs, costs
from everstep.client.check.drill import Drill, Drilled, Launched, Plain, Show
from everstep.client.check.evidence import Ending, Step
from everstep.client.check.launch import Launch
from everstep.client.check.scene import Mode, Scene, Settings
from everstep.client.check.verdict import Judgement, Verdict, judge_drilled, judge_plain, was_fair
from everstep.model.errors import EverstepError

_LOOKED_AT_S = 60.0
"""A plain run of a single process is looked at for so long, unless ``steps`` says how far."""
_NO_STEP_S = 600.0
"""A first plain run that makes no step for so long is given up."""
TIMES_PLAIN, PLUS_S = 5.0, 60.0
"""A later launch that takes longer than so many times the plain run, plus so many seconds, does not end."""
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Checked:
    """Everything that a check found.

    Attributes:
        command: the user's.
        settings: as used.
        mode: who saves and resumes.
        judgement: the verdict.
        steps: steps that were looked at.
        whole: whether that is the whole script.
        plain_s: time of a plain run.
        step_s: time of a step, the median.
        weights: digests of the parameters: plain, resumed.
        not_compared: what differs between plain runs.
        drilled: None if the plain runs said enough.
        costs: None where there was no drill.
        disturbed: one of the user's files that changed meanwhile.
    """

    command: Command
    settings: Settings
    mode: Mode
    judgement: Judgement
    steps: int
    whole: bool
    plain_s: float
    step_s: float
    weights: tuple[str | None, str | None] = (None, None)
    not_compared: tuple[str, ...] = ()
    drilled: Drilled | None = None
    costs: Costs | None = None
    disturbed: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The answer."""
        return self.judgement.verdict


@dataclass
class Check:
    """One check. Make it, `run` it once.

    Args:
        scene: where.
        show: told about the progress.
    """

    scene: Scene
    show: Show

    def run(self) -> Checked:
        """Run the script plain, plain again and drilled.

        Raises:
            EverstepError: nothing can be said, with the reason.
        """
        plain, plain_s = self._first()
        again, diverged_at = self._second(plain)
        settings = self.scene.settings
        mode = settings.mode or (Mode.LIBRARY if plain.ending.attached else Mode.SCRIPT)
        told: dict[str, Any] = {
            "command": self.scene.command,
            "settings": settings,
            "mode": mode,
            "steps": len(plain.steps),
            "whole": plain.stop_at is None,
            "plain_s": plain_s,
            "step_s": plain.step_s,
        }
        judgement = judge_plain(plain.ending, again, self.scene.script, diverged_at)
        if judgement is not None:
            weights = weights_sha256(plain.ending, again)
            return Checked(**told, judgement=judgement, weights=(weights[0], None), disturbed=self._disturbed())
        found = differences(plain.ending, again)
        aside = replace(set_aside(plain.ending, again, found), way=diverged_at is not None)
        drilled = Drill(self.scene, plain, mode, self.show).run()
        return self._conclude(told, plain, drilled, aside)

    def _conclude(self, told: dict[str, Any], plain: Plain, drilled: Drilled, aside: Aside) -> Checked:
        first = drilled.launches[0]
        if first.kill is None and not first.refused and not drilled.hung:
            raise EverstepError(_not_killed(first, plain.ending.exit_code))
        judgement = judge_drilled(plain.ending, drilled, aside)
        if judgement.verdict is Verdict.NO_RESUME and not was_fair(drilled, told["mode"], plain.ending):
            raise EverstepError(_too_short(told["steps"], told["plain_s"]))
        return Checked(
            **told,
            judgement=judgement,
            weights=weights_sha256(plain.ending, drilled.ending),
            not_compared=tuple(sorted(aside.names)),
            drilled=drilled,
            costs=costs(drilled, told["mode"], rate_per_h=self.scene.settings.rate_per_h),
            disturbed=self._disturbed(),
        )

    def _disturbed(self) -> str | None:
        return self.scene.original.disturbed()

    # --- plain runs -----------------------------------------------------------------------------------------------

    def _first(self) -> tuple[Plain, float]:
        settings = self.scene.settings
        seconds = _LOOKED_AT_S if settings.steps is None and settings.nproc == 1 else None
        ending, launch = self._plain("plain", steps=settings.steps, seconds=seconds, limit_s=None)
        steps = tuple(launch.trail.steps)
        if launch.exit_code != 0:
            raise EverstepError(_failed(len(steps), launch))
        if len(steps) < _LEAST_STEPS:
            raise EverstepError(_no_steps(len(steps), launch))
        stopped = any(final is not None and final["stopped"] for final in ending.finals)
        plain = Plain(
            ending=ending,
            steps=steps,
            trail=launch.start.folder / "rank-0.trail",
            limit_s=TIMES_PLAIN * launch.seconds + PLUS_S,
            begun_s=steps[0].at - launch.began_at,
            step_s=_step_s(steps),
            stop_at=len(steps) if stopped else None,
            optimized=bool(launch.trail.optimized),
            counts_alike=counts_alike(steps, launch.facts()),
        )
        return plain, launch.seconds

    def _second(self, plain: Plain) -> tuple[Ending, int | None]:
        """The second plain run, and the first step after which it is not the first one any more."""
        ending, launch = self._plain("again", steps=plain.stop_at, seconds=None, limit_s=plain.limit_s)
        pairs = enumerate(zip(plain.steps, launch.trail.steps, strict=False), start=1)
        return ending, next((at for at, (mine, theirs) in pairs if mine.mark != theirs.mark), None)

    def _plain(
        self, name: str, *, steps: int | None, seconds: float | None, limit_s: float | None
    ) -> tuple[Ending, Launch]:
        work = self.scene.work(name)
        witness = {"seed": self.scene.settings.seed, "steps": steps, "seconds": seconds}
        with self.scene.plain(name, work, witness) as launch:
            self._follow(launch, name, limit_s)
        count = len(launch.trail.steps)
        ending = Ending(launch.exit_code, launch.finals(), launch.stdout(), work.written(), work.missing(), count)
        return ending, launch

    def _follow(self, launch: Launch, name: str, limit_s: float | None) -> None:
        newest, since = 0, launch.began_at
        for _ in launch.looks(launch.began_at + limit_s if limit_s is not None else float("inf")):
            count = len(launch.trail.steps)
            self.show(name, count)
            if count > newest:
                newest, since = count, launch.trail.steps[-1].at
            elif limit_s is None and launch.seconds + launch.began_at - since > _NO_STEP_S:
                break
        if launch.poll() is None:
            raise EverstepError(
                f"the {'first' if limit_s is None else 'second'} plain run was given up: "
                + (f"no step for {_NO_STEP_S:.0f} s" if limit_s is None else f"not over after {limit_s:.0f} s")
                + "; give it less to do, or look at its first steps alone with --steps N"
            )


def _step_s(steps: tuple[Step, ...]) -> float:
    return median(after.at - before.at for before, after in itertools.pairwise(steps))


def _not_killed(launch: Launched, plain_code: int) -> str:
    if launch.exit_code == plain_code:
        return "the script ended before it could be killed: give it more steps"
    said = f": {launch.complaint}" if launch.complaint else ""
    return f"made to save, the script ended with exit code {launch.exit_code} instead of {plain_code}{said}"


def _too_short(steps: int, seconds: float) -> str:
    return (
        f"too short to kill: {steps} steps, {seconds:.1f} s in all, and each kill came before a first save was "
        "through; give it more steps"
    )


def _failed(steps: int, launch: Launch) -> str:
    """What is said of a script that fails by itself."""
    said = f": {launch.complaint()}" if launch.complaint() else ""
    after = f" after {steps} steps" if steps else ""
    fix = "; a check needs one that ends with 0"
    if steps > _LEAST_STEPS:
        fix += f", or --steps N with fewer than these {steps}"
    return f"run plainly, the script ended with exit code {launch.exit_code}{after}{said}{fix}"


def _no_steps(count: int, launch: Launch) -> str:
    if count == 0:
        more = "" if launch.start.nproc > 1 else "; if it starts ranks by itself, let --nproc N do it"
        return f"the script made no optimizer step in its process{more}"
    return f"the script made {count} steps only; a check needs {_LEAST_STEPS}"
