"""One attempt on this node: starts its ranks, passes on wishes to save and stop, watches, and reports how it ended."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable

from everstep.agent import environment, logs
from everstep.agent.context import Context, shell
from everstep.agent.control import ControlFile
from everstep.agent.mailbox import Timer
from everstep.agent.masking import mask_text
from everstep.agent.orders import Orders, Save, Stop
from everstep.agent.outcome import Circumstances, Exit, outcome_of, refused
from everstep.agent.reports import Progress, ReportFolder, fact_message, folder_state
from everstep.agent.supervisor import Command, Keeper
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

SETTLE_S = 0.3  # after a rank failed: time for the culprit's own message, and to see who was first
_LOOK_S = 0.2
_PROGRESS_S = 1.0
_GROWTH_S = 10.0
_SIGNALLED_S = 300.0  # a clean exit within this time after a signal is an answer to it


class Attempt:
    """Lives in the main thread. ``on_ended`` is called once, after ``ended`` was queued and nothing is left running."""

    def __init__(self, context: Context, orders: Orders, on_ended: Callable[[Attempt], None]) -> None:
        assert orders.attempt is not None
        self.number: int = orders.attempt
        self._context = context
        self._orders = orders
        self._on_ended = on_ended
        self._folder = context.settings.attempt_folder(self.number)
        self._reports = ReportFolder(self._folder / "reports")
        self._control = ControlFile(self._folder / "control.json", orders.hazard_per_h)
        self._keeper: Keeper | None = None
        self._commands: list[Command] = []
        self._exits: list[Exit] = []
        self._stop: Stop | None = None
        self._signalled_at: float | None = None
        self._asked_at: float | None = None
        self._saved_at: float | None = None
        self._server_save_seq = 0
        self._notices_run = 0
        self._kill_timer: Timer | None = None
        self._settling = False
        self._restored_told = False
        self._last_warning = ""
        self._told: tuple[Any, ...] = ()
        self._told_at = 0.0
        self._growth_from: tuple[int, float] | None = None
        self.over = False

    @property
    def ranks_alive(self) -> int:
        """How many of the processes it started still run."""
        return 0 if self.over else len(self._commands) - len(self._exits)

    @property
    def succeeded(self) -> bool:
        """Every rank exited 0."""
        return self.over and len(self._exits) == len(self._commands) and all(one.rc == 0 for one in self._exits)

    @property
    def trains(self) -> bool:
        """It did a step, or it is a script that does not tell."""
        return not self.over and (bool(self._told) or not self._reports.in_use())

    # ---- start -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the ranks and say so."""
        shutil.rmtree(self._folder, ignore_errors=True)  # of another job that used this disk
        try:
            self._reports.folder.mkdir(parents=True, exist_ok=True)
            self._control.write()
        except OSError as error:
            self._context.warn(
                f"cannot write the control file: {error.strerror or error}; ranks will not hear of saves"
            )
        self._commands = rank_commands(
            self._context, self._orders, reports=self._reports.folder, control=self._control.path
        )
        for command in self._commands:
            self._context.log_path(self.number, command.label)
        self._keeper = self._context.supervisor.take(for_ranks=True)
        post = self._context.mailbox.post
        self._keeper.start(
            self._commands, lambda event: post(lambda: self._on_event(event)), secrets=self._orders.spec.secrets
        )
        self._context.outbox.put(
            hs.MSG_STARTED, attempt=self.number, ranks=len(self._commands), spawned_at=self._context.clock.utc()
        )
        self._context.mailbox.later(_LOOK_S, self._look)
        self._watch_growth()
        if self._orders.save is not None:
            self.save(self._orders.save)

    # ---- wishes ----------------------------------------------------------------------------------------------------

    def save(self, wish: Save) -> None:
        """The server wants a save; a repeated order, or one a notice here already caused, asks for nothing new."""
        if wish.seq <= self._server_save_seq or self.over:
            return
        self._server_save_seq = wish.seq
        known = self._control.save_by
        if known is not None and wish.by is not None and abs(known - wish.by) < 1.0:
            return
        self.save_by(wish.by)

    def save_by(self, by: float | None, *, tell_script: bool = True) -> None:
        """Have the ranks save now and shortly before ``by`` (UTC seconds).

        Safe on one node alone: ranks agree on the step. ``tell_script``: also do the task's ``on_notice``.
        """
        self._asked_at = time.monotonic()
        self._write_control(lambda: self._control.ask_save(by))
        if tell_script:
            self._tell_script()

    def hazard(self, hazard_per_h: float) -> None:
        """Pass on the expected losses."""
        if not self.over:
            self._write_control(lambda: self._control.tell_hazard(hazard_per_h))

    def stop(self, wish: Stop) -> None:
        """Stop the ranks: after a save or not, but never later than ``grace_s`` from the first time this is asked."""
        if self.over or self._keeper is None:
            return
        if self._stop is not None and (self._stop.save, self._stop.grace_s) == (wish.save, wish.grace_s):
            return
        self._stop = wish
        log.info("stopping attempt %d: %s (save: %s, grace %.1f s)", self.number, wish.reason, wish.save, wish.grace_s)
        if wish.grace_s <= 0:
            self._keeper.kill()
            return
        if wish.save:
            self._asked_at = time.monotonic()
            heard = self._write_control(self._control.ask_stop) and self._reports.in_use()
            if not self._tell_script() and not heard:
                self._terminate()
        else:
            self._terminate()
        self._kill_after(wish.grace_s)

    def kill(self, reason: str) -> None:
        """Stop the ranks at once."""
        self.stop(Stop(save=False, grace_s=0.0, reason=reason))

    def _write_control(self, write: Callable[[], None]) -> bool:
        try:
            write()
            return True
        except OSError as error:
            self._context.warn(f"cannot write the control file: {error.strerror or error}")
            return False

    def _tell_script(self) -> bool:
        """The task's ``on_notice``, for scripts without our library; False if it has none."""
        wish = self._orders.spec.on_notice.strip()
        if not wish or self._keeper is None:
            return False
        signum = getattr(signal, wish, None) if wish.startswith("SIG") else None
        if isinstance(signum, signal.Signals):
            self._signalled_at = time.monotonic()
            self._keeper.signal(signum)
            return True
        self._notices_run += 1
        label = f"exec-notice-{self._notices_run}"
        path = self._context.log_path(self.number, label)
        env = self._commands[0].env
        command = Command(label, shell(wish), env, self._context.settings.workdir, path, side=True)
        self._keeper.start([command], lambda event: None, secrets=self._orders.spec.secrets)
        self._signalled_at = time.monotonic()
        return True

    def _terminate(self) -> None:
        assert self._keeper is not None
        self._signalled_at = time.monotonic()
        self._keeper.signal(signal.SIGTERM)

    def _kill_after(self, seconds: float) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        assert self._keeper is not None
        self._kill_timer = self._context.mailbox.later(seconds, self._keeper.kill)

    # ---- watching --------------------------------------------------------------------------------------------------

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "exited" and event["label"].isdigit():
            self._exits.append(Exit(int(event["label"]), int(event["rc"])))
            self._on_exit(int(event["rc"]))
        elif kind == "stuck":
            self._context.warn(f"processes {event['pids']} of attempt {self.number} cannot be killed yet")
        elif kind == "gone":
            self._finish(clean=bool(event["clean"]))

    def _on_exit(self, rc: int) -> None:
        """A rank failed.

        The others cannot go on without it. A rank saved and left unasked: the others will follow soon.
        """
        if rc == 0 or not self.ranks_alive or self._stop is not None or self._settling:
            return
        if rc != hs.EXIT_SAVED:
            self._settling = True
            self._kill_after(SETTLE_S)
        elif self._kill_timer is None:
            self._kill_after(self._orders.spec.stop_grace_s)

    def _look(self) -> None:
        if self.over:
            return
        self._context.mailbox.later(_LOOK_S, self._look)
        self._pass_facts()
        if time.monotonic() - self._told_at >= _PROGRESS_S:
            self._pass_progress(self._reports.progress())

    def _pass_facts(self) -> None:
        for rank, fact in self._reports.new_facts():
            if fact["kind"] == hs.FACT_WARNING:
                text = mask_text(str(fact.get("text", ""))[:500], self._orders.spec.secrets)
                self._last_warning = text
                self._context.warn(f"rank {rank}: {text}")
            message = fact_message(fact)
            if message is None or (message[0] == hs.MSG_RESTORED and self._restored_told):
                continue  # every rank restores; one word per node is enough
            self._restored_told = self._restored_told or message[0] == hs.MSG_RESTORED
            if message[0] == hs.MSG_SAVED:
                self._saved_at = time.monotonic()
            if message[0] == hs.MSG_AUDITED:  # names objects and quotes the script
                message[1]["text"] = mask_text(message[1]["text"], self._orders.spec.secrets)
            self._context.outbox.put(message[0], attempt=self.number, **message[1])

    def _pass_progress(self, progress: Progress | None) -> None:
        if progress is None or progress.step is None:
            return
        told = (progress.step, progress.total)
        if told == self._told or self._context.outbox.has_unacked(hs.MSG_PROGRESS):
            return
        self._told, self._told_at = told, time.monotonic()
        self._context.outbox.put(
            hs.MSG_PROGRESS,
            attempt=self.number,
            step=progress.step,
            total=progress.total,
            metrics=progress.metrics,
            first_step_at=progress.first_step_at,
        )

    def _watch_growth(self) -> None:
        """Evidence of progress for scripts without our library.

        Their checkpoint folder grew. Looked at in a thread (it may be NFS).
        """
        folder = environment.checkpoint_dir(self._context.node, self._orders)

        def look() -> None:
            state = folder_state(folder)
            self._context.mailbox.post(lambda: self._on_folder_state(state))

        threading.Thread(target=look, name="growth", daemon=True).start()

    def _on_folder_state(self, state: tuple[int, float]) -> None:
        if self.over:
            return
        if self._growth_from is None:
            self._growth_from = state
        elif state != self._growth_from and state[1] >= self._growth_from[1] and not self._reports.in_use():
            self._context.outbox.put(hs.MSG_FOLDER_GROWTH, attempt=self.number)
            return
        self._context.mailbox.later(_GROWTH_S, lambda: None if self.over else self._watch_growth())

    # ---- end -------------------------------------------------------------------------------------------------------

    def _finish(self, *, clean: bool) -> None:
        if self.over:
            return
        self.over = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._pass_facts()
        progress = self._reports.progress()
        now = time.monotonic()
        outcome, decisive = outcome_of(
            self._exits,
            Circumstances(
                ranks=len(self._commands),
                asked=self._stop is not None,
                signalled=self._signalled_at is not None and now - self._signalled_at < _SIGNALLED_S,
                saved=self._asked_at is not None and self._saved_at is not None and self._saved_at >= self._asked_at,
                complete=progress is not None and progress.complete,
            ),
        )
        if clean or decisive is not None:
            rc = decisive.rc if decisive is not None else (0 if outcome == hs.OUTCOME_OK else None)
            signum = decisive.signal if decisive is not None else None
            tail = self._tail(decisive)
        else:
            rc, signum, tail = None, int(signal.SIGKILL), "the process that kept the ranks was killed"
        failed = decisive.rank if decisive is not None and outcome == hs.OUTCOME_FAILED else None
        if outcome == hs.OUTCOME_FAILED and refused(decisive, tail):
            # Under torchrun the reason may be far above what torchrun itself said last.
            rc, tail = hs.EXIT_REFUSED, f"{tail}\n{hs.REFUSAL}{self._last_warning}" if self._last_warning else tail
        log.info("attempt %d ended: %s, rc %s", self.number, outcome, rc)
        self._context.outbox.put(
            hs.MSG_ENDED,
            attempt=self.number,
            outcome=outcome,
            rc=rc,
            signal=signum,
            failed_rank=failed,
            tail=tail,
            **_progress_fields(progress),
        )
        for label in [command.label for command in self._commands] + [
            f"exec-notice-{number + 1}" for number in range(self._notices_run)
        ]:
            self._context.shipper.finish(self.number, label)
        self._on_ended(self)

    def _tail(self, decisive: Exit | None) -> str:
        rank = decisive.rank if decisive is not None else int(self._commands[0].label)
        return logs.tail(logs.log_path(self._context.settings.logs, self.number, str(rank)))


def rank_commands(context: Context, orders: Orders, *, reports: Path, control: Path) -> list[Command]:
    """What the attempt of ``orders`` starts on this node."""
    spec = orders.spec
    env = environment.run(context.node, environment.inherited(), orders, reports=reports, control=control)
    argv = list(spec.argv) if spec.argv else shell(spec.run)
    envs = {orders.node_rank: env}
    if spec.ranks_per_node is not None:
        first = orders.node_rank * spec.ranks_per_node
        envs = {first + local: environment.rank(env, orders, local) for local in range(spec.ranks_per_node)}
    folders = [env[hs.ENV_CHECKPOINT_DIR]]
    settings = context.settings
    paths = {rank: logs.log_path(settings.logs, orders.attempt or 0, str(rank)) for rank in envs}
    return [Command(str(r), argv, env, settings.workdir, paths[r], folders=folders) for r, env in envs.items()]


def _progress_fields(progress: Progress | None) -> dict[str, Any]:
    return {
        "step": progress.step if progress else None,
        "total": progress.total if progress else None,
        "first_step_at": progress.first_step_at if progress else None,
        "last_step_at": progress.t if progress else None,
        "steps_done": progress.steps_done if progress else 0,
        "stall_s": progress.stall_s if progress else 0.0,
    }


def lost_with_agent(number: int) -> dict[str, Any]:
    """Fields of ``ended`` for an attempt whose ranks died because the agent was killed under them."""
    return {
        "attempt": number,
        "outcome": hs.OUTCOME_FAILED,
        "rc": None,
        "signal": int(signal.SIGKILL),
        "failed_rank": None,
        "tail": "the agent was killed, and its ranks with it",
        "agent_killed": True,
        **_progress_fields(None),
    }


def not_started(number: int, reason: str) -> dict[str, Any]:
    """Fields of ``ended`` for an attempt that could not be started on this machine."""
    return {
        "attempt": number,
        "outcome": hs.OUTCOME_FAILED,
        "rc": None,
        "signal": None,
        "failed_rank": None,
        "tail": f"the agent could not start the ranks: {reason}",
        **_progress_fields(None),
    }
