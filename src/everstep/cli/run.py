"""``everstep run``: plan, ask, submit, follow."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import typer

from everstep.cli import failures, link, plans
from everstep.cli.output import Output, OutputOption, document
from everstep.cli.variables import EnvOption, SecretOption, variables
from everstep.model.errors import BadInput, Problem

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import PlanView
    from everstep.client.taskfile import LoadedTask, Override

_COMMAND = "everstep run"


_Flags: TypeAlias = dict[str, "str | int | bool | list[str] | None"]


WorkdirOption = Annotated[
    Path | None, typer.Option("--workdir", help="Folder to bring along. Default: this one, if CMD names a file in it.")
]
BringHomeOption = Annotated[
    list[str] | None, typer.Option("--bring-home", metavar="PATH", help="What to keep at the end. Repeat for more.")
]


class _Around(TypedDict):
    warnings: Iterable[str]
    resumed: str


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
    workdir: WorkdirOption = None,
    bring_home: BringHomeOption = None,
    keep_on_failure: Annotated[
        str | None, typer.Option("--keep-on-failure", metavar="60m", help="Keep machines after a failure, billed.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Whose job it is.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the plan of a task, start it and follow it. Ctrl-C leaves it running.

    The exit code is the job's, which outlives this command. If no server runs, one is started; not by --dry-run.

    Examples: `everstep run task.yaml`, `everstep run --gpus A100 --bring-home model.pt -- python train.py --lr 3e-4`
    """
    flags: _Flags = {
        "--name": name,
        "--num-nodes": num_nodes,
        "--nproc": nproc,
        "--gpus": gpus,
        "--spot": spot,
        "--workdir": None if workdir is None else str(workdir),
        "--bring-home": bring_home,
        "--keep-on-failure": keep_on_failure,
    }
    loaded = _load(task or [], context.obj.command, flags, env or [], secret or [])
    plans.must_be_able_to_ask(_COMMAND, yes=yes or dry_run)
    if dry_run:
        _show(loaded, output)
        return
    with link.started() as client:
        plan = _sold(loaded, client.plan(loaded.task))
        ready = _bring(client, loaded)
        # On stdout is the job's output, or its id alone.
        plans.show_on_stderr(ready.task, plan, **_around(ready))
        plans.ask("Start it?", yes=yes)
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


def _show(loaded: LoadedTask, output: Output) -> None:
    """The plan, once what would be uploaded is found good; nothing is started."""
    from everstep.client.bringing import look

    look(loaded, _say)
    plan = _sold(loaded, link.plan(loaded.task))
    document(plan, output) if output is not Output.TABLE else plans.show(loaded.task, plan, **_around(loaded))


def _sold(loaded: LoadedTask, plan: PlanView) -> PlanView:
    """The plan; a task that nothing on sale fits would wait for ever, and is refused."""
    if plan.unsold:
        for warning in loaded.warnings:  # such as one about the name of a provider
            _say(f"warning: {warning}")
        raise BadInput(Problem(loaded.source, "resources", plan.unsold))
    return plan


def _around(loaded: LoadedTask) -> _Around:
    from everstep.client.resuming import resumed_by

    return {"warnings": loaded.warnings, "resumed": resumed_by(loaded.task, loaded.workdir)}


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
    flags: _Flags,
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
    _script_is_there(_words(text), Path(str(flags["--workdir"] or ".")))
    named = {"run": text, "name": _job_name(command), **_brought(command, flags["--workdir"] is not None)}
    loaded = task_from_dict(named, name="the command line", envs=envs, secrets=secrets, overrides=overrides)
    if flags["--nproc"] is None or len(command) == 1:
        return loaded
    # Once per rank and without a shell in between, so that each word arrives as it was typed.
    return dataclasses.replace(loaded, task=dataclasses.replace(loaded.task, run="", argv=tuple(command)))


_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_FLAG_ALONE = re.compile(r"-[bBdEiIOPqsSuvx]+")
_PLAIN_NAME = re.compile(r"\w[\w./ -]*\.py")


def _script_is_there(words: list[str], folder: Path) -> None:
    """Raises a usage error for ``python FILE`` whose file nothing could bring: it is in no folder that comes along."""
    if not words or not _PYTHON.fullmatch(words[0]):
        return
    name = next((word for word in words[1:] if not _FLAG_ALONE.fullmatch(word)), "")
    # What a shell would make of another name, and what is on the machines already, is not known here.
    if not _PLAIN_NAME.fullmatch(name) or not folder.is_dir() or (folder / name).is_file():
        return
    from everstep.client.taskfile.reading import closest

    near = closest(name, sorted(path.name for path in folder.glob("*.py")))
    fix = f"did you mean '{near}'?" if near else "go to its folder, or give that with --workdir"
    raise failures.usage(_COMMAND, "", f"there is no file {name} in {folder.resolve()}", fix)


def _brought(command: list[str], told: bool) -> dict[str, str]:
    """Whoever types ``python train.py`` means the script that is here: this folder comes along."""
    words = _words(command[0]) if len(command) == 1 else command
    modules = [word.replace(".", "/") for flag, word in itertools.pairwise(words) if flag == "-m"]
    files = [*words, *(f"{name}{end}" for name in modules for end in (".py", "/__main__.py"))]
    named = next((name for name in files if not os.path.isabs(name) and os.path.isfile(name)), None)
    if named is None or told:
        return {}
    here = Path.cwd()
    if here in (Path.home(), Path(here.anchor)):
        _say(
            f"warning: {named} is not brought along: {here} is too much; give --workdir, or type this in its own folder"
        )
        return {}
    _say(f"{here} is brought along, as the command names {named}; another folder: --workdir")
    return {"workdir": "."}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # whatever the shell will say of it
        return line.split()


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
    "--bring-home": "outputs",
    "--keep-on-failure": "recovery.keep_on_failure",
}


def _overrides(flags: _Flags) -> list[Override]:
    from everstep.client.taskfile import Override

    return [Override(flag, key, flags[flag]) for flag, key in _KEYS.items() if flags[flag] is not None]


def _job_name(command: list[str]) -> str:
    """``train`` for ``python train.py --lr 1``: the first word that looks like a script, else the program."""
    scripts = [word for word in command[1:] if word.endswith((".py", ".sh"))]
    text = Path(scripts[0] if scripts else command[0].split()[0] if command[0].split() else "task").stem
    cleaned = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-").lower()
    return cleaned if cleaned and cleaned[0].isalpha() else "task"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
