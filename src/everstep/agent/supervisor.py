"""The agent's side of process control: starts keepers, talks to them, and cleans up after a keeper or an agent that
died.

See :mod:`everstep.agent.keeper` for who kills what when. A ready keeper is kept in advance (:meth:`Supervisor.warm`):
starting ranks then costs no interpreter start. It may also have a warm standby of each rank (``stand_by``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from everstep.agent import proctree
from everstep.agent.settings import BOOT_NAMES

log = logging.getLogger(__name__)

ENV_MARK = "EVERSTEP_TREE"
"""Environment mark of everything started below one agent root."""
LOG_LIMIT_BYTES = 256 << 20
_SWEEP_S = 10.0
_OLD_KEEPER_S = 3.0

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Command:
    """A process to start.

    ``label`` names it in events, ``side`` ones do not count for the end of the keeper, ``folders`` are made before.
    """

    label: str
    argv: Sequence[str]
    env: dict[str, str]
    cwd: Path
    log: Path
    side: bool = False
    folders: Sequence[str] = ()

    def to_wire(self) -> dict[str, Any]:
        """The keeper's JSON form."""
        return {
            "label": self.label,
            "argv": list(self.argv),
            "env": self.env,
            "cwd": str(self.cwd),
            "log": str(self.log),
            "side": self.side,
            "folders": list(self.folders),
        }


def own_command(*arguments: str) -> list[str]:
    """Command line that runs this very agent program with ``arguments``, from its ``.pyz`` or from a source tree."""
    base = Path(__file__).resolve().parents[2]
    if base.is_file():  # inside the .pyz
        return [sys.executable, "-S", "-E", str(base), *arguments]
    start = f"import sys; sys.path.insert(0, {str(base)!r}); from everstep.agent.__main__ import main; sys.exit(main())"
    return [sys.executable, "-S", "-E", "-c", start, *arguments]


class Keeper:
    """One keeper process. Events arrive by ``on_event`` in a thread of its own; ``gone`` is always the last one."""

    def __init__(self, supervisor: Supervisor, process: subprocess.Popen[bytes]) -> None:
        self._supervisor = supervisor
        self._process = process
        self._on_event: OnEvent | None = None
        self._on_loaded: Callable[[], None] = lambda: None
        self._early: list[dict[str, Any]] = []  # events before there was anybody to tell
        self._events_lock = threading.Lock()
        self._listens = False
        self._lock = threading.Lock()
        self.pid = process.pid

    def start(self, commands: Sequence[Command], on_event: OnEvent, *, secrets: Sequence[str] = ()) -> None:
        """Start processes. Call it again for side processes of the same tree (``on_event`` of the first call stays)."""
        with self._events_lock:
            if self._on_event is None:
                self._on_event = on_event
            for event in self._early:
                on_event(event)
            self._early.clear()
        self._say(
            {
                "do": "spawn",
                "procs": [command.to_wire() for command in commands],
                "mask": list(secrets),
                "log_limit": LOG_LIMIT_BYTES,
            }
        )
        self._begin_to_listen()

    def stand_by(self, commands: Sequence[Command], hook: Mapping[str, str], on_loaded: Callable[[], None]) -> None:
        """Have a process wait in the place of each command that :meth:`start` may be asked for; see ``standby``.

        ``on_loaded`` is called in a thread of the keeper's when they have imported what they can, or cannot.
        """
        self._on_loaded = on_loaded
        self._say({"do": "standby", "procs": [{**command.to_wire(), "hook": dict(hook)} for command in commands]})
        self._begin_to_listen()

    def signal(self, signum: int) -> None:
        """Ask politely (see ``proctree.soft_targets``)."""
        self._say({"do": "signal", "signal": signum})

    def kill(self) -> None:
        """Kill the whole tree; ``empty`` and ``gone`` follow when nothing is left."""
        self._say({"do": "kill"})

    def close(self) -> None:
        """Let go of the keeper; it kills what it has and leaves."""
        with self._lock, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def alive(self) -> bool:
        """Whether the keeper process runs."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> None:
        """Wait until it ended; no error if it did not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def _say(self, command: dict[str, Any]) -> None:
        data = json.dumps(command).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError, ValueError):  # a dead keeper is told by `gone`
            assert self._process.stdin is not None
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _begin_to_listen(self) -> None:
        if not self._listens:
            self._listens = True
            threading.Thread(target=self._listen, name=f"keeper-{self.pid}", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        empty = False
        for line in self._process.stdout:
            event = json.loads(line)
            empty = empty or event["event"] == "empty"
            self._pass_on(event)
        self._process.wait()
        self._supervisor.forget(self, sweep=not empty)
        self._pass_on({"event": "gone", "clean": empty})

    def _pass_on(self, event: dict[str, Any]) -> None:
        if event["event"] == "standbys":
            self._on_loaded()
            return
        with self._events_lock:
            if self._on_event is None:
                self._early.append(event)
            else:
                self._on_event(event)


class Supervisor:
    """Makes keepers and answers for everything below them.

    Args:
        folder: where records of running keepers are kept for the next agent.
        mark: text that is unique to this agent root.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._keepers: dict[int, Keeper] = {}
        self._warm: Keeper | None = None
        self._stands_by = False
        self.mark = hashlib.sha256(mark.encode()).hexdigest()[:24]
        folder.mkdir(parents=True, exist_ok=True)
        if not proctree.become_subreaper():
            log.warning("this kernel has no child subreapers: a process that detaches may outlive its rank")

    def warm(self) -> None:
        """Have a keeper ready for the next :meth:`take`."""
        if self._warm is None or not self._warm.alive():
            self._warm, self._stands_by = self._new(), False

    def take(self, *, for_ranks: bool = False) -> Keeper:
        """A keeper that has started nothing yet; one with standbys only ``for_ranks``."""
        keeper = self._warm
        if keeper is None or not keeper.alive() or (self._stands_by and not for_ranks):
            return self._new()
        self._warm, self._stands_by = None, False
        return keeper

    def stand_by(self, commands: Sequence[Command], hook: Mapping[str, str], on_loaded: Callable[[], None]) -> None:
        """Have standbys ready for the next :meth:`take` for ranks; see ``Keeper.stand_by``. No second ones."""
        self.warm()
        assert self._warm is not None
        if self._stands_by:
            on_loaded()
            return
        self._stands_by = True
        self._warm.stand_by(commands, hook, on_loaded)

    def stand_down(self) -> None:
        """End the standbys: what they were made from may have changed."""
        if self._stands_by and self._warm is not None:
            self._warm.close()
            self._warm, self._stands_by = None, False

    def close(self, timeout_s: float) -> None:
        """End all keepers and all they started."""
        with self._lock:
            keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.close()
        for keeper in keepers:
            keeper.wait(timeout_s)
        self._sweep_orphans(spare_keepers=False)

    def sweep_previous(self) -> int:
        """Before anything starts.

        Kill what an earlier agent of this root left. Returns how many processes that were.
        """
        killed = 0
        for record in self._folder.glob("*.json"):
            killed += _end_old_keeper(record)
        entry = f"{ENV_MARK}={self.mark}".encode()
        killed += len(proctree.with_environment(entry))
        left = proctree.kill_all(
            lambda: [proc for proc in proctree.with_environment(entry) if proc.state not in "ZX"],
            reap=lambda: None,
            timeout_s=_SWEEP_S,
        )
        if left:
            log.error("processes of an earlier agent cannot be killed: %s", [proc.pid for proc in left])
        return killed

    def forget(self, keeper: Keeper, *, sweep: bool) -> None:
        """A keeper ended; ``sweep`` if it did not say that its tree is empty."""
        if sweep:
            log.error("keeper %d died; killing what it left", keeper.pid)
            self._sweep_orphans(spare_keepers=True)
        with self._lock:
            self._keepers.pop(keeper.pid, None)
        with contextlib.suppress(OSError):
            (self._folder / f"{keeper.pid}.json").unlink()

    def _new(self) -> Keeper:
        # Marks by which others know the processes of this machine stay; our token and Python's settings do not.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in BOOT_NAMES and not name.startswith("PYTHON")
        }
        with self._lock:  # a sweep in another thread must not see a keeper it does not know
            process = subprocess.Popen(
                own_command("keeper"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            keeper = Keeper(self, process)
            self._keepers[process.pid] = keeper
        proc = proctree.read(process.pid)
        if proc is not None:
            with contextlib.suppress(OSError):
                (self._folder / f"{proc.pid}.json").write_text(json.dumps({"pid": proc.pid, "start": proc.start}))
        return keeper

    def _sweep_orphans(self, *, spare_keepers: bool) -> None:
        """Kill the agent's own descendants: children of dead keepers came to it, as the next subreaper."""
        me = os.getpid()
        with self._lock:
            live = {pid for pid, keeper in self._keepers.items() if spare_keepers and keeper.alive()}

            def orphans() -> list[proctree.Proc]:
                procs = proctree.table()
                spared = set(live)
                for pid in live:
                    spared.update(proc.pid for proc in proctree.descendants(pid, procs))
                mine = proctree.descendants(me, procs)
                # Zombies that are keepers are reaped through their Popen objects, not here.
                return [proc for proc in mine if proc.pid not in spared and proc.pid not in self._keepers]

            def reap() -> None:
                for proc in orphans():
                    if proc.ppid == me and proc.state == "Z":
                        with contextlib.suppress(OSError):
                            os.waitpid(proc.pid, os.WNOHANG)

            left = proctree.kill_all(orphans, reap=reap, timeout_s=_SWEEP_S)
        if left:
            log.error("cannot kill %s", [proc.pid for proc in left])


def _end_old_keeper(record: Path) -> int:
    """Wait for a keeper of an earlier agent to finish its sweep; help it if it does not."""
    killed = 0
    with contextlib.suppress(OSError, ValueError, KeyError):
        data = json.loads(record.read_text())
        pid, start = int(data["pid"]), int(data["start"])

        def here() -> bool:
            proc = proctree.read(pid)
            return proc is not None and proc.start == start and proc.state not in "ZX"

        end = time.monotonic() + _OLD_KEEPER_S
        while here() and time.monotonic() < end:
            time.sleep(0.01)
        if here():
            keeper = proctree.read(pid)
            tree = proctree.descendants(pid)
            killed = len(tree) + 1
            proctree.kill_all(
                lambda: proctree.descendants(pid) if here() else [], reap=lambda: None, timeout_s=_SWEEP_S
            )
            if keeper is not None and keeper.start == start:
                proctree.send(keeper, 9)
    with contextlib.suppress(OSError):
        record.unlink()
    return killed
