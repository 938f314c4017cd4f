"""``everstep demo``: the whole run, and its report."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli.output import facts

if TYPE_CHECKING:
    from everstep.cli.demo.scenario import Training
    from everstep.cli.demo.stage import Stage
    from everstep.client.results import JobDetail

_NO_WEIGHTS = "why-there-are-no-weights.txt"


def demo(
    report: Annotated[Path, typer.Option("--report", metavar="DIR", help="Folder for the report.")] = Path(
        "demo-report"
    ),
    verify: Annotated[
        Path | None, typer.Option("--verify", metavar="DIR", help="Run nothing; compute the figures of a report again.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=100, help="Steps. Default: what fits this machine.")
    ] = None,
) -> None:
    """Watch a two-node job survive what kills jobs elsewhere, and check that it trained exactly what it should.

    First the same script runs undisturbed. Then it runs on a cloud in a box, on this computer: machines are taken with
    and without notice, capacity dries up, the server is killed. The final weights must be the same, bit for bit.

    Example: `everstep demo`, then `everstep demo --verify demo-report`
    """
    if verify is not None:
        from everstep.cli.demo.verify import verify as run_verify

        raise typer.Exit(run_verify(verify))
    _check_torch()
    from everstep.cli.demo.interrupts import ended_by_signals

    with ended_by_signals():
        raise typer.Exit(_run(report.resolve(), steps))


def _run(report: Path, steps: int | None) -> int:
    from everstep.cli.demo import reference
    from everstep.cli.demo.interrupts import deferred
    from everstep.cli.demo.scenario import WEIGHTS, Training, training
    from everstep.cli.demo.stage import Stage

    _check_report(report)
    script = reference.script_folder()
    folder = Path(tempfile.mkdtemp(prefix="everstep-demo-"))
    kept = False
    try:
        if steps is None:
            _say("measuring how fast this computer trains")
            fitting = training(reference.step_s(script, folder / "calibration"))
        else:
            fitting = Training(steps, step_s=0.0)
        _say(f"undisturbed run: {fitting.steps} steps on two plain ranks")
        began = time.monotonic()
        reference.train(script, folder / "undisturbed", steps=fitting.steps, out=folder / "undisturbed" / WEIGHTS)
        _say(f"undisturbed run done in {time.monotonic() - began:.0f} s; now with everything that can go wrong")
        stage = Stage(folder)
        try:
            failures = _perform(stage, script, report, fitting)
        finally:
            with deferred():
                left = stage.close()
        code = _conclude(report, [*failures, *left])
        kept = code != 0
        return code
    except Exception:
        kept = True
        raise
    finally:
        if kept:
            _say(f"what the demo left behind, for a closer look: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _perform(stage: Stage, script: Path, report: Path, training: Training) -> list[str]:
    """The run and its report; what is wrong, one line each."""
    from everstep.cli.demo import evidence, scenario
    from everstep.cli.demo.driver import Driver
    from everstep.cli.demo.live import live
    from everstep.client.taskfile import load_task
    from everstep.client.workdir import pack_workdir

    work = stage.workdir(script, scenario.task_yaml(training, sys.executable))
    loaded = load_task(work / evidence.TASK, cwd=work)
    stage.start_server()
    with stage.client() as client:
        digest = client.upload(pack_workdir(work, into=stage.folder).archive)
        job = client.submit(loaded.uploaded(workdir_digest=digest))
        driver = Driver(stage, client, job, training.steps, show=lambda sight: None)
        with live() as show:
            driver.show = show
            detail = driver.run()
        left = stage.left_over()
        _gather(stage, driver, report, detail)
    missing = [fault.kind.value for fault in scenario.FAULTS[driver.faults_done :]]
    if not any(act["what"] == scenario.DROUGHT for act in driver.acts):
        missing.append(scenario.DROUGHT)
    return [*left, *(f"the job ended before this could happen: {text}" for text in missing)]


def _gather(stage: Stage, driver: Any, report: Path, detail: JobDetail) -> None:
    """Brings the evidence into the report folder."""
    from everstep.cli.demo import evidence, scenario
    from everstep.model.codec import to_dict

    shutil.rmtree(report, ignore_errors=True)  # an older report: _check_report has seen to that
    report.mkdir(parents=True)
    events = [to_dict(event) for event in driver.client.events(driver.job)]
    evidence.write_lines(report / evidence.JOURNAL, events)
    evidence.write_lines(report / evidence.METER, stage.meter())
    evidence.write_lines(report / evidence.ACTS, driver.acts)
    shutil.copyfile(stage.folder / "undisturbed" / scenario.WEIGHTS, report / evidence.REFERENCE)
    shutil.copyfile(stage.folder / "work" / evidence.TASK, report / evidence.TASK)
    shutil.copytree(stage.box_file.parent, report / "cloud")
    (report / "log.txt").write_text("".join(part.text for part in driver.client.logs(driver.job, rank="0")))
    # Outputs come home by node: the master of the last attempt wrote the weights.
    found = [file.path for file in driver.client.outputs(driver.job) if Path(file.path).name == scenario.WEIGHTS]
    if found:
        driver.client.fetch_output(driver.job, found[-1], report / evidence.WEIGHTS)
    else:
        why = f"it is {detail.phase}: {detail.why}" if detail.phase != "succeeded" else "its outputs did not come home"
        (report / _NO_WEIGHTS).write_text(f"the job left no weights: {why}\n")


def _conclude(report: Path, failures: list[str]) -> int:
    """Figures, pictures, verdict; the exit code."""
    from everstep.cli.demo import evidence, figures, page, picture
    from everstep.cli.demo.timeline import timeline

    if not (report / evidence.WEIGHTS).is_file():
        failures.append((report / _NO_WEIGHTS).read_text().strip())
        return _verdict(failures)
    sha, reference_sha = (figures.weights_sha256(report / name) for name in (evidence.WEIGHTS, evidence.REFERENCE))
    journal, meter = evidence.read_lines(report / evidence.JOURNAL), evidence.read_lines(report / evidence.METER)
    acts = evidence.read_lines(report / evidence.ACTS)
    found = figures.summary(journal, meter, weights_sha256=sha, reference_sha256=reference_sha)
    evidence.write_summary(report, found)
    state = figures.fold(journal)
    drawn = timeline(state, acts, journal[-1]["at"])
    svg = picture.as_svg(drawn)
    (report / "timeline.svg").write_text(svg)
    (report / "report.html").write_text(page.page(found, svg, acts, state.submitted_at))
    has_png = picture.write_png(drawn, report / "timeline.png")
    print()
    facts(page.told(found))
    print()
    facts(
        [
            ("report", str(report / "report.html")),
            ("timeline", str(report / ("timeline.png" if has_png else "timeline.svg"))),
            ("figures", str(report / evidence.SUMMARY)),
            ("check them", f"everstep demo --verify {report}"),
        ]
    )
    return _verdict([*figures.failures(found), *failures])


def _verdict(failures: list[str]) -> int:
    for line in failures:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if failures else 0


def _check_torch() -> None:
    import importlib.util

    from everstep.model.errors import EverstepError

    if importlib.util.find_spec("torch") is None:
        raise EverstepError("the demo trains with PyTorch, which is not installed: pip install 'everstep[torch]'")


def _check_report(report: Path) -> None:
    """Raises BadInput if the folder holds something else than an older report, which will be replaced."""
    from everstep.cli import failures
    from everstep.cli.demo import evidence

    if report.is_dir() and (not any(report.iterdir()) or (report / evidence.JOURNAL).is_file()):
        return
    if report.exists():
        raise failures.usage("everstep demo", "--report", f"{report} holds something else", "name a new folder")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
