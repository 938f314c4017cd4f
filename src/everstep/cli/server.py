"""``everstep server``: the process that looks after jobs. It runs in the background; jobs outlive it for a while."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import servercloud, serverup, wording
from everstep.cli.output import Output, OutputOption, document, facts
from everstep.client.home import Home, default_home
from everstep.model.codec import to_dict
from everstep.model.errors import Conflict

if TYPE_CHECKING:
    from everstep.client.placing.hosted import Hosted
    from everstep.client.remote import RemoteServer

app = typer.Typer()
app.add_typer(serverup.up, name="up", help="Put the server on a machine that clouds reach.")
serverup.up.command("aws")(servercloud.up_aws)
serverup.up.command("gcp")(servercloud.up_gcp)
app.command("down")(serverup.down)

_BARE = ("--tls", "--insecure")
"""Flags of ``start`` without a value."""


@app.command("start")
def start(
    *,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Default: the one it had last.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="TLS with a certificate of its own making.")] = False,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen elsewhere although there is no TLS.")] = False,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="URL", help="What machines are told to call.")
    ] = None,
    backup: Annotated[str | None, typer.Option("--backup", metavar="URL", help="Bucket or folder for backups.")] = None,
    cloud: Annotated[Path | None, typer.Option("--cloud", help="What the cloud in a box offers, YAML.")] = None,
) -> None:
    """Start the server in the background, unless it runs. One that runs must be stopped to get other options.

    Example: `everstep server start`
    """
    from everstep.cli import link
    from everstep.client import launcher

    given = {
        "--host": host,
        "--port": port,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--advertise": advertise,
        "--backup": backup,
        "--cloud": cloud,
    }
    # The server runs in a folder of its own.
    asked = {flag: str(v.resolve() if isinstance(v, Path) else v) for flag, v in given.items() if v is not None}
    asked |= {flag: "" for flag, said in zip(_BARE, (tls, insecure), strict=True) if said}
    home = default_home()
    _not_elsewhere(home, "start")
    ran = launcher.is_running(home)
    if ran:
        _must_run_so(home, asked)
    info = launcher.start_background(home, arguments=tuple(_words(asked)), on_slow=link.tell_slow)
    if ran:
        _must_run_so(home, asked)  # it may have been on its way up, and not have said how it runs
    print(f"{'already running' if ran else 'running'} at {info.url} (pid {info.pid})")


def _must_run_so(home: Home, asked: Mapping[str, str]) -> None:
    """Ends the command if a server runs, and otherwise than it is asked to."""
    from everstep.cli import failures
    from everstep.client import launcher

    if not asked:
        return
    now = launcher.status(home)
    other = {flag: value for flag, value in asked.items() if now.info and now.info.options.get(flag) != value}
    if other:
        text = f"{shlex.join(_words(other))} cannot be given to a server that runs already: {now.text}"
        raise failures.usage("everstep server start", "", text, "stop it first: everstep server stop")


def _words(asked: Mapping[str, str]) -> list[str]:
    return [word for flag, value in asked.items() for word in ((flag,) if flag in _BARE else (flag, value))]


@app.command("stop")
def stop() -> None:
    """Stop the server. Jobs and their machines go on; machines stop by themselves when nobody renews their lease.

    The cloud in a box goes on, too, if there is one: `everstep local stop` ends it.

    Example: `everstep server stop`
    """
    from everstep.cli import local
    from everstep.client import launcher

    home = default_home()
    _not_elsewhere(home, "stop")
    live = _live_jobs(home)
    stopped = launcher.stop(home)
    print("stopped" if stopped else f"no server runs for {home.path}")
    if stopped and live:
        # On stderr: what scripts read is the word above.
        many = f"{live} jobs go" if live > 1 else "1 job goes"
        text = f"{many} on without it, machines and bill included; everstep server start comes back to them"
        print(text if live > 1 else text.replace("them", "it"), file=sys.stderr)
    box = local.left_behind(home)
    if box:
        print(box, file=sys.stderr)


def _live_jobs(home: Home) -> int:
    """How many jobs the server looks after; 0 if it does not say so at once."""
    from everstep.client.api import Client
    from everstep.model.errors import EverstepError

    try:
        with Client(home=home, timeout_s=2.0) as client:
            return sum(count for phase, count in client.health().jobs.items() if phase != "ended")
    except (EverstepError, OSError):
        return 0


@app.command("status")
def status(output: OutputOption = Output.TABLE) -> None:
    """Say whether the server runs and what it sees. The exit code is 3 if it does not answer.

    Example: `everstep server status -o json`
    """
    from everstep.cli import failures, link
    from everstep.client import launcher, remote
    from everstep.client.home import NoServer
    from everstep.client.placing import hosted

    machine = hosted.find(default_home())
    there = remote.find(default_home())
    now = launcher.status(default_home()) if there is None else None
    text = now.text if now is not None else f"running at {there.url}" if there is not None else ""
    try:
        if now is not None and not now.healthy:
            raise NoServer(now.text)
        with link.connected() as client:
            health = client.health()
    except NoServer as error:
        if output is Output.TABLE:
            print(error)
            facts(serverup.place(there, machine) if there is not None else [])
            if machine is not None:
                facts(servercloud.kept(machine, is_remembered=there is not None))
        else:
            running = None if now is None else now.running
            document({"running": running, "healthy": False, "text": str(error), **_remote(there, machine)}, output)
        raise typer.Exit(failures.UNREACHABLE) from None
    if output is not Output.TABLE:
        document({**to_dict(health), **_remote(there, machine)}, output)
        return
    providers = [f"{p.name} {'ok' if p.ok else p.error}" for p in health.providers]
    facts(
        [
            ("server", text),
            *(serverup.place(there, machine) if there is not None else []),
            ("version", health.version),
            ("up for", wording.duration(health.now - health.started_at)),
            ("deployment", health.deployment),
            ("jobs", ", ".join(f"{count} {phase}" for phase, count in health.jobs.items()) or "none"),
            ("providers", ", ".join(providers)),
            ("backup", health.backup),
            ("files", health.files),
        ]
    )


@app.command("restore")
def restore(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the backups are: file:///, s3://, gs://, az://.")],
    deployment: Annotated[str, typer.Option("--deployment", help="Whose, if there are several.")] = "",
) -> None:
    """Put the newest backup into an empty `EVERSTEP_HOME`. The server that made it must be gone for good.

    Example: `everstep server restore s3://my-bucket/everstep`
    """
    import asyncio

    from everstep.server import backup

    home = default_home()
    _not_elsewhere(home, "start")
    about = asyncio.run(backup.restore(home, url, deployment=deployment))
    print(f"restored to {home.path}: the server {about['deployment']} as it was {wording.ago(about['at'])}")
    print("start it where machines find it, at its old address: everstep server start")


def _remote(there: RemoteServer | None, machine: Hosted | None) -> dict[str, Any]:
    if there is None:
        return {} if machine is None else {"kept": servercloud.kept_document(machine)}
    return {"remote": serverup.document_of(there, machine)}


def _not_elsewhere(home: Home, verb: str) -> None:
    from everstep.client import remote

    there = remote.find(home)
    if there is not None:
        text = f"the server is on {there.where}; everstep server down ends it"
        raise Conflict(text if verb == "stop" else f"{text}, everstep server up starts it again")
