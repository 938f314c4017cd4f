"""Reachability between nodes: each agent answers a small challenge, and each asks all others before ranks start.

One line each way: ``everstep-probe NONCE`` -> ``{"nonce": NONCE, "instance": ID}``. The echo shows that a live agent
answers (not some other service on a reused port), the instance that it is the machine we mean.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from everstep.agent.orders import Peer

log = logging.getLogger(__name__)

_MAGIC = b"everstep-probe "
_TRY_S = 1.5
_PAUSE_S = 0.1
WHOLE_S = 5.0


class ProbeListener:
    """Answers probes on a port of its own until closed. Tries ``preferred_port`` first (0: any)."""

    def __init__(self, instance: str, preferred_port: int = 0) -> None:
        self._instance = instance
        self._socket = _listen(preferred_port)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(_PAUSE_S)  # out of file descriptors, say
                continue
            threading.Thread(target=self._answer, args=(connection,), name="probe-answer", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_TRY_S)
                line = _read_line(connection)
                if line.startswith(_MAGIC):
                    nonce = line[len(_MAGIC) :].strip().decode("ascii", "replace")
                    connection.sendall(json.dumps({"nonce": nonce, "instance": self._instance}).encode() + b"\n")
            except OSError:
                pass  # the asker went away


def unreachable(peers: Sequence[Peer], *, whole_s: float = WHOLE_S) -> list[str]:
    """Ask all peers at once, again until ``whole_s`` seconds are over.

    The addresses that never answered, by node rank.
    """
    failed: dict[int, str] = {}
    lock = threading.Lock()

    def ask(peer: Peer) -> None:
        end = time.monotonic() + whole_s
        while True:
            problem = _ask(peer)
            if not problem:
                return
            if time.monotonic() + _PAUSE_S >= end:
                break
            time.sleep(_PAUSE_S)
        log.warning("node %d at %s does not answer: %s", peer.rank, peer.address, problem)
        with lock:
            failed[peer.rank] = peer.address

    threads = [threading.Thread(target=ask, args=(peer,), name="probe-ask", daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [failed[rank] for rank in sorted(failed)]


def _ask(peer: Peer) -> str:
    """Empty if the peer answered well, else what went wrong."""
    nonce = os.urandom(8).hex()
    try:
        with socket.create_connection((peer.address, peer.probe_port), timeout=_TRY_S) as connection:
            connection.settimeout(_TRY_S)
            connection.sendall(_MAGIC + nonce.encode() + b"\n")
            answer = json.loads(_read_line(connection))
            if answer["nonce"] != nonce:
                return "something else answers there"
            if peer.instance and answer["instance"] != peer.instance:
                return f"machine {answer['instance']} answers there, expected {peer.instance}"
            return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < 4096:
        more = connection.recv(4096)
        if not more:
            break
        data += more
    return data


def _listen(preferred_port: int) -> socket.socket:
    for port in (preferred_port, 0) if preferred_port else (0,):
        for family in (socket.AF_INET6, socket.AF_INET):
            try:
                return _listening(family, port)
            except OSError:
                continue
    raise OSError("no port to answer probes on")


def _listening(family: int, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind(("::" if family == socket.AF_INET6 else "", port))
        one.listen(128)
    except OSError:
        one.close()
        raise
    return one
