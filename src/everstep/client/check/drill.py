"""The script killed and started again until it is through."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from everstep.client.check.bases import diverged_at, find_base
from everstep.client.check.evidence import Ending, Facts, Step
from everstep.client.check.launch import Launch, utc_to_monotonic
from everstep.client.check.scene import Mode, Scene
from everstep.client.check.workfolder import WorkFolder
from everstep.model.errors import EverstepError
from everstep.model.handshake import EXIT_REFUSED, EXIT_SAVED

_SAVES_BETWEEN_KILLS = 4
_JITTER = 0.6

Show = Callable[[str, int], None]
"""Called with what is being done and how many steps of it are done."""


class How(StrEnum):
    """Ways to be killed, taken in turn."""

    AT_STEP = "SIGKILL at a step"
    NOTICE = "SIGTERM, then SIGKILL after the grace"
    BY_CLOCK = "SIGKILL by the clock"


@dataclass(frozen=True, slots=True)
class Plain:
    """What a drill needs to know of the plain run.

    Attributes:
        ending: how it ended.
        steps: its steps.
        trail: file with their marks.
        limit_s: a launch that takes longer does not end.
        begun_s: from start to the first step.
        step_s: time of a step, the median.
        stop_at: the check looks at that many steps only; None: at all.
        optimized: whether the steps are those of an optimizer, not calls of ``backward``.
        counts_alike: whether the library reported the same steps.
    """

    ending: Ending
    steps: tuple[Step, ...]
    trail: Path
    limit_s: float
    begun_s: float
    step_s: float
    stop_at: int | None
    optimized: bool
    counts_alike: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: how, and the position (steps of the whole training) that was reached; ``exit_code`` of the process."""

    how: How
    position: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a drill, over.

    Attributes:
        number: from 1.
        base: step of the training that it went on from, 0 for the beginning; None: not known, or it made no step.
        steps: steps that it made.
        diverged_at: first of its steps (number in the training) after which the parameters were not those of the plain
            run; None: none, or not known.
        moments: seconds since the start of the process by name: ``started``, ``torch``, ``ready``, ``restored``,
            ``first_step``.
        facts: what the runner or the library reported.
        kill: how it was killed; None if it ended by itself.
        exit_code: of the process.
        refused: whether everstep ended it.
        complaint: the line of standard error that says best what went wrong.
        seconds: how long it ran.
    """

    number: int
    base: int | None
    steps: int
    diverged_at: int | None
    moments: dict[str, float]
    facts: Facts
    kill: Kill | None
    exit_code: int
    refused: bool
    complaint: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Drilled:
    """A whole drill; ``hung``: why it was given up, empty if it was not."""

    ending: Ending
    launches: tuple[Launched, ...]
    hung: str = ""

    @property
    def kills(self) -> list[Kill]:
        """All kills."""
        return [launch.kill for launch in self.launches if launch.kill is not None]


@dataclass
class Drill:
    """Kills a script as often as the settings say. Make one, `run` it once.

    Args:
        scene: where.
        plain: the plain run to keep to.
        mode: who saves.
        show: told about the progress.
    """

    scene: Scene
    plain: Plain
    mode: Mode
    show: Show
    _launches: list[Launched] = field(default_factory=list)
    _bases: dict[int, int | None] = field(default_factory=dict)
    _position: int = 0

    NAME = "drilled"

    def run(self) -> Drilled:
        """The drill, from the first launch to the end of the last."""
        work = self.scene.work(self.NAME)
        chance = random.Random(self.scene.settings.seed)
        pending = self._schedule(chance)
        hung = ""
        kill: Kill | None = None
        while kill is not None or not self._launches:
            number = len(self._launches) + 1
            with self._start(number, work) as launch:
                kill = self._kill(launch, pending.pop(0), chance) if pending else self._finish(launch)
                if launch.poll() is None:
                    hung = f"launch {number} did not end within {self.plain.limit_s:.0f} s"
                launch.kill()
                self._launches.append(self._record(launch, kill))
        return Drilled(self._ending(launch, work), tuple(self._launches), hung)

    def _ending(self, launch: Launch, work: WorkFolder) -> Ending:
        """Of the whole, by its last launch."""
        last, finals = self._launches[-1], launch.finals()
        # One that was stopped at a step has done what it was to do, wherever it really was.
        counted = last.base is not None and not any(final is not None and final["stopped"] for final in finals)
        steps = (last.base or 0) + last.steps if counted else None
        return Ending(last.exit_code, finals, self._stdout(launch), work.written(), work.missing(), steps)

    # --- the plan -------------------------------------------------------------------------------------------------

    def _schedule(self, chance: random.Random) -> list[tuple[How, float]]:
        """Where to kill, as positions in the training, spread over it with some chance."""
        count, total = self.scene.settings.kills, len(self.plain.steps)
        ways = list(How)
        places = [total * (at + 1 + _JITTER * (chance.random() - 0.5)) / (count + 1) for at in range(count)]
        return [(ways[at % len(ways)], max(1.0, min(place, total - 1.0))) for at, place in enumerate(places)]

    def _start(self, number: int, work: WorkFolder) -> Launch:
        every = max(1, len(self.plain.steps) // (_SAVES_BETWEEN_KILLS * (self.scene.settings.kills + 1)))
        witness = {
            # On another machine the random numbers begin elsewhere; what is right must not depend on it.
            "seed": self.scene.settings.seed if number == 1 else None,
            "steps": self.plain.stop_at,
            "plain": str(self.plain.trail),
            "reached": self._position,
            "reported": self.mode is Mode.SCRIPT,
        }
        return self.scene.drilled(
            self.NAME,
            number,
            work,
            mode=self.mode,
            witness=witness,
            every=(every, every * self.plain.step_s),
        )

    # --- one launch -----------------------------------------------------------------------------------------------

    def _kill(self, launch: Launch, plan: tuple[How, float], chance: random.Random) -> Kill | None:
        """Let it come to where it is to be killed, and kill it. None if it ended, or hangs, before."""
        how, place = plan
        deadline = launch.began_at + self.plain.limit_s
        if how is How.BY_CLOCK:
            ahead = max(place - self._position, 0.0) * self.plain.step_s
            moment = launch.began_at + (self.plain.begun_s + ahead) * chance.uniform(0.5, 1.1)
        else:
            moment = deadline
        # Between two steps as well as in one.
        later = chance.random() * self.plain.step_s
        for _ in launch.looks(min(moment, deadline)):
            reached = self._reached(launch)
            self.show(f"kill {len(self._launches) + 1}", reached)
            if reached >= place or reached >= len(self.plain.steps) - 1:
                time.sleep(later)
                break
        if launch.poll() is not None or (how is not How.BY_CLOCK and time.monotonic() >= deadline):
            return None
        self._end(launch, how)
        launch.trail.follow()
        if self._went_through(launch):
            return None
        position = self._reached(launch) if self._steps(launch) else self._position
        return Kill(how, position, launch.exit_code)

    def _end(self, launch: Launch, how: How) -> None:
        if how is How.NOTICE:
            launch.terminate()
            launch.wait(self.scene.settings.grace_s)
        launch.kill()

    def _went_through(self, launch: Launch) -> bool:
        """Whether it had come to the end of training just before it was to be killed."""
        through = self._reached(launch) >= len(self.plain.steps) and launch.finals()[0] is not None
        return through and launch.exit_code not in (EXIT_SAVED, EXIT_REFUSED) and launch.exit_code >= 0

    def _finish(self, launch: Launch) -> Kill | None:
        """Let it come to its end, or to the limit: there is no kill any more."""
        for _ in launch.looks(launch.began_at + self.plain.limit_s):
            self.show("to the end", self._reached(launch))
        return None

    def _reached(self, launch: Launch) -> int:
        return (self._base(launch) or 0) + len(self._steps(launch))

    def _steps(self, launch: Launch) -> Sequence[Step]:
        """Its steps, as those of the plain run are counted."""
        return launch.trail.optimized if self.plain.optimized else launch.trail.steps

    def _base(self, launch: Launch) -> int | None:
        """The step that a launch went on from; None: not known, or it made no step yet."""
        number = len(self._launches) + 1
        if number not in self._bases and self._steps(launch):
            self._bases[number] = self._find_base(launch) if number > 1 else 0
        return self._bases.get(number)

    def _find_base(self, launch: Launch) -> int | None:
        if self._is_reported:
            # They count as the witness does, and say nothing where they begin from nothing.
            return launch.facts().base_step or 0
        found = find_base(self.plain.steps, self._steps(launch), self._position, hint=None)
        anew = self.mode is Mode.LIBRARY and _began_anew(launch.facts())
        return 0 if found is None and anew else found

    @property
    def _is_reported(self) -> bool:
        """Whether the runner, or the library, tells where a launch goes on, in steps of the optimizer."""
        return self.mode is Mode.SCRIPT or (self.mode is Mode.LIBRARY and self.plain.counts_alike)

    def _final_base(self, launch: Launch, kill: Kill | None) -> int | None:
        """The same for a launch that is over: now all its steps tell, and its end."""
        base, end = self._base(launch), self._base_by_end(launch) if kill is None else None
        if self._launches and not self._is_reported:
            found = find_base(self.plain.steps, self._steps(launch), self._position, hint=end)
            base = base if found is None else found
        if base is None and end is None and kill is None:
            self._check_stop(launch)
        return end if base is None else base

    def _base_by_end(self, launch: Launch) -> int | None:
        """The same for a launch that came to the end of training: what it did not do was done before."""
        final = launch.finals()[0]
        if final is None or final["stopped"] or launch.exit_code != self.plain.ending.exit_code:
            return None
        own = len(self._steps(launch))
        if not own and all(earlier.base is not None for earlier in self._launches if earlier.steps):
            # It did nothing, and what was done before is known.
            return self._position
        return max(len(self.plain.steps) - own, 0)

    def _check_stop(self, launch: Launch) -> None:
        """A launch that was stopped at a step is compared only where that step is known to be the right one."""
        final = launch.finals()[0]
        if final is not None and final["stopped"]:
            library = "the script counts other steps than its optimizer"
            why = library if self.mode is Mode.LIBRARY else "the script saves by itself"
            raise EverstepError(
                f"{why}, so that only its own end tells where a relaunch went on, and that is "
                f"behind the {self.plain.stop_at} steps looked at: give it less to do, and --steps more than that"
            )

    def _record(self, launch: Launch, kill: Kill | None) -> Launched:
        own, base, facts = self._steps(launch), self._final_base(launch, kill), launch.facts()
        moments = {name: at - launch.began_at for name, at in launch.trail.moments.items()}
        if facts.restored is not None:
            moments["restored"] = utc_to_monotonic(float(facts.restored["t"])) - launch.began_at
        if own:
            moments["first_step"] = own[0].at - launch.began_at
            self._position = max(self._position, (base or 0) + len(own))
        return Launched(
            number=len(self._launches) + 1,
            base=base,
            steps=len(own),
            diverged_at=diverged_at(self.plain.steps, own, base),
            moments=moments,
            facts=facts,
            kill=kill,
            exit_code=launch.exit_code,
            refused=launch.refused,
            complaint=launch.complaint(),
            seconds=launch.seconds,
        )

    def _stdout(self, launch: Launch) -> tuple[Path, ...]:
        """The one log of all launches, where there is one."""
        if self.mode is not Mode.SCRIPT:
            return ()
        folder = self.scene.checkpoints(self.NAME)
        return tuple(folder / f"stdout-{rank}.log" for rank in range(len(launch.finals())))


def _began_anew(facts: Facts) -> bool:
    """Whether the library said that there was nothing to go on from."""
    return facts.restored is not None and facts.base_step is None
