"""``everstep server up`` and ``down`` without their words: installs, starts, remembers; ends, forgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.client import remote
from everstep.client.api import Client
from everstep.client.home import Home, NoServer
from everstep.client.placing.ssh import MachineTrouble, SshMachine
from everstep.client.placing.wheel import build_wheel
from everstep.client.remote import RemoteServer
from everstep.client.wire import NotOurServer
from everstep.model.addresses import is_loopback
from everstep.model.errors import Conflict, EverstepError

PORT = 7443
FOLDER = "~/.everstep-server"
_ANSWERS_WITHIN_S = 15.0
_OURS = ("host", "port", "insecure", "tls", "tls_cert", "tls_key", "advertise", "store")
"""Where a server listens and keeps its journal is another matter on another machine."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What to put there.

    Attributes:
        address: name or address under which this computer and the clouds' machines reach the machine.
        port: where the server listens.
        folder: for everything of the server, on that machine.
        config: ``config.yaml`` of this computer, whose providers go along.
        extras: extras of everstep that it needs.
        backup: URL that backups go to; empty = what the configuration says.
        restore: URL of backups that the server begins from; empty = it begins from what is there.
        usd_per_h: what the machine costs, if somebody knows.
        unit: whether systemd is to start it after a reboot, where there is one.
    """

    address: str
    port: int = PORT
    folder: str = FOLDER
    config: Mapping[str, Any] | None = None
    extras: tuple[str, ...] = ()
    backup: str = ""
    restore: str = ""
    usd_per_h: float | None = None
    unit: bool = True

    @property
    def url(self) -> str:
        """Base URL of the server."""
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{shown}:{self.port}"

    def config_text(self) -> str:
        """The server's ``config.yaml``."""
        import yaml

        kept = {key: value for key, value in (self.config or {}).items() if key not in _OURS}
        listens = self.address if is_loopback(self.address) else "0.0.0.0"
        said = {"host": listens, "port": self.port, "tls": True, "advertise": self.url}
        backup = {"backup": self.backup} if self.backup else {}
        return yaml.safe_dump({**kept, **said, **backup}, sort_keys=True)


def up_by_ssh(home: Home, machine: SshMachine, wish: Wish, *, say: Say) -> RemoteServer:
    """Sees that a server runs on the machine as wished, and that the commands of ``home`` talk to it. Repeatable.

    Raises:
        Conflict: the commands talk to another server already.
        MachineTrouble: ssh or the machine refused.
        NoServer: it runs, but cannot be reached from here.
    """
    more = {"ssh_config": machine.config} if machine.config else {}
    plain = RemoteServer("ssh", wish.url, "", "", "", machine.host, "", time.time(), wish.usd_per_h, more)
    now = remote.find(home)
    if now is not None and (now.kind, now.host) != ("ssh", machine.host):
        raise Conflict(f"the server is on {now.where}; end that one first: everstep server down")
    return install(home, machine, wish, plain, say=say)


def install(home: Home, machine: SshMachine, wish: Wish, record: RemoteServer, *, say: Say) -> RemoteServer:
    """As ``up_by_ssh``, for a machine that is the right one.

    Args:
        record: what is to be remembered, but for what the server itself says.
    """
    now = remote.find(home)
    name, wheel = build_wheel()
    request = {
        "do": "up",
        "folder": wish.folder,
        "wheel": name,
        "extras": list(wish.extras),
        "config": wish.config_text(),
        "restore": wish.restore,
        "unit": wish.unit,
    }
    said = machine.ask(request, wheel, say=say)
    made = replace(
        record,
        fingerprint=said["fingerprint"],
        token=said["token"],
        deployment=said["deployment"],
        folder=said["folder"],
    )
    if now is not None and now.deployment == made.deployment:
        made = replace(made, since=now.since, usd_per_h=made.usd_per_h or now.usd_per_h)
    remote.keep(home, made)
    _greet(home, made)
    return made


def _greet(home: Home, made: RemoteServer) -> None:
    """Returns once it answers from here. Raises NoServer."""
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        try:
            with Client(home=home, timeout_s=5.0) as client:
                client.health()
                return
        except NotOurServer:
            raise
        except NoServer as error:
            if time.monotonic() > deadline:
                port = made.url.rpartition(":")[2]
                text = f"the server runs on {made.host}, but not within reach of this computer ({error})"
                raise NoServer(f"{text}; let TCP port {port} in there, or name another --address or --port") from None
            time.sleep(0.5)


def jobs_alive(home: Home) -> int | None:
    """Jobs of the server that are not over; None if it does not answer."""
    try:
        with Client(home=home, timeout_s=10.0) as client:
            return sum(count for phase, count in client.health().jobs.items() if phase != "ended")
    except EverstepError:
        return None


def check_no_jobs(home: Home) -> None:
    """Raises Conflict if jobs live, or nobody knows whether any do."""
    alive = jobs_alive(home)
    if alive is None:
        raise Conflict("it does not answer, so nobody knows whether jobs live; --force ends it even so")
    if alive:
        what = "1 job lives; its machines" if alive == 1 else f"{alive} jobs live; their machines"
        raise Conflict(f"{what} would go on, billed, without anybody to end them; cancel first, or add --force")


def down(home: Home, *, even_so: bool, forget: bool, say: Say) -> RemoteServer:
    """Ends the server elsewhere; its files stay where they are.

    Args:
        home: whose server.
        even_so: also if jobs live, or nobody knows whether any do.
        forget: end nothing, only forget where it is.
        say: told what is being done.

    Raises:
        NoServer: there is none. Conflict: jobs live. MachineTrouble: the machine cannot be reached.
    """
    found = remote.find(home)
    if found is None:
        raise NoServer("no server was put elsewhere from here; one on this computer ends with: everstep server stop")
    if not forget:
        if not even_so:
            check_no_jobs(home)
        try:
            machine = SshMachine(found.host, found.more.get("ssh_config", ""))
            machine.ask({"do": "down", "folder": found.folder}, say=say)
        except MachineTrouble as error:
            raise MachineTrouble(f"{error}; --forget makes the commands here forget it") from None
    remote.forget(home)
    return found
