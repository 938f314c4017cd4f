"""Planted secrets: who holds them, in files, on command lines, in environments; thieves of join tokens."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from everstep.agent.link import Refused, Session
from everstep.model import handshake as hs
from everstep.testing.booting import Machines
from tests.e2e.rig import Rig

USERS = "planted-SECRET-of-the-user-0123456789"


class Watchman:
    """Reads every command line of the computer, all the time."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    self.seen.add(Path(f"/proc/{name}/cmdline").read_bytes())
                except OSError:
                    continue

    def close(self) -> bytes:
        """Everything there was."""
        self._stop.set()
        self._thread.join()
        return b"\n".join(self.seen)


def holders(folder: Path, secret: str) -> set[str]:
    """Files below that hold it, also as JSON or a shell would write it."""
    found = set()
    forms = {secret.encode(), json.dumps(secret)[1:-1].encode(), shlex.quote(secret).encode()}
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink() and any(form in path.read_bytes() for form in forms):
                found.add(str(path.relative_to(folder)))
        except OSError:
            continue  # just replaced, or its machine was just taken away
    return found


def environments(machines: Machines, instance: str) -> list[bytes]:
    """Of every process of a machine."""
    found = []
    for key in machines.processes(instance):
        try:
            found.append(Path(f"/proc/{key.pid}/environ").read_bytes())
        except OSError:
            continue
    return found


def join_tokens(script: str) -> list[str]:
    """One-time tokens in what a machine boots with."""
    return re.findall(rf"{hs.BOOT_TOKEN}=(j-\S+)", script)


def thief(rig: Rig, instance: str, script: str, **identity: str) -> int:
    """Somebody who has what a machine boots with tries to join in its place; the server's answer."""
    info = rig.home.server()
    assert info is not None
    (token,) = join_tokens(script)
    session = Session(info.url, fingerprint=info.fingerprint, credential=token)
    body = {hs.JOIN_HANDSHAKE: [1, 1], hs.JOIN_INSTANCE: instance, hs.JOIN_ADDRESS: "127.0.0.9", hs.JOIN_PROBE_PORT: 1}
    with pytest.raises(Refused, match="identity") as refused:
        session.post_json(hs.PATH_JOIN, {**body, hs.JOIN_IDENTITY: identity})
    session.close()
    return int(refused.value.status)


def check_shown(rig: Rig, job: str, secrets: Mapping[str, str], commands: bytes) -> str:
    """None of them is on a command line, nor in what a user is shown, which is returned."""
    shown = "\n".join(map(str, [*rig.events(job), *rig.client.why(job, limit=1000), rig.detail(job)]))
    shown += rig.log(job) + str(rig.client.cost(job)) + str(rig.client.health())
    for name, value in secrets.items():
        assert len(value) > 20, name
        assert value.encode() not in commands, f"{name}: on a command line"
        assert value not in shown, f"{name}: shown to the user"
    return shown


def check_untold(secrets: Iterable[str], *told: str) -> None:
    """None of them is in any of the texts."""
    for value in secrets:
        assert not any(value in text for text in told)
