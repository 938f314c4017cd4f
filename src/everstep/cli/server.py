"""``everstep server``: the process that looks after jobs. It runs in the background; jobs outlive it for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import wording
from everstep.cli.output import Output, OutputOption, document, facts
from everstep.client.home import default_home

app = typer.Typer()


@app.command("start")
def start(
    *,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Default: the one it had last.")] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen elsewhere although there is no TLS.")] = False,
    cloud: Annotated[Path | None, typer.Option("--cloud", help="What the cloud in a box offers, YAML.")] = None,
) -> None:
    """Start the server in the background, unless it runs.

    Example: `everstep server start`
    """
    from everstep.client import launcher

    given = {"--host": host, "--port": port, "--tls-cert": tls_cert, "--tls-key": tls_key, "--cloud": cloud}
    arguments: list[str] = []
    for flag, value in given.items():
        if value is not None:
            # The server runs in a folder of its own.
            arguments += [flag, str(value.resolve() if isinstance(value, Path) else value)]
    if insecure:
        arguments.append("--insecure")
    home = default_home()
    ran = launcher.is_running(home)
    info = launcher.start_background(home, arguments=tuple(arguments))
    late = f"; not used: {' '.join(arguments)} (stop it first: everstep server stop)" if ran and arguments else ""
    print(f"{'already running' if ran else 'running'} at {info.url} (pid {info.pid}){late}")


@app.command("stop")
def stop() -> None:
    """Stop the server. Jobs and their machines go on; machines stop by themselves when nobody renews their lease.

    Example: `everstep server stop`
    """
    from everstep.client import launcher

    home = default_home()
    print("stopped" if launcher.stop(home) else f"no server runs for {home.path}")


@app.command("status")
def status(output: OutputOption = Output.TABLE) -> None:
    """Say whether the server runs and what it sees. The exit code is 3 if it does not answer.

    Example: `everstep server status -o json`
    """
    from everstep.cli import failures, link
    from everstep.client import launcher

    now = launcher.status(default_home())
    if not now.healthy:
        if output is Output.TABLE:
            print(now.text)
        else:
            document({"running": now.running, "healthy": False, "text": now.text}, output)
        raise typer.Exit(failures.UNREACHABLE)
    with link.connected() as client:
        health = client.health()
    if output is not Output.TABLE:
        document(health, output)
        return
    providers = [f"{p.name} {'ok' if p.ok else p.error}" for p in health.providers]
    facts(
        [
            ("server", now.text),
            ("version", health.version),
            ("up for", wording.duration(health.now - health.started_at)),
            ("deployment", health.deployment),
            ("jobs", ", ".join(f"{count} {phase}" for phase, count in health.jobs.items()) or "none"),
            ("providers", ", ".join(providers)),
        ]
    )
