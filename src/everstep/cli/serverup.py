"""``everstep server up`` and ``down``: a server on a machine that clouds and colleagues reach."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import wording
from everstep.client.home import Home, default_home
from everstep.model.errors import Conflict

if TYPE_CHECKING:
    from everstep.client.placing.hosted import Hosted
    from everstep.client.remote import RemoteServer

up = typer.Typer()


@up.command("ssh")
def up_ssh(
    host: Annotated[str, typer.Argument(metavar="HOST", help="As for ssh: HOST, USER@HOST or an alias.")],
    *,
    address: Annotated[
        str | None, typer.Option("--address", help="Name or address that machines call. Default: what ssh connects to.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where it listens.")] = 7443,
    folder: Annotated[str, typer.Option("--folder", help="For all its files, there.")] = "~/.everstep-server",
    backup: Annotated[str, typer.Option("--backup", metavar="URL", help="Bucket or folder for backups.")] = "",
    restore: Annotated[str, typer.Option("--restore", metavar="URL", help="Begin from the newest backup there.")] = "",
    usd_per_h: Annotated[
        float | None, typer.Option("--usd-per-h", min=0, help="What the machine costs, for `server status`.")
    ] = None,
    ssh_config: Annotated[Path | None, typer.Option("--ssh-config", help="Another ssh configuration (ssh -F).")] = None,
    unit: Annotated[
        bool, typer.Option("--unit/--no-unit", help="systemd starts it after a reboot, if there is one.")
    ] = True,
) -> None:
    """Put the server on a machine that ssh reaches, and talk to it from now on.

    Installs this very everstep there (Python 3.11 or newer, no root), starts it behind TLS, fetches its token and the
    fingerprint of its certificate by ssh. `config.yaml` goes along. Again: updates it, or starts it where it is down.

    Example: `everstep server up ssh gpu-gateway --backup s3://my-bucket/everstep`
    """
    from everstep.client.placing import placing
    from everstep.client.placing.ssh import SshMachine
    from everstep.server.options import read_config

    home = default_home()
    no_other(home)
    machine = SshMachine(host, str(ssh_config.resolve()) if ssh_config is not None else "")
    config = read_config(home.config_file)
    wish = placing.Wish(
        address=address or machine.address(),
        port=port,
        folder=folder,
        config=config,
        extras=extras(config),
        backup=backup,
        restore=restore,
        usd_per_h=usd_per_h,
        unit=unit,
    )
    made = placing.up_by_ssh(home, machine, wish, say=say)
    print(f"running at {made.url} on {made.where}")
    say("the commands here talk to it from now on; everstep server status looks, everstep server down ends it")


def down(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if jobs live, or the server or its machine do not answer.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="The disk too, with the journal (aws and gcp).")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="End nothing: only forget where it is.")] = False,
) -> None:
    """End the server that `server up` put elsewhere, and the machine if it was leased for it.

    The journal and its files stay: on the machine, or on a leased machine's disk. Refused while jobs live.

    Example: `everstep server down`
    """
    from everstep.cli import servercloud
    from everstep.client.placing import hosted, placing

    home = default_home()
    if not forget and hosted.find(home) is not None:
        servercloud.down(home, yes=yes, force=force, delete=delete)
        return
    if delete:
        raise Conflict("--delete is for a machine that was leased for the server; here nothing is deleted")
    found = placing.down(home, even_so=force, forget=forget, say=say)
    done = "forgotten" if forget else "ended"
    print(f"{done}: the server on {found.host}; its journal and files are still there, in {found.folder}")


def place(remote: RemoteServer, hosted: Hosted | None = None, now: float | None = None) -> list[tuple[str, str]]:
    """Where it is, since when, and what it costs."""
    instant = time.time() if now is None else now
    since = instant - remote.since
    cost = "not known; say it with: everstep server up ssh HOST --usd-per-h"
    if remote.usd_per_h is not None:
        so_far = wording.money(remote.usd_per_h * since / 3600)
        cost = f"{wording.money(remote.usd_per_h)}/h, {so_far} so far"
    if hosted is not None:
        cost = cost_of(hosted, instant)
    return [
        ("where", remote.where),
        ("address", remote.url),
        ("there since", f"{wording.instant(remote.since)} ({wording.duration(since)})"),
        ("cost", cost),
    ]


def cost_of(hosted: Hosted, now: float) -> str:
    """``$0.028/h (machine $0.0208, address $0.005, disk $0.0022), $1.20 so far``."""
    parts = [f"{line.what} {wording.money(line.usd_per_h)}" for line in hosted.lines if line.until is None]
    split = f" ({', '.join(parts)})" if parts else ""
    return f"{wording.money(hosted.usd_per_h)}/h{split}, {wording.money(hosted.usd(now))} so far; {hosted.source}"


def document_of(remote: RemoteServer, hosted: Hosted | None = None) -> dict[str, Any]:
    """The same as data; never the token."""
    now = time.time()
    if hosted is not None:
        lines = [
            {"what": x.what, "id": x.id, "usd_per_h": x.usd_per_h, "since": x.since, "until": x.until}
            for x in hosted.lines
        ]
        more = {"usd_per_h": hosted.usd_per_h, "cost_usd": hosted.usd(now), "lines": lines, "zone": hosted.host.zone}
        return {**document_of(remote), **more}
    return {
        "kind": remote.kind,
        "host": remote.host,
        "folder": remote.folder,
        "url": remote.url,
        "fingerprint": remote.fingerprint,
        "since": remote.since,
        "usd_per_h": remote.usd_per_h,
        "cost_usd": None if remote.usd_per_h is None else remote.usd_per_h * (now - remote.since) / 3600,
    }


def no_other(home: Home) -> None:
    """Raises Conflict if a server runs on this computer."""
    from everstep.client import launcher

    if launcher.is_running(home):
        text = "a server runs on this computer, and its jobs would be out of sight"
        raise Conflict(f"{text}; end them, then stop it: everstep server stop")


def extras(config: dict[str, Any]) -> tuple[str, ...]:
    """Extras of everstep that a server with this configuration needs."""
    from everstep import providers

    known = providers.registered()
    wanted = {known[name].extra for name in config.get("providers") or {} if name in known}
    return tuple(sorted({"tls", *wanted} - {""}))


def say(text: str) -> None:
    """What is being done, where it does not mix with what scripts read."""
    print(text, file=sys.stderr, flush=True)
