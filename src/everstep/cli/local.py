"""``everstep local``: the cloud in a box. Talks to the box itself, as a vendor's console does; no server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import wording
from everstep.cli.output import Column, Output, OutputOption, listing
from everstep.client.home import Home, default_home
from everstep.model.errors import BadInput, EverstepError, Problem

app = typer.Typer()

BoxOption = Annotated[
    Path | None, typer.Option("--box", metavar="DIR", help="Folder of the box. Default: that of the server here.")
]
_AT_ONCE_S = 2.0
InstanceArgument = Annotated[str, typer.Argument(metavar="INSTANCE", help="Instance id, or the beginning of one.")]


def box_of(home: Home) -> Path:
    """Folder of the box that the server of an installation uses."""
    return home.path / "local"


def call(box: Path | None, method: str, params: Mapping[str, Any] | None = None) -> Any:
    """One call of the box. Raises EverstepError with one line when none runs; never starts one."""
    from everstep.providers.local import rpc

    home = box_of(default_home()) if box is None else box
    try:
        return asyncio.run(rpc.call(home, method, dict(params or {})))
    except (ConnectionRefusedError, FileNotFoundError):
        raise EverstepError(f"no cloud in a box runs in {home}; everstep server start starts it") from None


def instances(box: Path | None) -> list[dict[str, Any]]:
    """Every machine of the box, newest last."""
    return list(call(box, "status")["instances"])


def left_behind(home: Home) -> str:
    """One line about the box that goes on without its server; empty if none runs, or it does not answer at once."""
    from everstep.providers.local import rpc

    async def ask() -> Any:
        async with asyncio.timeout(_AT_ONCE_S):
            return await rpc.call(box_of(home), "status", {})

    try:
        alive = sum(1 for machine in asyncio.run(ask())["instances"] if machine["alive"])
    except (EverstepError, OSError):
        return ""
    if not alive:
        return "the cloud in a box goes on, without machines, until everstep local stop ends it"
    many = wording.count(alive, "machine")
    return f"the cloud in a box goes on, with {many}, until everstep local stop ends both"


@app.command("ls")
def ls(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also machines that ended.")] = False,
    box: BoxOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the machines of the box.

    Example: `everstep local ls --all`
    """
    found = [machine for machine in instances(box) if all_ or machine["alive"]]
    listing(found, _COLUMNS, output, empty="no machines")


@app.command("preempt")
def preempt(
    instance: InstanceArgument,
    notice: Annotated[bool, typer.Option("--notice/--no-notice", help="Warn first, as clouds usually do.")] = True,
    notice_s: Annotated[float | None, typer.Option("--notice-s", min=0, help="Seconds of warning.")] = None,
    box: BoxOption = None,
) -> None:
    """Take a machine back: with the usual warning, with another one, or with none.

    Example: `everstep local preempt i-0003 --notice-s 10`
    """
    machine = _one(box, instance)
    call(box, "preempt", {"instance": machine, "notice": notice, "notice_s": notice_s})
    print(f"{machine}: {'will be' if notice else 'is'} taken back")


@app.command("kill")
def kill(
    instance: InstanceArgument,
    silent: Annotated[bool, typer.Option("--silent", help="As if its power failed: sockets stay open.")] = False,
    detect_s: Annotated[float, typer.Option("--detect-s", min=0, help="The API tells so many seconds later.")] = 0.0,
    box: BoxOption = None,
) -> None:
    """Lose a machine without notice.

    Example: `everstep local kill i-0003 --silent --detect-s 30`
    """
    machine = _one(box, instance)
    call(box, "kill", {"instance": machine, "detect_s": detect_s, "silent": silent})
    print(f"{machine}: lost")


@app.command("partition")
def partition(
    instance: InstanceArgument,
    reset: Annotated[bool, typer.Option("--reset", help="Break connections, instead of silence.")] = False,
    box: BoxOption = None,
) -> None:
    """Cut a machine's agent off from the server, until `heal`.

    Example: `everstep local partition i-0003`
    """
    machine = _one(box, instance)
    call(box, "partition", {"instance": machine, "mode": "reset" if reset else "blackhole"})
    print(f"{machine}: cut off; mend it with: everstep local heal {machine}")


@app.command("heal")
def heal(instance: InstanceArgument, box: BoxOption = None) -> None:
    """End a partition.

    Example: `everstep local heal i-0003`
    """
    machine = _one(box, instance)
    call(box, "partition", {"instance": machine, "mode": ""})
    print(f"{machine}: reachable")


@app.command("stop")
def stop(box: BoxOption = None) -> None:
    """End every machine of the box, then its process; disks stay. A server that needs the box starts it again.

    Example: `everstep local stop`
    """
    call(box, "stop")
    print("stopped")


def _one(box: Path | None, text: str) -> str:
    """The id of the one live machine that ``text`` begins."""
    found = [str(machine["id"]) for machine in instances(box) if machine["alive"] and machine["id"].startswith(text)]
    if len(found) == 1 or text in found:
        return text if text in found else found[0]
    message = f"'{text}' begins {len(found)} live machines" if found else f"no live machine begins with '{text}'"
    fix = f"write more of one of {', '.join(found[:5])}" if found else "everstep local ls lists them"
    raise BadInput(Problem("everstep local", "INSTANCE", message, fix))


_COLUMNS = (
    Column("MACHINE", lambda m: str(m["id"])),
    Column("JOB", lambda m: str(m["job"] or "")),
    Column("ZONE", lambda m: str(m["zone"])),
    Column("TYPE", lambda m: str(m["machine_type"])),
    Column("MARKET", lambda m: wording.words(m["market"])),
    Column("$/H", lambda m: wording.price(m["price_usd_per_h"]), right=True),
    Column("SINCE", lambda m: wording.ago(m["started_at"])),
    Column("AGENT", lambda m: str(m["agent_state"])),
    Column("NOTICE", lambda m: wording.words(m["notice"])),
    Column("CUT OFF", lambda m: "yes" if m["partition"] else ""),
    Column("ENDED BY", lambda m: wording.words(m["end"])),
)
