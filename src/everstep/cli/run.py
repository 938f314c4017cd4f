"""``everstep run``: plan, ask, submit, follow."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import failures, link, wording
from everstep.cli.output import Column, Output, OutputOption, document, facts, table
from everstep.cli.variables import EnvOption, SecretOption, variables

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import PlanView
    from everstep.client.taskfile import LoadedTask, Override

_COMMAND = "everstep run"
#: More offers than that hide the choice; `everstep offers` lists them all.
_OFFERS_SHOWN = 8


def run(
    context: typer.Context,
    task: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK.yaml | -- CMD...]", help="A task file, or a command.")
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, start nothing.")] = False,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    num_nodes: Annotated[int | None, typer.Option("--num-nodes", min=1, help="Machines.")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks to start on each machine.")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="Accelerators of each machine, as A100:8.")] = None,
    spot: Annotated[bool | None, typer.Option("--spot/--no-spot", help="Only spot, or none. Default: auto.")] = None,
    env: EnvOption = None,
    secret: SecretOption = None,
    workdir: Annotated[Path | None, typer.Option("--workdir", help="Local folder to bring along.")] = None,
    keep_on_failure: Annotated[
        str | None, typer.Option("--keep-on-failure", metavar="60m", help="Keep machines after a failure, billed.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Whose job it is.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the plan of a task, start it and follow it. Ctrl-C leaves it running.

    The exit code is the job's. A server is started in the background if none runs; jobs outlive this command.

    Examples: `everstep run task.yaml`, `everstep run --gpus A100 --nproc 1 -y -- python train.py --lr 3e-4`
    """
    flags = {
        "--name": name,
        "--num-nodes": num_nodes,
        "--nproc": nproc,
        "--gpus": gpus,
        "--spot": spot,
        "--workdir": None if workdir is None else str(workdir),
        "--keep-on-failure": keep_on_failure,
    }
    loaded = _load(task or [], context.obj.command, flags, env or [], secret or [])
    if not (yes or dry_run or sys.stdin.isatty()):
        raise failures.usage(_COMMAND, "", "asks before it spends, and there is no terminal to ask on", "add -y")
    with link.started() as client:
        ready = loaded if dry_run else _bring(client, loaded)
        plan = client.plan(ready.task)
        if dry_run:
            document(plan, output) if output is not Output.TABLE else _show(ready, plan)
            return
        # On stdout is the job's output, or its id alone.
        with contextlib.redirect_stdout(sys.stderr):
            _show(ready, plan)
        if not yes and not typer.confirm("Start it?", default=True, err=True):
            raise typer.Exit(failures.REFUSED)
        job = client.submit(ready.task, secrets=ready.secrets, project=project)
    if detach:
        # The id alone on stdout: `job=$(everstep run -y -d task.yaml)`.
        print(job)
        _say(f"started {job}; follow it with: everstep logs -f {job}")
        return
    _say(f"started {job}; Ctrl-C leaves it running")
    raise typer.Exit(_follow(job))


def _bring(client: Client, loaded: LoadedTask) -> LoadedTask:
    from everstep.client.bringing import bring

    return bring(client, loaded, _say)


def _follow(job: str) -> int:
    from everstep.cli.follow import follow

    try:
        return follow(job)
    except KeyboardInterrupt:
        _say(f"\nleft {job} running. Come back: everstep logs -f {job}   End it: everstep cancel {job}")
        return failures.INTERRUPTED


# --- The task --------------------------------------------------------------------------------------------------------


def _load(
    words: list[str],
    command: list[str] | None,
    flags: dict[str, str | int | bool | None],
    env: list[str],
    secret: list[str],
) -> LoadedTask:
    from everstep.client.taskfile import load_task, task_from_dict

    envs = variables(env, "--env", _COMMAND)
    secrets = variables(secret, "--secret", _COMMAND)
    overrides = _overrides(flags)
    if command is None:
        return load_task(_only_file(words), envs=envs, secrets=secrets, overrides=overrides)
    if words:
        raise failures.usage(_COMMAND, "", f"takes a task file or a command, not both: '{words[0]}' stands before --")
    if not command:
        raise failures.usage(_COMMAND, "", "the command is missing after --", f"write {_COMMAND} -- python train.py")
    text = command[0] if len(command) == 1 else shlex.join(command)
    named = {"run": text, "name": _job_name(command)}
    loaded = task_from_dict(named, name="the command line", envs=envs, secrets=secrets, overrides=overrides)
    if flags["--nproc"] is None or len(command) == 1:
        return loaded
    # Once per rank and without a shell in between, so that each word arrives as it was typed.
    return dataclasses.replace(loaded, task=dataclasses.replace(loaded.task, run="", argv=tuple(command)))


def _only_file(words: list[str]) -> Path:
    if not words:
        fix = f"write {_COMMAND} task.yaml, or {_COMMAND} -- python train.py"
        raise failures.usage(_COMMAND, "", "a task file or a command is missing", fix)
    if len(words) > 1 and words[0].endswith((".yaml", ".yml")):
        raise failures.usage(_COMMAND, "", f"takes one task file; unexpected: {shlex.join(words[1:])}")
    if len(words) > 1:
        raise failures.usage(
            _COMMAND, "", "takes one task file", f"to run a command write {_COMMAND} -- {shlex.join(words)}"
        )
    if words[0].endswith(".py"):
        raise failures.usage(_COMMAND, "", f"'{words[0]}' is no task file", f"write {_COMMAND} -- python {words[0]}")
    return Path(words[0])


_KEYS = {
    "--name": "name",
    "--num-nodes": "num_nodes",
    "--nproc": "resources.ranks_per_node",
    "--gpus": "resources.accelerators",
    "--spot": "resources.spot",
    "--workdir": "workdir",
    "--keep-on-failure": "recovery.keep_on_failure",
}


def _overrides(flags: dict[str, str | int | bool | None]) -> list[Override]:
    from everstep.client.taskfile import Override

    return [Override(flag, key, flags[flag]) for flag, key in _KEYS.items() if flags[flag] is not None]


def _job_name(command: list[str]) -> str:
    """``train`` for ``python train.py --lr 1``: the first word that looks like a script, else the program."""
    scripts = [word for word in command[1:] if word.endswith((".py", ".sh"))]
    text = Path(scripts[0] if scripts else command[0].split()[0] if command[0].split() else "task").stem
    cleaned = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-").lower()
    return cleaned if cleaned and cleaned[0].isalpha() else "task"


# --- The plan --------------------------------------------------------------------------------------------------------


def _show(loaded: LoadedTask, plan: PlanView) -> None:
    from everstep.cli.offers import COLUMNS
    from everstep.client.resuming import resumed_by

    for warning in dict.fromkeys([*loaded.warnings, *plan.warnings]):
        _say(f"warning: {warning}")
    if plan.offers:
        machines = Counter(plan.offers)
        count = Column("MACHINES", lambda offer: str(machines[offer]), right=True)
        table(list(machines)[:_OFFERS_SHOWN], (count, *COLUMNS))
        if len(machines) > _OFFERS_SHOWN:
            print(f"... and {len(machines) - _OFFERS_SHOWN} more (everstep offers)")
        print()
    task = loaded.task
    facts(
        [
            (
                "task",
                f"{task.name}, {task.gang.size} node{'' if task.gang.size == 1 else 's'}, spot: {task.spot.value}",
            ),
            ("choice", _choice(plan)),
            ("price", f"{wording.price(plan.hourly_usd)} in all" if plan.hourly_usd else ""),
            ("waits for", plan.wait),
            ("resumed by", resumed_by(task, loaded.workdir)),
            *(("because", reason) for reason in plan.reasons[:3]),
        ]
    )


def _choice(plan: PlanView) -> str:
    """``local harbour-a gpu.large spot at $0.92/h``; empty if nothing can be had now."""
    chosen = plan.choice
    named = (str(chosen.get(key) or "") for key in ("provider", "zone", "machine_type", "market"))
    price = chosen.get("price_usd_per_h")
    at = f" at {wording.money(price)}/h" if price is not None else ""
    return " ".join(wording.words(name) if name == chosen.get("market") else name for name in named if name) + at


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
