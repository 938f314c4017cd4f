"""The folder of one installation: where the server keeps its things and a client finds the server."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.model.errors import BadInput, EverstepError, Problem

HOME_VARIABLE = "EVERSTEP_HOME"


class NoServer(EverstepError):
    """No server runs for this folder, or it does not answer."""


class UnsafeFile(EverstepError):
    """A file that holds a secret can be read by others."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a running server writes about itself.

    Attributes:
        url: base URL, without a trailing slash.
        pid: its process.
        started_at: UTC seconds.
        deployment: UUID of the installation.
        version: of everstep.
        certificate: path of the certificate to trust, empty without TLS.
        fingerprint: SHA-256 of that certificate, hexadecimal.
        options: what it was told and where it listens, by flag of ``everstep server start``; empty value = said so.
    """

    url: str
    pid: int
    started_at: float
    deployment: str
    version: str
    certificate: str = ""
    fingerprint: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Home:
    """Names of the files below ``EVERSTEP_HOME``; nothing is created by asking for one."""

    path: Path

    @property
    def token_file(self) -> Path:
        """The bearer token of the user API, mode 0600."""
        return self.path / "token"

    @property
    def server_file(self) -> Path:
        """``ServerInfo`` of the running server, mode 0600; there while it runs, left behind when it is killed."""
        return self.path / "server.json"

    @property
    def lock_file(self) -> Path:
        """Locked (flock) by the running server; holds its pid."""
        return self.path / "server.lock"

    @property
    def log_file(self) -> Path:
        """What the server has to say."""
        return self.path / "server.log"

    @property
    def journal_file(self) -> Path:
        """The journal."""
        return self.path / "journal.db"

    @property
    def address_file(self) -> Path:
        """Host and port the server had last: running machines call home there, so a restart keeps them."""
        return self.path / "address.json"

    @property
    def deployment_file(self) -> Path:
        """UUID of the installation."""
        return self.path / "deployment"

    @property
    def tls_folder(self) -> Path:
        """The certificate that a server made for itself, and its key."""
        return self.path / "tls"

    @property
    def remote_file(self) -> Path:
        """Where the server is when it is not on this computer, mode 0600 (see ``client.remote``)."""
        return self.path / "remote.json"

    @property
    def config_file(self) -> Path:
        """Providers and options; may be absent."""
        return self.path / "config.yaml"

    def server(self) -> ServerInfo | None:
        """What the last server wrote, None if there is nothing readable. It may be dead by now."""
        try:
            data: Any = json.loads(self.server_file.read_text())
            return ServerInfo(
                url=str(data["url"]),
                pid=int(data["pid"]),
                started_at=float(data["started_at"]),
                deployment=str(data["deployment"]),
                version=str(data["version"]),
                certificate=str(data.get("certificate", "")),
                fingerprint=str(data.get("fingerprint", "")),
                options={str(flag): str(value) for flag, value in dict(data.get("options", {})).items()},
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def token(self) -> str:
        """The token of the user API.

        Raises:
            NoServer: there is none: no server ever ran here.
            UnsafeFile: others may read it.
        """
        return read_secret_line(self.token_file)


def default_home() -> Home:
    """``$EVERSTEP_HOME``, else ``~/.everstep``. Raises BadInput where that is something else than a folder."""
    named = os.environ.get(HOME_VARIABLE)
    path = Path(named).expanduser() if named else Path.home() / ".everstep"
    if path.exists() and not path.is_dir():
        raise BadInput(Problem(HOME_VARIABLE, "", f"{path} is not a folder", "name one; it is made if it is not there"))
    return Home(path)


def read_secret_line(path: Path) -> str:
    """The one line of a file that only its owner may read.

    Raises NoServer when it is absent, UnsafeFile when others may read it.
    """
    try:
        text = read_private_text(path).strip()
    except FileNotFoundError:
        raise NoServer(f"there is no token at {path}; start a server with: everstep server start") from None
    if not text:
        raise UnsafeFile(f"{path} is empty; remove it and restart the server to get a new token")
    return text


def read_private_text(path: Path) -> str:
    """A file (its first 64 KiB) that only its owner may read.

    Raises FileNotFoundError when it is absent, UnsafeFile when others may read it.
    """
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(65_536)
    except PermissionError:
        raise UnsafeFile(f"{path} belongs to somebody else and cannot be read") from None
    if mode & 0o077:
        raise UnsafeFile(f"{path} can be read by others (mode {mode:04o}); make it private with: chmod 600 {path}")
    return text


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read: whole and on the disk, or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
