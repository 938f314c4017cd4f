"""``everstep exec``."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import failures, link
from everstep.cli.jobs import JobArgument

if TYPE_CHECKING:
    from everstep.client.api import Client
    from everstep.client.results import ExecResult

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


def exec_(
    context: typer.Context,
    job: JobArgument,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, help="Give up waiting after so many seconds.")] = 60.0,
) -> None:
    """Run a command on every machine of a job, beside the ranks. The exit code is the worst one.

    Example: `everstep exec j-7k2m -- nvidia-smi`
    """
    words = context.obj.command
    if not words:
        raise failures.usage("everstep exec", "", "the command is missing", "write: everstep exec JOB -- COMMAND")
    # One word is a line for the shell, as with ssh; several are quoted so that each arrives as it is.
    command = words[0] if len(words) == 1 else shlex.join(words)
    with link.connected() as client:
        results = _wait(client, job, client.exec(job, command), timeout_s)
    for result in results:
        for line in result.text.splitlines():
            print(f"{result.instance}: {line}" if len(results) > 1 else line)
        if result.lost:
            print(f"everstep exec: {result.instance} was lost before it answered", file=sys.stderr)
    # A machine that did not answer did not succeed; a signal is told as shells do, 128 and its number.
    codes = [1 if result.rc is None else result.rc if result.rc >= 0 else 128 - result.rc for result in results]
    raise typer.Exit(max(codes, default=0))


def _wait(client: Client, job: str, exec_id: str, timeout_s: float) -> tuple[ExecResult, ...]:
    pause_s, deadline = _FIRST_PAUSE_S, time.monotonic() + timeout_s
    while not (answer := client.exec_result(job, exec_id)).done:
        if time.monotonic() >= deadline:
            print(f"everstep exec: still running after {timeout_s:g} s; what came so far:", file=sys.stderr)
            break
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return answer.results
