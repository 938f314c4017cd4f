"""``everstep server up aws|gcp`` and ``down`` without their words: lease, set up by ssh, remember; end, forget."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from everstep.client import remote
from everstep.client.home import Home
from everstep.client.placing import hosted, placing
from everstep.client.placing.hosted import Hosted
from everstep.client.placing.placing import Say, Wish
from everstep.client.placing.ssh import MachineTrouble
from everstep.client.remote import RemoteServer
from everstep.model.addresses import is_loopback
from everstep.model.errors import Conflict
from everstep.providers.host_script import FOLDER
from everstep.providers.hosting import SSH_PORT, Host, Hosting, Rates, Standing

BOOTS_WITHIN_S = 600.0
"""A cloud's machine answers in one to three minutes; the rest is for a slow package index."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to lease. ``allow`` are networks; an empty ``zone`` = any; see ``Host`` for the others."""

    machine: str
    disk_gib: int
    port: int
    allow: tuple[str, ...] = ()
    zone: str = ""
    role: str = ""
    image: str = ""


def prepare(home: Home, hosting: Hosting, settings: dict[str, str], wanted: Wanted) -> tuple[Hosted, Rates]:
    """The record of the machine and what it will cost; leases nothing.

    Raises:
        Conflict: another server is in the way. ProviderError: the cloud refused.
    """
    now = remote.find(home)
    found = hosted.find(home)
    if now is not None and (found is None or now.more.get("server") != found.host.id):
        raise Conflict(f"the server is on {now.where}; end that one first: everstep server down")
    if found is not None and found.kind != hosting.kind:
        raise Conflict(f"its disk is on {found.kind}; delete it first: everstep server down --delete")
    if found is None:
        zone = wanted.zone or asyncio.run(hosting.zone_for(wanted.machine))
        found = hosted.begin(
            home,
            hosting.kind,
            settings,
            machine=wanted.machine,
            zone=zone,
            disk_gib=wanted.disk_gib,
            port=wanted.port,
            allow=wanted.allow,
            role=wanted.role,
            image=wanted.image,
        )
    else:
        # The disk stays as it is; what the machine is like can change with the next machine, who may call at once.
        host = replace(found.host, port=wanted.port, allow=wanted.allow or found.host.allow)
        if not found.is_up:
            host = replace(host, machine=wanted.machine, role=wanted.role, image=wanted.image)
        found = replace(found, host=host)
        hosted.keep(home, found)
    return found, asyncio.run(hosting.rates(found.host))


def up(home: Home, hosting: Hosting, found: Hosted, rates: Rates, *, wish: Wish, say: Say) -> RemoteServer:
    """Leases what is missing and sees that the server runs there. Repeatable.

    Args:
        wish: what to put there; its address may be empty, for the machine's own.

    Raises:
        ProviderError: the cloud refused. MachineTrouble: the machine does not answer, or could not do it.
        NoServer: it runs, but cannot be reached from here.
    """
    say(f"a {found.host.machine} in {found.host.zone}")
    standing = asyncio.run(hosting.ensure(found.host))
    found = found.seen(standing, rates)
    hosted.keep(home, found)
    with _ssh_open(hosting, found.host, standing, say=say):
        machine = hosted.login(home, found.host, standing.address)
        record = RemoteServer(
            kind=hosting.kind,
            url=replace(wish, address=wish.address or standing.address).url,
            fingerprint="",
            token="",
            deployment="",
            host=standing.machine,
            folder="",
            since=standing.machine_since,
            usd_per_h=found.usd_per_h,
            more={"server": found.host.id, "address": standing.address},
        )
        there = replace(
            wish,
            address=wish.address or standing.address,
            folder=FOLDER,
            usd_per_h=found.usd_per_h,
            unit=not is_loopback(standing.address),
        )
        return placing.install(home, machine, there, record, say=say)


def down(home: Home, hosting: Hosting, *, even_so: bool, delete: bool, say: Say) -> Hosted:
    """Ends the server and its machine; the disk with the journal stays unless it is deleted.

    Args:
        home: whose.
        hosting: the cloud it is in.
        even_so: also if the machine does not answer, so that nobody ends the server first.
        delete: the disk too.
        say: told what is being done.

    Raises:
        MachineTrouble: the server could not be ended. ProviderError: the cloud refused.
    """
    found = hosted.find(home)
    assert found is not None
    there = remote.find(home)
    standing = asyncio.run(hosting.look(found.host))
    if there is not None and standing.address:
        try:
            with _ssh_open(hosting, found.host, standing, say=say, within_s=60.0):
                machine = hosted.login(home, found.host, standing.address)
                machine.ask({"do": "down", "folder": FOLDER}, say=say)
        except MachineTrouble as error:
            if not even_so:
                raise MachineTrouble(f"{error}; --force ends its machine even so") from None
            say(f"its machine is ended although the server could not be: {error}")
    say("ending its machine")
    asyncio.run(hosting.remove(found.host, disk=delete))
    found = found.ended(time.time(), disk=delete)
    remote.forget(home)
    if delete or not standing.disk:
        hosted.forget(home)
    else:
        hosted.keep(home, found)
    return found


@contextlib.contextmanager
def _ssh_open(
    hosting: Hosting, host: Host, standing: Standing, *, say: Say, within_s: float = BOOTS_WITHIN_S
) -> Iterator[None]:
    """Lets ssh in for as long as the block takes; the API always."""
    asyncio.run(hosting.let_in(host, (host.port, SSH_PORT)))
    try:
        _answers(standing.address, within_s, say=say)
        yield
    finally:
        asyncio.run(hosting.let_in(host, (host.port,)))


def _answers(address: str, within_s: float, *, say: Say) -> None:
    """Returns once an sshd is there. Raises MachineTrouble."""
    deadline = time.monotonic() + within_s
    told = False
    while True:
        try:
            with socket.create_connection((address, SSH_PORT), 5.0) as connection:
                if connection.recv(4).startswith(b"SSH"):
                    return
                why = "whoever answers there is no sshd"
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() > deadline:
            text = f"{address} does not answer on port {SSH_PORT} after {within_s:.0f} s ({why})"
            raise MachineTrouble(
                f"{text}; is this computer in what --allow lets in? its log: /var/lib/everstep/boot.log"
            )
        if not told:
            say("waiting until the machine has booted")
            told = True
        time.sleep(0.5)
