"""The server in the background: start it, find it, stop it.

The server itself is another process, never imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep.client.api import Client
from everstep.client.home import HOME_VARIABLE, Home, NoServer, ServerInfo
from everstep.model.errors import BadInput, EverstepError, Problem

START_TIMEOUT_S = 120.0
"""A cold start on a machine that others keep busy takes far longer than the second that it mostly takes."""
SLOW_S = 5.0
"""Who waits longer than this is told what for."""
STOP_TIMEOUT_S = 30.0
_TOLD_WRONG = 2
"""What a server exits with whose options or configuration are wrong (``everstep.server.daemon.main``)."""
_started: list[subprocess.Popen[bytes]] = []
"""Servers started by this process.

They are meant to outlive it, so nobody waits for them; keeping them here says so to Python.
"""


class ServerFailed(EverstepError):
    """The server did not start or did not stop; the text says why in one line, and where its log is."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Whether a server runs for a folder. ``healthy``: it also answers. ``info`` is None when it does not run."""

    running: bool
    healthy: bool
    info: ServerInfo | None
    text: str


def is_running(home: Home) -> bool:
    """Whether a process holds the folder's lock: true from a server's start to its very end, however it ends."""
    _started[:] = [process for process in _started if process.poll() is None]
    try:
        with home.lock_file.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def status(home: Home) -> ServerStatus:
    """Looks at the lock, then asks the server itself."""
    if not is_running(home):
        return ServerStatus(False, False, None, f"no server runs for {home.path}")
    info = home.server()
    if info is None:
        return ServerStatus(True, False, None, f"a server for {home.path} is starting or stopping")
    try:
        with Client(home=home, timeout_s=10.0) as client:
            client.health()
    except EverstepError as error:
        return ServerStatus(True, False, info, f"the server (pid {info.pid}) runs but does not answer: {error}")
    return ServerStatus(True, True, info, f"running at {info.url} (pid {info.pid})")


def start_background(
    home: Home,
    *,
    arguments: tuple[str, ...] = (),
    timeout_s: float = START_TIMEOUT_S,
    on_slow: Callable[[str], None] = lambda text: None,
) -> ServerInfo:
    """Makes sure that a healthy server runs for ``home``; it outlives the caller and its terminal.

    Args:
        home: folder of the installation; made if it is not there.
        arguments: further arguments of ``python -m everstep.server``; they count only when a server has to be started.
        timeout_s: how long it may take.
        on_slow: called once, with a line for people, when it takes longer than ``SLOW_S``.

    Raises:
        BadInput: its options or its configuration are wrong; with its last words.
        ServerFailed: it ended, or is not healthy in time, or the folder cannot be used; with its last words.
        UnsafeFile: others can read the token.
    """
    began = time.monotonic()
    is_told = False
    _make_folder(home)
    if home.token_file.exists():
        home.token()  # with one that cannot be used every question would fail, and we would wait for nothing
    process: subprocess.Popen[bytes] | None = None
    mark = 0
    while True:
        now = status(home)
        if now.healthy and now.info is not None:
            return now.info
        if not now.running and process is None:
            mark = _size(home)
            process = _spawn(home, arguments)
            _started.append(process)
        if process is not None and process.poll() is not None and not is_running(home):
            # Two callers may start one each: the loser leaves at once, and the winner holds the lock.
            raise _not_started(process.returncode, _last_words(home, mark), home)
        waited_s = time.monotonic() - began
        if waited_s > SLOW_S and not is_told:
            is_told = True
            on_slow(f"still waiting, at most {timeout_s:.0f} s: {now.text}; its log is {home.log_file}")
        if waited_s > timeout_s:
            text = f"{now.text} (waited {timeout_s:.0f} s)"
            raise ServerFailed(f"{text}{_last_words(home, mark)}; its log is {home.log_file}")
        time.sleep(0.03)


def stop(home: Home, *, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """Stops the server of ``home`` gracefully; jobs and their machines go on.

    Returns:
        Whether one ran.

    Raises:
        ServerFailed: it did not end in time.
    """
    if not is_running(home):
        return False
    info = home.server()
    try:
        with Client(home=home, timeout_s=5.0) as client:
            client.stop_server()
    except EverstepError:
        # It does not answer, or its token is gone: its owner may still ask by signal.
        with contextlib.suppress(ProcessLookupError):
            os.kill(_holder(home, info), signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while is_running(home):
        if time.monotonic() > deadline:
            raise ServerFailed(f"the server did not stop within {timeout_s:.0f} s; its log is {home.log_file}")
        time.sleep(0.03)
    for process in _started:
        if info is not None and process.pid == info.pid:
            process.wait()  # it let go of the lock with its last breath
    return True


def _not_started(code: int, last_words: str, home: Home) -> EverstepError:
    log = f"its log is {home.log_file}"
    if code == _TOLD_WRONG:
        return BadInput(Problem("", "", f"the server did not start{last_words}", log))
    return ServerFailed(f"the server did not start (exit code {code}){last_words}; {log}")


def _spawn(home: Home, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "everstep.server", "--home", str(home.path), "--log-file", str(home.log_file)]
    descriptor = os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # A session of its own: neither Ctrl-C nor the end of the terminal reaches it.
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _make_folder(home: Home) -> None:
    try:
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What a server does first; as root even a folder without rights can be written.
        os.close(os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise ServerFailed(f"the folder {home.path} cannot be used: {words}; {HOME_VARIABLE} names another") from None


def _holder(home: Home, info: ServerInfo | None) -> int:
    try:
        return int(home.lock_file.read_text())
    except (OSError, ValueError):
        if info is None:
            raise NoServer(f"the server of {home.path} does not answer and its process is not known") from None
        return info.pid


def _size(home: Home) -> int:
    try:
        return home.log_file.stat().st_size
    except OSError:
        return 0


def _last_words(home: Home, start: int) -> str:
    """The last line that was logged since ``start``, behind a colon; empty if there is none."""
    try:
        with home.log_file.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last.removeprefix('everstep server: ')}" if last else ""
