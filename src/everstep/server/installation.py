"""The server's own files in its folder: the lock, the token, the keys, what it tells clients about itself."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from everstep.client.home import Home, ServerInfo, UnsafeFile, read_secret_line, write_private
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import EverstepError
from everstep.model.ids import DeploymentId


class AlreadyRunning(EverstepError):
    """Another server holds the folder."""


def take_lock(home: Home) -> IO[str]:
    """The lock of the folder; held until the returned file is closed, or the process is gone however it ends.

    Raises:
        AlreadyRunning: says who holds it.
    """
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = open(os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read().strip()
        file.close()
        info = home.server()
        where = f" at {info.url}" if info is not None and str(info.pid) == holder else ""
        raise AlreadyRunning(
            f"another server (pid {holder or 'unknown'}){where} runs for {home.path}; "
            "stop it with: everstep server stop"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    # Left behind by a server that was killed; clients must not take it for ours.
    home.server_file.unlink(missing_ok=True)
    return file


def still_ours(home: Home, lock: IO[str]) -> bool:
    """False once the folder was deleted, or deleted and made again: then another server may serve it."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(home.lock_file))
    except FileNotFoundError:
        return False


def token(home: Home) -> str:
    """The token of the user API, made on first use. Raises UnsafeFile when others can read the file."""
    return _kept_secret(home.token_file, lambda: secrets.token_urlsafe(32))


def agents_key(home: Home) -> bytes:
    """The key that agents' tokens and credentials are derived from, made on first use. Raises UnsafeFile."""
    return bytes.fromhex(_kept_secret(home.path / "agents.key", lambda: secrets.token_hex(32)))


def deployment(home: Home) -> DeploymentId:
    """UUID of the installation, made on first use; it is in the tags of everything we lease.

    Raises:
        UnsafeFile: the file is not what we wrote; guessing a new UUID would orphan machines.
    """
    try:
        text = home.deployment_file.read_text().strip()
    except FileNotFoundError:
        text = str(uuid.uuid4())
        write_private(home.deployment_file, text + "\n")
    try:
        return DeploymentId(str(uuid.UUID(text)))
    except ValueError:
        raise UnsafeFile(f"{home.deployment_file} does not hold the UUID of an installation; restore it") from None


def announce(home: Home, info: ServerInfo) -> None:
    """Tells clients where the server is."""
    write_private(home.server_file, json.dumps(to_dict(info)) + "\n")


def withdraw(home: Home) -> None:
    """Takes ``announce`` back."""
    home.server_file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listened, and what it told machines to call.

    Attributes:
        own_tls: behind a certificate of its own making.
        advertise: empty = what it listened on.
    """

    host: str
    port: int
    own_tls: bool = False
    advertise: str = ""


def last_address(home: Home) -> Address | None:
    """Where the server listened last."""
    try:
        return from_dict(Address, json.loads(home.address_file.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_address(home: Home, address: Address) -> None:
    """Remembers it for the next start."""
    write_private(home.address_file, json.dumps(to_dict(address)) + "\n")


def _kept_secret(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        write_private(path, make() + "\n")
    info = path.stat()
    if info.st_uid != os.getuid():
        raise UnsafeFile(f"{path} belongs to another user (uid {info.st_uid}); it must belong to the one of the server")
    if stat.S_ISREG(info.st_mode):
        return read_secret_line(path)
    raise UnsafeFile(f"{path} is not a plain file")
