"""Watches the job through the client, as any user would, and breaks things when their time has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.cli.demo import scenario
from everstep.cli.demo.scenario import Kind
from everstep.cli.demo.stage import Stage
from everstep.client.api import Client
from everstep.client.home import NoServer
from everstep.client.results import EventView, JobDetail
from everstep.model.errors import EverstepError

_POLL_S = 0.25
#: What is worth a line in the live view; the journal has everything.
_TOLD = frozenset(
    {
        "LaunchSucceeded",
        "LaunchFailed",
        "NoticeReceived",
        "InstanceEnded",
        "InstanceSilent",
        "RanksStarted",
        "RanksEnded",
        "Restored",
        "CauseSettled",
    }
)


@dataclass(slots=True)
class Sight:
    """What the live view shows.

    Attributes:
        detail: the job as last seen; None before that.
        away: the server does not answer.
        began_at: UTC seconds of the submission.
        told: what happened, oldest first: (UTC seconds, text, whether we did it).
    """

    began_at: float
    detail: JobDetail | None = None
    away: bool = False
    told: list[tuple[float, str, bool]] = field(default_factory=list)


Show = Callable[[Sight], None]


@dataclass(slots=True)
class Driver:
    """One run.

    Attributes:
        acts: what was broken: ``at`` (UTC seconds), ``step``, ``what``, ``target``.
    """

    stage: Stage
    client: Client
    job: str
    total: int
    show: Show
    acts: list[dict[str, Any]] = field(default_factory=list)
    restart_at: float | None = None
    seen: int = 0
    faults_done: int = 0

    def run(self) -> JobDetail:
        """Until the job has ended; how it ended.

        Raises:
            EverstepError: it takes too long, or a fault could not be issued.
        """
        sight = Sight(time.time())
        deadline = time.monotonic() + scenario.LONGEST_S
        while sight.detail is None or not sight.detail.ended:
            if time.monotonic() > deadline:
                raise EverstepError(f"the demo did not end within {scenario.LONGEST_S:.0f} s")
            self._look(sight)
            self._act(sight)
            self.show(sight)
            time.sleep(_POLL_S)
        return sight.detail

    def _look(self, sight: Sight) -> None:
        try:
            sight.detail = self.client.status(self.job)
            for event in self.client.events(self.job, after=self.seen):
                self.seen = event.version
                self._tell(sight, event)
            sight.away = False
        except NoServer:
            sight.away = True
            self.client.close()  # a restarted server may have another address

    def _tell(self, sight: Sight, event: EventView) -> None:
        if event.kind in _TOLD:
            sight.told.append((event.at, event.text, False))
        if event.kind == "NoticeReceived" and not any(act["what"] == scenario.DROUGHT for act in self.acts):
            # The drought takes machines that we have not touched.
            instance = event.body["instance"]
            if instance not in {act["target"] for act in self.acts}:
                self._note(sight, scenario.DROUGHT, "", at=event.at)

    def _act(self, sight: Sight) -> None:
        if self.restart_at is not None:
            if time.monotonic() >= self.restart_at:
                self.restart_at = None
                self.stage.start_server()
                self._note(sight, "the server started again", "")
            return
        detail = sight.detail
        if detail is None or sight.away:
            return
        fault = scenario.next_fault(
            self.faults_done, detail.step, detail.total or self.total, under_way=is_training(detail)
        )
        if fault is None:
            return
        self.faults_done += 1
        target = self._break(fault.kind, detail)
        self._note(sight, fault.kind.value, target)

    def _break(self, kind: Kind, detail: JobDetail) -> str:
        """Does it; what it was done to."""
        if kind is Kind.SERVER:
            self.stage.kill_server()
            self.restart_at = time.monotonic() + scenario.SERVER_AWAY_S
            return "server"
        members = detail.attempts[-1].members
        instance = members[0] if kind is Kind.MASTER else members[-1]
        if kind is Kind.NODE:
            self.stage.box("kill", {"instance": instance, "detect_s": 0.0, "silent": False})
        else:
            self.stage.box("preempt", {"instance": instance, "notice": True, "notice_s": None})
        return instance

    def _note(self, sight: Sight, what: str, target: str, *, at: float | None = None) -> None:
        now = time.time() if at is None else at
        step = sight.detail.step if sight.detail is not None else None
        self.acts.append({"at": now, "step": step, "what": what, "target": target})
        sight.told.append((now, f"{what}{f': {target}' if target and target != 'server' else ''}", True))


def is_training(detail: JobDetail) -> bool:
    """The newest attempt has done a step and no machine of it is being lost: what was broken before is mended."""
    if detail.phase != "running" or not detail.attempts or not detail.attempts[-1].members:
        return False
    attempt = detail.attempts[-1]
    held = {machine.instance: machine for machine in detail.machines}
    whole = all(held[m].phase == "ready" and not held[m].notice for m in attempt.members if m in held)
    return whole and attempt.first_step_at is not None and detail.step is not None
