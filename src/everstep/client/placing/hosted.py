"""A server on a machine of a cloud that we lease for it: what is remembered of that machine, here.

Written before the first call to the cloud, so that a set-up that was cut off goes on, or is undone, from here. The
folder ``hosted`` of the installation also holds the key by which the machine is set up: only its owner may read it.
"""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everstep.client.home import Home, UnsafeFile, read_private_text, write_private
from everstep.client.placing.ssh import SshMachine
from everstep.model.addresses import is_loopback
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import BadInput, Problem
from everstep.providers.hosting import SSH_PORT, Host, Rates, Standing

LOGIN = "everstep"


@dataclass(frozen=True, slots=True)
class Line:
    """Something that costs: what, its id, USD per hour, from when to when (UTC seconds; None = still)."""

    what: str
    id: str
    usd_per_h: float
    since: float
    until: float | None = None

    def usd(self, now: float) -> float:
        """So far."""
        return self.usd_per_h * max((now if self.until is None else self.until) - self.since, 0.0) / 3600


@dataclass(frozen=True, slots=True)
class Hosted:
    """The machine that holds the server.

    Attributes:
        kind: the cloud.
        settings: what its ``Hosting`` needs to find it again: region, project.
        host: what is wanted of the machine.
        lines: what it cost and costs.
        source: where the prices come from.
    """

    kind: str
    settings: dict[str, str]
    host: Host
    lines: tuple[Line, ...] = ()
    source: str = ""

    def usd(self, now: float) -> float:
        """What it cost so far."""
        return sum(line.usd(now) for line in self.lines)

    @property
    def usd_per_h(self) -> float:
        """What it costs now."""
        return sum(line.usd_per_h for line in self.lines if line.until is None)

    @property
    def is_up(self) -> bool:
        """Whether there is a machine, as far as is known here."""
        return any(line.what == "machine" and line.until is None for line in self.lines)

    def seen(self, standing: Standing, rates: Rates) -> Hosted:
        """The record after a look: a machine or disk that is there is a line."""
        lines = [
            line
            if line.until is not None or line.id in (standing.machine, standing.disk)
            else replace(line, until=standing.machine_since or line.since)
            for line in self.lines
        ]
        known = {(line.what, line.id) for line in lines}
        wanted = [
            Line("machine", standing.machine, rates.machine, standing.machine_since),
            Line("address", standing.machine, rates.address, standing.machine_since),
            Line("disk", standing.disk, rates.disk, standing.disk_since),
        ]
        lines += [line for line in wanted if line.id and (line.what, line.id) not in known]
        host = replace(self.host, generation=standing.generation)
        return replace(self, lines=tuple(lines), source=rates.source, host=host)

    def ended(self, now: float, *, disk: bool) -> Hosted:
        """The record after the machine was ended, with or without its disk."""
        over = [
            replace(line, until=now) if line.until is None and (disk or line.what != "disk") else line
            for line in self.lines
        ]
        return replace(self, lines=tuple(over))


def folder_of(home: Home) -> Path:
    """Where everything of it is."""
    return home.path / "hosted"


def find(home: Home) -> Hosted | None:
    """The machine that was leased from here; None if there is none. Raises UnsafeFile."""
    path = folder_of(home) / "machine.json"
    try:
        text = read_private_text(path)
    except FileNotFoundError:
        return None
    try:
        return from_dict(Hosted, json.loads(text))
    except Exception:
        fix = "it names the machine that the server is on; mend it, or remove it and end that machine by hand"
        raise UnsafeFile(f"{path} is not what everstep server up wrote; {fix}") from None


def keep(home: Home, hosted: Hosted) -> None:
    """Writes the record, whole or not at all."""
    folder_of(home).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder_of(home) / "machine.json", json.dumps(to_dict(hosted), indent=2) + "\n")


def forget(home: Home) -> None:
    """Removes the record and the keys."""
    shutil.rmtree(folder_of(home), ignore_errors=True)


def begin(
    home: Home, kind: str, settings: Mapping[str, str], *, machine: str, zone: str, disk_gib: int, **more: object
) -> Hosted:
    """A new record with keys of its own, written down before anything is leased.

    Args:
        more: ``port``, ``allow``, ``role`` and ``image`` of ``Host``.
    """
    folder = folder_of(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = uuid.uuid4().hex[:12]
    public, private = _key(folder, "login", name), _key(folder, "host", name)
    host_key = (folder / "host").read_text()
    (folder / "host").unlink()
    write_private(folder / "known", f"everstep-server-{name} {private}\n")
    host = Host(
        id=name,
        machine=machine,
        zone=zone,
        disk_gib=disk_gib,
        login=public,
        host_key=host_key,
        **more,  # type: ignore[arg-type]
    )
    made = Hosted(kind, dict(settings), host)
    keep(home, made)
    return made


def login(home: Home, host: Host, address: str) -> SshMachine:
    """The machine as ssh reaches it: one key here, one key there, nobody else's settings."""
    folder = folder_of(home)
    user = getpass.getuser() if is_loopback(address) else LOGIN  # a fake's machines are processes of ours
    lines = [
        f"Host {host.name}",
        f" HostName {address}",
        f" Port {SSH_PORT}",
        f" User {user}",
        f' IdentityFile "{folder / "login"}"',
        " IdentitiesOnly yes",
        f" HostKeyAlias {host.name}",
        f' UserKnownHostsFile "{folder / "known"}"',
        " GlobalKnownHostsFile none",
        " StrictHostKeyChecking yes",
        " BatchMode yes",
        "",
    ]
    write_private(folder / "config", "\n".join(lines))
    return SshMachine(host.name, str(folder / "config"))


def check_networks(allow: Sequence[str]) -> tuple[str, ...]:
    """The networks in their own words. Raises BadInput for what is none."""
    import ipaddress

    found = []
    for text in allow:
        try:
            found.append(str(ipaddress.ip_network(text)))
        except ValueError as error:
            fix = "write for example 203.0.113.0/24, or 0.0.0.0/0 for everybody"
            raise BadInput(Problem("everstep server up", "--allow", str(error), fix)) from None
    return tuple(dict.fromkeys(found))


def _key(folder: Path, name: str, comment: str) -> str:
    """Makes a key pair; returns the public one."""
    if shutil.which("ssh-keygen") is None:
        raise BadInput(Problem("everstep server up", "", "there is no ssh-keygen command here", "install OpenSSH"))
    path = folder / name
    path.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"everstep-{comment}", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    public = path.with_name(f"{name}.pub").read_text().strip()
    path.with_name(f"{name}.pub").unlink()
    return public
