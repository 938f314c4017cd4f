"""A real sshd on loopback, with keys of its own, that only the user of the test can log in to."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.server.listening import bind_anywhere
from tests import guards

_PATIENCE_S = 120.0
_OURS = ("everstep", "pip", "_everstep", "__editable__")


@dataclass(frozen=True)
class Machine:
    """``config`` is what ``ssh -F`` needs to reach it as ``box``; logins have their home in ``folder``."""

    config: Path
    folder: Path
    port: int


@contextlib.contextmanager
def sshd(folder: Path, *, path: str = "") -> Iterator[Machine]:
    """Serves until the end of the block; skips the test where there is no sshd.

    Args:
        folder: empty, for its keys and files.
        path: PATH of logins; default: the Python that runs the tests, and the system's commands.
    """
    program = needs_sshd()
    for name in ("host", "user"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(made, check=True, capture_output=True)
    home = folder / "login"
    home.mkdir()
    with bind_anywhere("127.0.0.1") as free:
        port = free.getsockname()[1]
    given = {
        "PATH": path or f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin",
        "HOME": str(home),
        # What pip would bring is there already: tests install nothing from elsewhere.
        "PYTHONPATH": str(packages(folder / "packages")),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        guards.RUN_VARIABLE: os.environ.get(guards.RUN_VARIABLE, ""),
    }
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        f"SetEnv {' '.join(f'{name}={value}' for name, value in given.items())}\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(
        f"Host box\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {folder / 'user'}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {folder / 'known'}\n GlobalKnownHostsFile none\n BatchMode yes\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "log")
        yield Machine(folder / "config", home, port)
    finally:
        process.terminate()
        process.wait()


def needs_sshd() -> str:
    """Path of sshd; skips the test where there is none."""
    program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh (apt install openssh-server openssh-client)")
    return program


def until(look: Callable[[], object], what: Callable[[], str]) -> None:
    """Waits for what a machine does; ``what`` tells why in vain."""
    deadline = time.monotonic() + _PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def python_of_the_image(folder: Path) -> Path:
    """Makes ``bin`` in the folder, whose Python has what pip would bring. Returns the folder of those packages."""
    (folder / "bin").mkdir(parents=True)
    found = packages(folder / "packages")
    program = folder / "bin" / "python3.14"
    program.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={found} PIP_NO_DEPS=1 PIP_NO_INDEX=1\n"
        f'exec {Path(sys.base_prefix, "bin", "python3")} "$@"\n'
    )
    program.chmod(0o755)
    return found


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20.0
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def packages(folder: Path) -> Path:
    """The packages of this environment, but for everstep itself, which is what has to be brought."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(_OURS) and not entry.name.endswith(".pth"):
            (folder / entry.name).symlink_to(entry)
    return folder
