"""Which commands there are and where each lives: a table, so that listing them imports none of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

PROGRAM = "everstep"


@dataclass(frozen=True, slots=True)
class Entry:
    """One word after ``everstep``.

    Attributes:
        name: the word.
        target: ``module:attribute`` below ``everstep.cli``: a function, or a ``Typer`` for a group of commands.
        help: its line in ``everstep --help``.
        section: heading it is listed under.
    """

    name: str
    target: str
    help: str
    section: str

    @property
    def is_group(self) -> bool:
        """Whether another word follows, as ``ls`` in ``ckpt ls``."""
        return self.target.endswith(":app")

    def load(self) -> Any:
        """The function or group; imports its module."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(f"everstep.cli.{module}"), attribute)


_TRAIN, _LOOK, _STEER, _PLACE = "Train", "Look", "Steer", "Capacity and server"

COMMANDS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("run", "run:run", "Show the plan of a task, start it and follow it.", _TRAIN),
        Entry("check", "check:check", "Kill a training script on purpose: does it come back bit for bit?", _TRAIN),
        Entry("demo", "demo.command:demo", "Watch a two-node job survive what kills jobs elsewhere.", _TRAIN),
        Entry("jobs", "jobs:jobs", "List jobs.", _LOOK),
        Entry("status", "jobs:status", "Show one job: attempts, machines, checkpoints, what it waits for.", _LOOK),
        Entry("logs", "logs:logs", "Print what the ranks wrote, joined across attempts.", _LOOK),
        Entry("events", "events:events", "List what happened to a job.", _LOOK),
        Entry("why", "why:why", "Show every decision, its alternatives and what they would have cost.", _LOOK),
        Entry("cost", "cost:cost", "Show the bill of a job, or of all jobs.", _LOOK),
        Entry("outputs", "outputs:outputs", "List the files that a job brought home, or copy them here.", _LOOK),
        Entry("ckpt", "ckpt:app", "List checkpoints, go back to an older one.", _STEER),
        Entry("cancel", "steer:cancel", "End jobs and give their machines back.", _STEER),
        Entry("pause", "steer:pause", "Save, give the machines back, keep the checkpoints.", _STEER),
        Entry("unpause", "steer:unpause", "Go on with paused jobs.", _STEER),
        Entry("retry", "steer:retry", "Run failed or cancelled jobs again: same id, same checkpoints.", _STEER),
        Entry("exec", "exec:exec_", "Run a command on every machine of a job.", _STEER),
        Entry("offers", "offers:offers", "List what can be leased now.", _PLACE),
        Entry("sim", "sim:app", "What would this have cost? Policies over recorded traces.", _PLACE),
        Entry("estimate", "estimate:estimate", "What will a task cost, by when, how surely?", _PLACE),
        Entry("prices", "prices:app", "What machines cost over time, by zone: list or draw it.", _PLACE),
        Entry("server", "server:app", "Start, stop or look at the server.", _PLACE),
        Entry("doctor", "doctor:doctor", "Is a cloud ready? What is missing, and how to mend it.", _PLACE),
        Entry("cloud", "cloud:app", "What of ours is in a cloud account, and the end of what nobody knows.", _PLACE),
        Entry("local", "local:app", "Machines of the cloud in a box, and faults on command.", _PLACE),
        Entry("forecast", "forecast:app", "How long machines last: fit, judge and draw models.", _PLACE),
        Entry("version", "version:version", "Print the version.", _PLACE),
    )
}


_OTHER_WORDS = {
    "run": ("apply", "launch", "sbatch", "submit", "up"),
    "jobs": ("list", "ls", "ps", "queue", "squeue"),
    "cancel": ("delete", "down", "kill", "rm", "scancel", "stop"),
    "ckpt": ("checkpoint", "checkpoints"),
}
"""What other schedulers call our commands: fingers know those."""


def meant(word: str) -> str:
    """As ``nearest``, for a command; knows what others call it."""
    for name, others in _OTHER_WORDS.items():
        if word in others:
            return f"did you mean '{name}'?"
    return nearest(word, COMMANDS)


def nearest(word: str, choices: Iterable[str]) -> str:
    """``did you mean 'jobs'?``, or nothing if no choice is close."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean '{close[0]}'?" if close else ""


def build(names: Iterable[str]) -> typer.Typer:
    """The program, with only ``names`` loaded; the others are listed by their line in the table."""
    app = typer.Typer(
        name=PROGRAM,
        help="Train deep-learning models on spot capacity as if it were reliable.",
        epilog="`everstep COMMAND --help` shows an example. `everstep demo` shows the whole thing at work.",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    wanted = set(names)
    for entry in COMMANDS.values():
        found = entry.load() if entry.name in wanted else _unloaded
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=entry.name, help=entry.help, rich_help_panel=entry.section)
        else:
            settings = {"ignore_unknown_options": True} if found is _unloaded else None
            app.command(entry.name, short_help=entry.help, rich_help_panel=entry.section, context_settings=settings)(
                found
            )
    return app


def _unloaded() -> None:
    raise AssertionError("a command was run without being loaded")


def _version_wanted(wanted: bool) -> None:
    if wanted:
        from everstep import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version_wanted, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    del version
