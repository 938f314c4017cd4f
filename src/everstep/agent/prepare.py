"""Preparation of the machine: the working folder, file mounts, then ``setup``, once per boot of the instance.

A digest of what was prepared makes a repeated preparation free. On a disk that came with an earlier machine the
downloads are still there and are not repeated; ``setup`` runs again, because what it installs mostly lives outside of
the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable

from everstep.agent import atomic, environment, logs, unpack
from everstep.agent.context import Context, shell
from everstep.agent.link import Backoff, LinkDown, Refused
from everstep.agent.masking import mask_text
from everstep.agent.orders import Orders, Spec
from everstep.agent.supervisor import Command, Keeper
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

_FETCHED = "fetched.json"
_PREPARED = "prepared.json"
_SETUP = "setup"
GATHER_S = 60.0  # set-up is told every node's address; machines that boot much later than others are not waited for

OnDone = Callable[["Preparation"], None]


def digest_of(spec: Spec) -> str:
    """Names what preparing ``spec`` leads to; equal digests need no second preparation."""
    parts = {
        hs.SPEC_SETUP: spec.setup,
        hs.SPEC_WORKDIR: spec.workdir,
        hs.SPEC_FILE_MOUNTS: spec.file_mounts,
        # Names only where values are secret: a digest that leaves the machine must not help to guess them.
        hs.SPEC_ENVS: {name: "" if name in spec.secret_names else value for name, value in spec.envs.items()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class Preparation:
    """One preparation, in the main thread; only downloads run in a thread of their own.

    Attributes:
        done: whether it is over; then ``error`` is None or says why it failed, with ``rc`` of set-up.
        setup_s: seconds it took, see ``ready``.
    """

    def __init__(self, context: Context, orders: Orders, on_done: OnDone) -> None:
        self.digest = digest_of(orders.spec)
        self.attempt = orders.attempt
        self.done = False
        self.error: str | None = None
        self.rc = 1
        self.setup_s = 0.0
        self._is_told = False
        self._context = context
        self._orders = orders
        self._on_done = on_done
        self._keeper: Keeper | None = None
        self._rc: int | None = None
        self._cancelled = threading.Event()
        self._gathering = False
        self._began = time.monotonic()

    def start(self) -> None:
        """Begin, or be done at once if this boot prepared the same before."""
        try:
            self._context.settings.workdir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._finish(f"cannot write files: {error}")
            return
        if atomic.read_json(self._context.settings.state / _PREPARED) == self._marker():
            self._finish(None)
            return
        for target, source in self._orders.spec.file_mounts.items():
            if not _digest_in(source):
                self._context.warn(f"file_mounts: {target} is not an uploaded folder and was left out")
        threading.Thread(target=self._download, name="download", daemon=True).start()

    def follow(self, orders: Orders) -> None:
        """Newer orders for the same contents: by now the whole gang may be there."""
        if len(orders.peers) >= len(self._orders.peers):
            self._orders = orders
        if self._gathering and _is_whole(orders):
            self._set_up()

    def cancel(self) -> None:
        """Give up; ``on_done`` is not called any more."""
        self._cancelled.set()
        if self._keeper is not None:
            self._keeper.kill()

    def ready(self) -> float:
        """Seconds of all that was waited for until the machine was told to be ready: the ranks' imports, too."""
        if not self._is_told:
            self._is_told = True
            self.setup_s = time.monotonic() - self._began
        return self.setup_s

    def _marker(self) -> dict[str, Any]:
        boot = ""
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"instance": self._context.settings.instance, "boot": boot, "digest": self.digest}

    # ---- downloads (in a thread) -----------------------------------------------------------------------------------

    def _download(self) -> None:
        error: str | None = None
        try:
            self._fetch_all()
        except (unpack.BadArchive, Refused) as problem:
            error = f"cannot fetch files: {problem}"
        except OSError as problem:
            error = f"cannot write files: {problem}"
        except Exception as problem:  # must be told, or the job would wait for ever
            log.exception("download failed")
            error = f"cannot fetch files: {type(problem).__name__}: {problem}"
        self._context.mailbox.post(lambda: self._downloaded(error))

    def _fetch_all(self) -> None:
        record = self._context.settings.state / _FETCHED
        fetched = atomic.read_json(record)
        for digest, target in self._wanted():
            if fetched.get(str(target)) == digest and target.is_dir():
                continue
            self._fetch(digest, target)
            fetched[str(target)] = digest
            atomic.write_json(record, fetched)

    def _wanted(self) -> list[tuple[str, Path]]:
        wanted = []
        if self._orders.spec.workdir:
            wanted.append((self._orders.spec.workdir, self._context.settings.workdir))
        for target, source in sorted(self._orders.spec.file_mounts.items()):
            if _digest_in(source):
                wanted.append((_digest_in(source), environment.place(self._context.node, target)))
        return wanted

    def _fetch(self, digest: str, target: Path) -> None:
        backoff = Backoff()
        session = self._context.new_session()
        try:
            while not self._cancelled.is_set():
                try:
                    unpack.fetch(session, digest, target)
                    return
                except LinkDown as error:
                    log.warning("download of %s: %s; trying again", digest[:12], error)
                    self._cancelled.wait(backoff.next_s(error))
        finally:
            session.close()

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def _downloaded(self, error: str | None) -> None:
        if self._cancelled.is_set():
            return
        if error is not None or not self._orders.spec.setup.strip():
            self._finish(error)
            return
        self._gathering = True
        if _is_whole(self._orders):
            self._set_up()
        else:
            self._context.mailbox.later(GATHER_S, self._set_up)

    def _set_up(self) -> None:
        if not self._gathering or self._cancelled.is_set():
            return  # the others came while we waited, or nobody wants it any more
        self._gathering = False
        context = self._context
        attempt = self.attempt or 0
        env = environment.base(context.node, environment.inherited(), self._orders)
        path = context.log_path(attempt, _SETUP)
        if not _is_whole(self._orders):
            self._tell_missing(path)
        folders = [env[hs.ENV_CHECKPOINT_DIR]]
        setup = shell(self._orders.spec.setup)
        command = Command(_SETUP, setup, env, context.settings.workdir, path, folders=folders)
        self._keeper = context.supervisor.take()
        self._keeper.start(
            [command],
            lambda event: context.mailbox.post(lambda: self._on_event(event)),
            secrets=self._orders.spec.secrets,
        )

    def _tell_missing(self, path: Path) -> None:
        """At the head of set-up's own log, which its user reads when a node that it counts on is not there."""
        here, wanted = max(1, len(self._orders.peers)), self._orders.spec.num_nodes
        text = f"setup did not wait any longer: {here} of {wanted} nodes joined within {GATHER_S:g} s"
        self._context.warn(text)
        with contextlib.suppress(OSError):  # a full disk: set-up itself will say so
            path.parent.mkdir(parents=True, exist_ok=True)
            log_file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(log_file, "a") as file:
                file.write(f"[everstep] {text}; SKYPILOT_SETUP_NODE_IPS has their addresses alone\n")

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "exited":
            self._rc = int(event["rc"])
        elif event["event"] == "gone":
            attempt = self.attempt or 0
            self._context.shipper.finish(attempt, _SETUP)
            if self._cancelled.is_set():
                return
            self.rc = self._rc if self._rc is not None else -9
            if self.rc == 0:
                self._finish(None)
            else:
                text = logs.tail(logs.log_path(self._context.settings.logs, attempt, _SETUP))
                self._finish(text or f"setup ended with {self.rc}")

    def _finish(self, error: str | None) -> None:
        self.done = True
        self.setup_s = time.monotonic() - self._began
        self.error = None if error is None else mask_text(error, self._orders.spec.secrets)
        if error is None:
            self._context.keep(_PREPARED, self._marker())
        self._on_done(self)


def _is_whole(orders: Orders) -> bool:
    """Whether the orders name every node of the gang."""
    return max(1, len(orders.peers)) >= orders.spec.num_nodes


def _digest_in(source: Any) -> str:
    value = source.get("workdir") if isinstance(source, dict) else None
    return value if isinstance(value, str) else ""
