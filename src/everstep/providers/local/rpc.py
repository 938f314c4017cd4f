"""How a client talks to the daemon of a box: one JSON object per line over a unix socket, one answer per line.

Request: ``{"method": name, "params": {...}}``. Answer: ``{"ok": value}`` or ``{"error": {"kind", "message",
"retry_after_s"}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.model.errors import PROVIDER_ERRORS, BadInput, BadRequest, Problem, ProviderError, Unreachable

SOCKET_NAME = "box.sock"
#: Whoever holds its flock is the daemon of the box.
LOCK_NAME = "lock"
#: Longest line: a launch carries the environment of every machine it starts.
LINE_LIMIT = 1 << 24


@contextlib.contextmanager
def socket_address(home: Path) -> Iterator[str]:
    """A short name for the socket in ``home``: the kernel takes at most 107 bytes, and folders may lie deeper."""
    handle = os.open(home, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET_NAME}"
    finally:
        os.close(handle)


def listen(home: Path) -> socket.socket:
    """The daemon's socket; one that a dead daemon left behind is replaced (the caller holds the lock)."""
    with contextlib.suppress(FileNotFoundError):
        (home / SOCKET_NAME).unlink()
    sock = socket.socket(socket.AF_UNIX)
    with socket_address(home) as address:
        sock.bind(address)
    sock.listen(256)
    sock.setblocking(False)
    return sock


def serves(home: Path) -> bool:
    """Whether a daemon takes calls there."""
    with socket.socket(socket.AF_UNIX) as sock, socket_address(home) as address:
        return sock.connect_ex(address) == 0


async def gone(home: Path) -> None:
    """Returns when no daemon has the box any more."""
    handle = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            await asyncio.sleep(0.01)
    finally:
        os.close(handle)


async def call(home: Path, method: str, params: dict[str, Any]) -> Any:
    """One call on a connection of its own.

    Raises:
        ConnectionRefusedError, FileNotFoundError: no daemon runs there; nothing was sent.
        Unreachable: the daemon went away before it answered; the effect may or may not have happened.
        ProviderError: what the daemon answered.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        with socket_address(home) as address:
            # A connect to a full backlog would block; the daemon's is long, so this is an answer at once.
            sock.connect(address)
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_LIMIT)
    except BlockingIOError as error:
        sock.close()
        raise Unreachable("the box is too busy to answer", retry_after_s=1.0) from error
    except BaseException:
        sock.close()
        raise
    try:
        writer.write(encode({"method": method, "params": params}))
        await writer.drain()
        line = await reader.readline()
    except (OSError, ValueError) as error:
        raise Unreachable(f"the box went away during {method}: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not line.endswith(b"\n"):
        raise Unreachable(f"the box went away during {method}")
    reply = json.loads(line)
    if "error" in reply:
        raise decode_error(reply["error"])
    return reply["ok"]


def encode(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_error(error: Exception) -> dict[str, Any]:
    """A typed error as data; what is not typed is a bug in the box and is called so."""
    if isinstance(error, BadInput):
        return {"kind": "bad_input", "problems": [[p.where, p.key, p.message, p.fix] for p in error.problems]}
    if isinstance(error, ProviderError):
        return {"kind": error.kind, "message": str(error), "retry_after_s": error.retry_after_s}
    return {
        "kind": BadRequest.kind,
        "message": f"the box failed: {type(error).__name__}: {error}",
        "retry_after_s": None,
    }


def decode_error(data: dict[str, Any]) -> Exception:
    """The error that ``encode_error`` wrote."""
    if data["kind"] == "bad_input":
        return BadInput(*(Problem(*parts) for parts in data["problems"]))
    return PROVIDER_ERRORS[data["kind"]](data["message"], retry_after_s=data["retry_after_s"])
