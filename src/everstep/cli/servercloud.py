"""``everstep server up aws|gcp``: the server on a small machine that is leased for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everstep.cli import plans, serverup, wording
from everstep.client.home import Home, default_home
from everstep.model.errors import BadInput, Problem

if TYPE_CHECKING:
    from everstep.client.placing.hosted import Hosted
    from everstep.client.placing.leasing import Wanted
    from everstep.client.placing.placing import Wish
    from everstep.providers.hosting import Hosting, Rates

Zone = Annotated[str, typer.Option("--zone", help="Of the machine and its disk. Default: the first that sells it.")]
DiskGib = Annotated[int, typer.Option("--disk-gib", min=4, max=16_384, help="For journal, logs and outputs.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="CIDR", help="Who may call it: this computer and all leased machines. Repeatable."),
]
Image = Annotated[str, typer.Option("--image", help="Default: Ubuntu 24.04. Needs Python 3.11 and OpenSSH.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Where it listens.")]
Address = Annotated[str, typer.Option("--address", help="Name that leads there. Default: the machine's own address.")]
Backup = Annotated[str, typer.Option("--backup", metavar="URL", help="Bucket for backups.")]
Restore = Annotated[str, typer.Option("--restore", metavar="URL", help="Begin from the newest backup there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def up_aws(
    *,
    region: Annotated[str, typer.Option("--region", help="Default: the first of providers.aws.regions.")] = "",
    zone: Zone = "",
    machine: Annotated[str, typer.Option("--machine", metavar="TYPE", help="Of the machine, on demand.")] = "t3.small",
    profile: Annotated[
        str, typer.Option("--profile", help="Instance profile: what the server may do (docs/server.md).")
    ] = "",
    allow: Allow = None,
    disk_gib: DiskGib = 20,
    image: Image = "",
    port: Port = 7443,
    address: Address = "",
    backup: Backup = "",
    restore: Restore = "",
    yes: Yes = False,
) -> None:
    """Lease a small EC2 machine, put the server on it, and talk to it from now on.

    Its journal is on a disk of its own that outlives the machine; a security group lets `--allow` in. No key is copied
    there: what the server may do is its instance profile. Again: updates it, or brings it back on the same disk.

    Example: `everstep server up aws --allow 0.0.0.0/0 --profile everstep-server --backup s3://my-bucket/everstep`
    """
    from everstep.client.placing.leasing import Wanted

    wanted = Wanted(machine, disk_gib, port, tuple(allow or ()), zone, profile, image)
    _up("aws", {"region": region}, wanted, extra=(address, backup, restore), yes=yes)


def up_gcp(
    *,
    region: Annotated[str, typer.Option("--region", help="Default: the first of providers.gcp.regions.")] = "",
    zone: Zone = "",
    machine: Annotated[str, typer.Option("--machine", metavar="TYPE", help="Of the machine, on demand.")] = "e2-small",
    service_account: Annotated[
        str, typer.Option("--service-account", metavar="EMAIL", help="What the server may do (docs/server.md).")
    ] = "",
    allow: Allow = None,
    disk_gib: DiskGib = 20,
    image: Image = "",
    port: Port = 7443,
    address: Address = "",
    backup: Backup = "",
    restore: Restore = "",
    yes: Yes = False,
) -> None:
    """Lease a small machine of Compute Engine, put the server on it, and talk to it from now on.

    Its journal is on a disk of its own that outlives the machine; a firewall rule lets `--allow` in. No key is copied
    there: what the server may do is its service account. Again: updates it, or brings it back on the same disk.

    Example: `everstep server up gcp --allow 0.0.0.0/0 --service-account everstep@my-project.iam.gserviceaccount.com`
    """
    from everstep.client.placing.leasing import Wanted

    wanted = Wanted(machine, disk_gib, port, tuple(allow or ()), zone, service_account, image)
    _up("gcp", {"region": region}, wanted, extra=(address, backup, restore), yes=yes)


def down(home: Home, *, yes: bool, force: bool, delete: bool) -> None:
    """Ends the server and its machine, once the user agreed."""
    from everstep.client import remote
    from everstep.client.placing import hosted, leasing, placing
    from everstep.server.options import read_config

    found = hosted.find(home)
    assert found is not None
    if remote.find(home) is not None and not force:
        placing.check_no_jobs(home)
    what = f"the machine {found.host.name} in {found.host.zone} is ended"
    disk = "and its disk with the journal is DELETED" if delete else "its disk with the journal stays, and bills"
    _agreed("everstep server down", f"{what}, {disk}. Go on?", yes)
    hosting = _hosting(found.kind, found.settings, _options(read_config(home.config_file), found.kind))
    try:
        left = leasing.down(home, hosting, even_so=force, delete=delete, say=serverup.say)
    finally:
        hosting.close()
    spent = f"it cost {wording.money(left.usd(time.time()))}"
    if delete:
        print(f"ended: the server, its machine and its disk; {spent}")
    else:
        text = (
            f"its disk stays, {wording.money(left.usd_per_h)}/h; everstep server up {left.kind} brings the server back"
        )
        print(f"ended: the server and its machine; {spent}; {text}, everstep server down --delete deletes it")


def kept(machine: Hosted, *, is_remembered: bool) -> list[tuple[str, str]]:
    """What is leased although no server answers: a disk that was kept, a set-up that was cut off."""
    fix = f"everstep server up {machine.kind} brings it back, everstep server down --delete ends all of it"
    rows = [("machine", f"{machine.host.name} in {machine.host.zone} ({machine.kind})")]
    return [*rows, *([] if is_remembered else [("cost", serverup.cost_of(machine, time.time()))]), ("next", fix)]


def kept_document(machine: Hosted) -> dict[str, Any]:
    """The same as data."""
    return {
        "kind": machine.kind,
        "name": machine.host.name,
        "zone": machine.host.zone,
        "usd_per_h": machine.usd_per_h,
        "cost_usd": machine.usd(time.time()),
    }


def _up(kind: str, place: dict[str, str], wanted: Wanted, *, extra: tuple[str, str, str], yes: bool) -> None:
    from dataclasses import replace

    from everstep.client.placing import hosted, leasing
    from everstep.client.placing.placing import Wish
    from everstep.server.options import read_config

    home = default_home()
    serverup.no_other(home)
    config = read_config(home.config_file)
    options = _options(config, kind)
    before = hosted.find(home)
    settings = before.settings if before is not None and before.kind == kind else _settings(kind, place, options)
    wanted = replace(wanted, allow=_allowed(wanted, before))
    address, backup, restore = extra
    wish: Wish = Wish(address, wanted.port, "", config, serverup.extras(config), backup, restore)
    hosting = _hosting(kind, settings, options)
    try:
        found, rates = leasing.prepare(home, hosting, settings, wanted)
        if not found.is_up:
            _announce(found, rates, has_provider=bool(options))
            or_else = None if before is not None else lambda: hosted.forget(home)
            _agreed(f"everstep server up {kind}", "Lease it?", yes, or_else=or_else)
        made = leasing.up(home, hosting, found, rates, wish=wish, say=serverup.say)
    finally:
        hosting.close()
    print(f"running at {made.url} on {made.where}")
    serverup.say("the commands here talk to it from now on; everstep server status looks, everstep server down ends it")


def _announce(found: Hosted, rates: Rates, *, has_provider: bool) -> None:
    host = found.host
    per_h = rates.machine + rates.disk + rates.address
    say = serverup.say
    say(f"{host.machine} on demand in {host.zone}, disk {host.disk_gib} GiB, public address")
    say(f"{wording.money(per_h)}/h until everstep server down, {wording.money(per_h * 730)} a month ({rates.source})")
    say(f"port {host.port} open to {', '.join(host.allow)}; behind it TLS, and nothing without a token")
    if not host.role:
        flag = "--profile" if found.kind == "aws" else "--service-account"
        say(f"without {flag} it may lease nothing: give it a role (docs/server.md)")
    if not has_provider:
        say(f"config.yaml has no providers.{found.kind}: the server will not lease there (docs/{found.kind}.md)")


def _allowed(wanted: Wanted, before: Hosted | None) -> tuple[str, ...]:
    from everstep.client.placing import hosted

    if not wanted.allow and before is None:
        text = f"say who may call port {wanted.port}: this computer, and all machines that it will lease"
        fix = (
            "--allow 0.0.0.0/0 lets everybody knock (TLS and a token keep them out), --allow 203.0.113.0/24 only those"
        )
        raise BadInput(Problem("everstep server up", "--allow", text, fix))
    return hosted.check_networks(wanted.allow)


def _agreed(command: str, question: str, yes: bool, *, or_else: Callable[[], None] | None = None) -> None:
    """Ends the command unless the user agrees; ``or_else`` is done first then, also where nobody can be asked."""
    try:
        plans.must_be_able_to_ask(command, yes=yes)
        plans.ask(question, yes=yes)
    except BaseException:  # Ctrl-C is a no
        if or_else is not None:
            or_else()
        raise


def _options(config: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = (config.get("providers") or {}).get(kind) or {}
    return found


def _settings(kind: str, place: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    region = place["region"] or next(iter(options.get("regions") or ()), "")
    if not region:
        fix = f"--region, or name it in config.yaml: providers: {{{kind}: {{regions: [...]}}}}"
        raise BadInput(Problem(f"everstep server up {kind}", "--region", "where? no region is configured", fix))
    if kind == "gcp":
        if not options.get("project"):
            fix = "name it in config.yaml: providers: {gcp: {project: my-project}}"
            raise BadInput(Problem("everstep server up gcp", "", "which project? none is configured", fix))
        return {"region": region, "project": str(options["project"])}
    return {"region": region}


def _hosting(kind: str, settings: dict[str, str], options: dict[str, Any]) -> Hosting:
    from everstep import providers

    providers.load(kind)  # one line that names the extra, where it is missing
    kept: dict[str, Any] = {key: options[key] for key in ("endpoint_url", "look_s") if key in options}
    if kind == "aws":
        from everstep.providers.aws.hosting import AwsHosting

        return AwsHosting(settings["region"], subnets=options.get("subnets"), **kept)
    from everstep.providers.gcp.hosting import GcpHosting

    if "subnetworks" in options:
        kept["subnetworks"] = options["subnetworks"]
    return GcpHosting(settings["project"], settings["region"], **kept)
