"""One script: run plainly, run again under everstep with kills, compared, judged."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from everstep.model import handshake
from tests.corpus.cases import HERE, Case
from tests.corpus.kills import GRACE_S, Course, Kill, Plan, draw, moment
from tests.corpus.outcome import Outcome, difference, read_files
from tests.corpus.processes import Launch, Running, python

#: exact: continued from a save and ended as the plain run did. restarted: ended as the plain run did, but began anew
#: each time. refused: exit 76, with a line that says where. wrong: ended like the plain run, with another result.
#: broken: anything else (a crash, no end, a refusal without a place, a plain run that does not do what the table says).
Verdict = Literal["exact", "restarted", "refused", "wrong", "broken"]
VERDICTS: tuple[Verdict, ...] = ("exact", "restarted", "refused", "wrong", "broken")
ENGINE = ("-m", "everstep.train.run")

#: A name of a file with the number of a line, as in `train.py:12`, `train.py, line 12` or `line 12 of train.py`.
_PLACE = re.compile(r"\.py(:\d+|\W+line \d+)|line \d+ (of|in) \S+\.py")
_TAIL_LINES = 12


@dataclass(frozen=True)
class Settings:
    """How a trial is done: how many kills, drawn from which seed, and how long a launch may take at most.

    ``sources`` is the folder of another everstep to run, for instance of another revision; None: the installed one.
    """

    kills: int
    seed: int
    patience_s: float = 180.0
    engine: Sequence[str] = ENGINE
    sources: Path | None = None


@dataclass
class Result:
    """What came of a trial.

    ``landed`` are the kills that met a living process, ``resumed`` counts the launches that continued from a save.
    """

    name: str
    verdict: Verdict
    detail: str = ""
    cadence: str = ""
    landed: list[str] = field(default_factory=list)
    launches: int = 0
    resumed: int = 0
    seconds: float = 0.0
    stderr: str = ""

    def met(self, case: Case) -> bool:
        """Whether the verdict is among those that the table allows."""
        return self.verdict == "exact" or (case.expect == "may_refuse" and self.verdict in ("refused", "restarted"))


class NotAsExpected(Exception):
    """A plain run did not end as the table says."""


def run_plain(case: Case, folder: Path, seed: int, patience_s: float = 180.0) -> tuple[Outcome, Course]:
    """The script as its author runs it, in an empty folder below `folder`.

    Raises:
        NotAsExpected: it ended with another exit code than the table says, or not at all.
    """
    launch = _launch(case, folder, 0, _seeded(case, seed, _ranks(case, case.target)))
    running = Running(launch)
    try:
        printed = running.wait_until(lambda running: running.written > 0, patience_s)
        startup_s = running.age_s
        running.wait_until(lambda running: False, patience_s)
        code, total_s = running.exit_code, running.age_s
    finally:
        running.lose()
    if code != case.exit:
        raise NotAsExpected(f"plain run: exit code {code} instead of {case.exit}\n{_tail(launch.stderr)}")
    stdout = launch.stdout.read_bytes()
    course = Course(startup_s if printed else 0.5 * total_s, total_s, len(stdout))
    return Outcome(code, stdout, read_files(launch.work)), course


def run_trial(case: Case, folder: Path, settings: Settings) -> Result:
    """Plain run, killed run, verdict. Everything happens below `folder`, which must not exist yet."""
    begun = time.monotonic()
    try:
        plain, course = run_plain(case, folder / "plain", settings.seed, settings.patience_s)
    except NotAsExpected as error:
        return Result(case.name, "broken", str(error))
    rng = random.Random(f"{settings.seed} {case.name}")
    plan = draw(rng, course, settings.kills)
    trial = _Trial(case, folder / "killed", settings, plan)
    result = trial.judge(plain, trial.run())
    result.seconds = time.monotonic() - begun
    return result


class _NoEnd(Exception):
    """A launch ran for longer than anybody would wait."""


class _Trial:
    """The launches of one killed run, one after the other, on the same folders."""

    def __init__(self, case: Case, folder: Path, settings: Settings, plan: Plan) -> None:
        self._case = case
        self._folder = folder
        self._saves = folder / "saves"
        self._settings = settings
        self._plan = plan
        self._last: Launch | None = None
        self.result = Result(case.name, "broken", cadence=" ".join(plan.cadence))

    def run(self) -> Outcome | None:
        """What is left when a launch ended by itself; None when none did (``result.detail`` says why)."""
        code = None
        for kill in [*self._plan.kills, None]:
            try:
                code = self._start(kill)
            except _NoEnd as no_end:
                self.result.detail = str(no_end)
                return None
            if code is not None:
                break
        assert code is not None, "the last launch is left alone"
        log = self._saves / "stdout-0.log"
        return Outcome(code, log.read_bytes() if log.exists() else b"", read_files(self._folder / "work"))

    def _start(self, kill: Kill | None) -> int | None:
        """One launch; its exit code, or None if it was killed."""
        number = self.result.launches
        self.result.launches += 1
        saved_before = self._has_saves()
        launch = _launch(self._case, self._folder, number, self._command(number))
        sources = self._settings.sources
        self._last = replace(launch, python_path=[*([sources] if sources else []), *launch.python_path])
        running = Running(self._last)
        try:
            reached = running.wait_until(self._moment(kill), self._settings.patience_s)
            code = self._strike(running, kill) if kill and reached else running.exit_code
            if code is None and not reached:
                raise _NoEnd(f"no end within {self._settings.patience_s:g} s, with nobody killing it")
        finally:
            running.lose()
        self.result.resumed += saved_before and self._continued()
        return code

    def _strike(self, running: Running, kill: Kill) -> int | None:
        """Kill a launch; its exit code if it had come to its end nevertheless."""
        self.result.landed.append(str(kill))
        if kill.kind != "term":
            running.lose()
            return None
        running.terminate(GRACE_S)
        code = running.exit_code
        # Saved and left, as it was asked to; or ended by a signal; torchrun then ends with a code of its own.
        stopped = code is None or code < 0 or code == handshake.EXIT_SAVED or self._case.nproc > 1
        return None if stopped else code

    def _moment(self, kill: Kill | None) -> Callable[[Running], bool]:
        return moment(kill, self._saves) if kill else lambda running: False

    def _command(self, number: int) -> list[str]:
        engine = [*self._settings.engine, "--dir", str(self._saves), *self._plan.cadence, *self._case.target]
        printed = any(path.stat().st_size for path in self._folder.glob("stdout-*.txt"))
        # Until the script has begun, its random state is the recorded one; from then on it is everstep's to bring back.
        seed = self._settings.seed + (number if printed else 0)
        return _seeded(self._case, seed, _ranks(self._case, engine))

    def _has_saves(self) -> bool:
        return any(self._saves.glob("*/*/manifest.json"))

    def _continued(self) -> bool:
        """Whether the newest attempt is based on a save."""
        records = sorted(self._saves.glob("attempts/*.json"))
        return bool(records) and json.loads(records[-1].read_text()).get("base") is not None

    def judge(self, plain: Outcome, outcome: Outcome | None) -> Result:
        """Set the verdict; the end of stderr goes with whatever is not exact."""
        assert self._last is not None
        if outcome is not None:
            self.result.verdict, self.result.detail = self._verdict(plain, outcome)
        if self.result.verdict != "exact":
            self.result.stderr = _tail(self._last.stderr)
        return self.result

    def _verdict(self, plain: Outcome, outcome: Outcome) -> tuple[Verdict, str]:
        assert self._last is not None
        refusal = _refusal(self._last.stderr, outcome.exit_code, self._case.nproc)
        if refusal is not None:
            placed = bool(_PLACE.search(refusal))
            return ("refused", refusal) if placed else ("broken", f"a refusal without a place: {refusal!r}")
        found = difference(plain, outcome)
        if found is not None:
            # An error is a defect; to end as if all were well, with another result, is the worst there is.
            return ("wrong" if outcome.exit_code == plain.exit_code else "broken"), found
        if not self.result.resumed:
            return "restarted", "no launch continued from a save"
        return "exact", ""


def _refusal(stderr: Path, code: int, nproc: int) -> str | None:
    """The line that says why, '' if there is none; None if this was no refusal."""
    text = stderr.read_text(errors="replace")
    refused = code == handshake.EXIT_REFUSED
    if nproc > 1:  # torchrun ends with 1, and says on stderr with what its ranks ended
        refused = code != 0 and re.search(rf"exitcode\s*:\s*{handshake.EXIT_REFUSED}\b", text) is not None
    if not refused:
        return None
    lines = [line for line in text.splitlines() if "everstep: " in line]
    return next((line for line in lines if _PLACE.search(line)), lines[-1] if lines else "")


def _ranks(case: Case, target: Sequence[str]) -> list[str]:
    """`target` as it is, or as torchrun starts it on every rank."""
    if case.nproc == 1:
        return list(target)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.nproc}"]
    return [*launcher, *target]


def _seeded(case: Case, seed: int, target: Sequence[str]) -> list[str]:
    return python(str(HERE / "seeded.py"), str(seed), *target) if case.unseeded else python(*target)


def _launch(case: Case, folder: Path, number: int, command: Sequence[str]) -> Launch:
    work = folder / "work"
    if not work.exists():
        work.mkdir(parents=True)
        if case.module:  # `python -m` is used from the project's folder
            shutil.copytree(case.script, work / case.script.name, ignore=shutil.ignore_patterns("__pycache__"))
    return Launch(
        command=command,
        work=work,
        stdout=folder / f"stdout-{number}.txt",
        stderr=folder / f"stderr-{number}.txt",
        python_path=case.python_path,
    )


def _tail(stderr: Path) -> str:
    return "\n".join(stderr.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


def forget(folder: Path) -> None:
    """Remove what a trial left below `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
