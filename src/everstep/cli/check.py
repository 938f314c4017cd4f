"""``everstep check``: kill a training script on purpose, and tell whether it comes back bit for bit."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import failures
from everstep.cli.output import Output, OutputOption, document, facts

if TYPE_CHECKING:
    from everstep.client.check import Checked, Command, Mode, Settings
    from everstep.client.check.drill import Show

_COMMAND = "everstep check"
_FOLDER = Path(".everstep") / "check"
#: Verdict -> exit code; 1 and 2 mean what they mean everywhere: nothing could be said, and what was given is wrong.
EXIT_CODES = {"exact": 0, "resumes, not exact": 10, "refuses": 11, "no resume": 12, "not deterministic": 13}


def check(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- python train.py ...", help="The command, after two dashes.")
    ] = None,
    *,
    kills: Annotated[int, typer.Option("--kills", min=1, max=1000, help="How often it is killed.")] = 3,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Ranks, started by torchrun.")] = 1,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds from SIGTERM to SIGKILL.")] = 5.0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=3, help="Look at the first N steps. Default: what a minute holds.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="[auto|script|library|off]", help="Who saves, as checkpoint.mode in a task file."
        ),
    ] = "auto",
    rate: Annotated[float, typer.Option("--rate", min=0, help="Preemptions per hour, for the advice.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Repeat the kills of an earlier check.")] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder for report and logs. Default: below .everstep.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Kill a training script on purpose, and tell whether it comes back bit for bit.

    It is run twice as it is and once with kills, in copies of this folder. Exit code: 0 exact; 10 resumes, not exact;
    11 refuses; 12 no resume; 13 not deterministic; 1 nothing could be said.

    Examples: `everstep check -- python train.py --lr 3e-4`, `everstep check --steps 200 -o json -- python train.py`
    """
    from everstep.client.check import Settings, probe, read_command

    if words:
        raise failures.usage(_COMMAND, "", f"unexpected: {' '.join(words)}", f"write {_COMMAND} -- python train.py")
    if context.obj.command is None:
        raise failures.usage(_COMMAND, "", "the command is missing", f"write {_COMMAND} -- python train.py")
    settings = Settings(
        kills=kills,
        nproc=nproc,
        grace_s=grace,
        steps=steps,
        mode=_mode(mode),
        rate_per_h=rate,
        seed=seed,
    )
    command = read_command(context.obj.command, Path.cwd())
    probe(command)
    folder = _make_folder(directory, command)
    try:
        checked = _checked(command, folder, settings)
    except KeyboardInterrupt:
        print(f"{_COMMAND}: interrupted; what was seen until then: {folder}", file=sys.stderr)
        raise typer.Exit(failures.INTERRUPTED) from None
    raise typer.Exit(_conclude(checked, folder, output))


def _mode(given: str) -> Mode | None:
    from everstep.client.check import Mode

    if given == "auto":
        return None
    if given not in list(Mode):
        raise failures.usage(_COMMAND, "--mode", f"'{given}' is not one of 'auto', 'script', 'library', 'off'")
    return Mode(given)


def _make_folder(given: Path | None, command: Command) -> Path:
    """The folder of this check, new or empty."""
    named = f"{command.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = (given if given is not None else _FOLDER / named).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise failures.usage(_COMMAND, "--dir", f"{folder} holds something", "name a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _checked(command: Command, folder: Path, settings: Settings) -> Checked:
    from everstep.cli.demo.interrupts import ended_by_signals
    from everstep.client.check import Check, Scene

    scene = Scene(command, Path.cwd(), folder, settings)
    try:
        with ended_by_signals(), _progress(settings) as show:
            return Check(scene, show).run()
    finally:
        scene.close()
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """What is left are outputs and evidence; copies of the user's files and checkpoints go."""
    for heavy in (folder / "startup", *folder.glob("runs/*/work"), *folder.glob("runs/*/checkpoints")):
        shutil.rmtree(heavy, ignore_errors=True)


def _conclude(checked: Checked, folder: Path, output: Output) -> int:
    from everstep.client.check import as_json, write_report
    from everstep.client.check.report import checkpoint_block, told

    report = as_json(checked)
    page = write_report(report, folder)
    if output is not Output.TABLE:
        document({**report, "report": str(page)}, output)
    else:
        facts([*told(report), ("report", str(page))])
        block = checkpoint_block(report)
        if block:
            print(f"\nfor the task file:\n\n{block}", end="")
    return EXIT_CODES[report["verdict"]]


# --- progress ---------------------------------------------------------------------------------------------------------

_SAID = {"plain": "plain run", "again": "plain run, again"}


@contextmanager
def _progress(settings: Settings) -> Iterator[Show]:
    """How to show where the check is: a bar on a terminal, a line for each part of it elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Bars(bars, settings.steps)


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str, steps: int) -> None:
        if what != self._last:
            self._last = what
            print(_SAID.get(what, what), file=sys.stderr, flush=True)


class Bars:
    """One bar for each part; the first plain run tells how long the others are."""

    def __init__(self, bars: Any, total: int | None) -> None:
        self._bars = bars
        self._total = total
        self._tasks: dict[str, Any] = {}
        self._most = 0

    def __call__(self, what: str, steps: int) -> None:
        """Show that so many steps of this part are done."""
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bars.update(task, total=self._total or self._most or 1)
            self._tasks[what] = self._bars.add_task(_SAID.get(what, what), total=self._total or self._most or None)
        self._most = max(self._most, steps)
        self._bars.update(self._tasks[what], completed=steps)
