"""The desk: who is let in, what is taken in and when it is acknowledged, who waits for orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.control.agents import AgentDesk, NotYet
from everstep.control.telemetry import Telemetry
from everstep.model import handshake as h
from everstep.model.causes import InstanceEnd
from everstep.model.errors import BadInput, Conflict, HandshakeMismatch, NotAuthorized
from everstep.model.events import (
    AttemptsSkipped,
    CheckpointSaved,
    Event,
    InstanceEnded,
    InstanceJoined,
    LaunchFailed,
    NoticeReceived,
    OutputsStored,
    ProgressSeen,
    RanksEnded,
    ShutdownReported,
)
from everstep.model.ids import InstanceId, JobId, LaunchToken
from everstep.model.job import InstanceState, JobState
from everstep.testing.virtual import VirtualClock, run_virtual
from tests.brain.making import JOB, fold, fresh, machine

ME = InstanceId("i-1")
T1 = LaunchToken("t-1")


class Inbox:
    """Knows one job; makes durable when it is told to."""

    def __init__(self, state: JobState) -> None:
        self.job = state
        self.events: list[Event] = []
        self.open: list[asyncio.Future[None]] = []
        self.at_once = True
        self.newest = 2

    def newest_attempt(self, job: JobId) -> int:
        return self.newest

    def find(self, job: JobId, token: LaunchToken) -> tuple[JobState, InstanceState] | None:
        found = self.job.instances.get(token) if job == self.job.id else None
        return None if found is None else (self.job, found)

    def state(self, job: JobId) -> JobState | None:
        return self.job if job == self.job.id else None

    def job_of(self, instance: InstanceId) -> JobId | None:
        found = self.job.by_instance(instance)
        return self.job.id if found is not None and found.alive else None

    def put(self, job: JobId, event: Event) -> asyncio.Future[None]:
        self.events.append(event)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.at_once:
            done.set_result(None)
        else:
            self.open.append(done)
        return done

    def flush(self) -> None:
        for done in self.open:
            done.set_result(None)
        self.open.clear()


class Counter:
    """A desk with what is around it."""

    def __init__(self, clock: VirtualClock, state: JobState, key: bytes = b"k") -> None:
        self.clock = clock
        self.inbox = Inbox(state)
        self.heard: dict[InstanceId, Any] = {}
        self.telemetry = Telemetry(self.heard)
        self.desk = AgentDesk(
            key=key, inbox=self.inbox, clock=clock, telemetry=self.telemetry, lease_s=900.0, heartbeat_s=1.0
        )
        self.token = self.desk.join_token(JOB, T1)


def at_desk(main: Callable[[Counter], Coroutine[Any, Any, None]], state: JobState | None = None) -> None:
    async def run(clock: VirtualClock) -> None:
        await main(Counter(clock, up() if state is None else state))

    run_virtual(run)


def up() -> JobState:
    """Machine 1 runs and has not joined, machine 2 neither; the launch of machine 3 is open."""
    state = fold(fresh(3), machine(1)[:2])
    return fold(fold(state, machine(2)[:2]), machine(3)[:1])


def body(**changes: Any) -> dict[str, Any]:
    plain = {h.JOIN_HANDSHAKE: [1, 1], h.JOIN_INSTANCE: "i-1", h.JOIN_ADDRESS: "10.0.0.1", h.JOIN_PROBE_PORT: 7000}
    return {**plain, **changes}


def saved(seq: int, step: int = 1) -> dict[str, Any]:
    return {"seq": seq, "t": 1.0, "kind": h.MSG_SAVED, "attempt": 1, "step": step}


# --- Join ------------------------------------------------------------------------------------------------------------


def test_a_machine_joins_with_its_token_and_gets_a_credential() -> None:
    async def main(c: Counter) -> None:
        c.desk.send(ME, {"phase": "prepare"})
        answer = await c.desk.join(c.token, body())
        assert c.desk.authenticate(answer["credential"]) == ME
        assert (answer["lease_s"], answer["heartbeat_s"], answer["handshake"]) == (900.0, 1.0, h.HANDSHAKE_VERSION)
        assert answer["orders"]["phase"] == "prepare"
        assert c.inbox.events == [InstanceJoined(ME, "10.0.0.1", 7000)]

    at_desk(main)


def test_a_token_is_good_for_one_machine_which_may_repeat_it() -> None:
    async def main(c: Counter) -> None:
        first = await c.desk.join(c.token, body())
        again = await c.desk.join(c.token, body())
        assert again["credential"] == first["credential"]
        with pytest.raises(Conflict):
            await c.desk.join(c.token, body(**{h.JOIN_INSTANCE: "i-2"}))

    at_desk(main)


def test_join_answers_only_when_the_join_is_durable() -> None:
    async def main(c: Counter) -> None:
        c.inbox.at_once = False
        joining = asyncio.ensure_future(c.desk.join(c.token, body()))
        await c.clock.sleep(5.0)
        assert not joining.done()
        c.inbox.flush()
        assert "credential" in await joining

    at_desk(main)


@given(st.text())
def test_no_text_that_was_made_up_is_a_token_or_a_credential(text: str) -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotAuthorized):
            await c.desk.join(text, body())
        with pytest.raises(NotAuthorized):
            c.desk.authenticate(text)
        assert c.inbox.events == []

    at_desk(main)


def test_a_token_that_was_changed_or_signed_elsewhere_is_refused() -> None:
    async def main(c: Counter) -> None:
        other = Counter(c.clock, up(), key=b"another deployment").desk
        job, launch, mac = c.token.split(".")
        forged = (
            f"{job}.t-2.{mac}",
            f"j-other.{launch}.{mac}",
            f"{job}.{launch}.{mac[:-1]}",
            f"{job}.{launch}.",
            other.join_token(JOB, T1),
            c.desk.join_token(JobId("j-other"), T1),
            c.desk.join_token(JOB, LaunchToken("t-99")),
        )
        for token in forged:
            with pytest.raises(NotAuthorized):
                await c.desk.join(token, body())

    at_desk(main)


def test_a_credential_is_no_token_and_of_one_machine_only() -> None:
    async def main(c: Counter) -> None:
        credential = (await c.desk.join(c.token, body()))["credential"]
        with pytest.raises(NotAuthorized):
            await c.desk.join(credential, body())
        with pytest.raises(NotAuthorized):
            c.desk.authenticate(c.token)
        with pytest.raises(NotAuthorized):
            c.desk.authenticate(credential.replace("i-1", "i-2"))

    at_desk(main)


def test_a_credential_survives_a_restart_of_the_server() -> None:
    async def main(c: Counter) -> None:
        credential = (await c.desk.join(c.token, body()))["credential"]
        assert Counter(c.clock, up()).desk.authenticate(credential) == ME

    at_desk(main)


def test_a_launch_that_is_not_answered_yet_asks_the_agent_to_come_again() -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotYet):
            await c.desk.join(c.desk.join_token(JOB, LaunchToken("t-3")), body(**{h.JOIN_INSTANCE: "i-3"}))

    at_desk(main)


def test_a_launch_that_was_refused_lets_nobody_in() -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotAuthorized):
            await c.desk.join(c.desk.join_token(JOB, LaunchToken("t-3")), body(**{h.JOIN_INSTANCE: "i-3"}))

    at_desk(main, fold(up(), [LaunchFailed(LaunchToken("t-3"), "no_capacity", "")]))


@pytest.mark.parametrize("spoken", [[0, 0], [h.HANDSHAKE_VERSION + 1, h.HANDSHAKE_VERSION + 3]])
def test_an_agent_of_another_age_is_told_both_versions(spoken: list[int]) -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(HandshakeMismatch, match=f"{spoken[0]} to {spoken[1]}.*{h.HANDSHAKE_VERSION}"):
            await c.desk.join(c.token, body(**{h.JOIN_HANDSHAKE: spoken}))
        assert c.inbox.events == []

    at_desk(main)


@pytest.mark.parametrize(
    "changes",
    [
        {h.JOIN_HANDSHAKE: None},
        {h.JOIN_HANDSHAKE: [1]},
        {h.JOIN_HANDSHAKE: ["one", 1]},
        {h.JOIN_HANDSHAKE: [1, float("inf")]},
        {h.JOIN_PROBE_PORT: "web"},
        {h.JOIN_PROBE_PORT: float("inf")},
        {h.JOIN_BOOTED_AT: float("nan")},
        {h.JOIN_GPUS: "many"},
    ],
)
def test_a_malformed_join_is_bad_input(changes: dict[str, Any]) -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(BadInput):
            await c.desk.join(c.token, body(**changes))
        assert c.inbox.events == []

    at_desk(main)


# --- Reports ---------------------------------------------------------------------------------------------------------


def test_a_report_is_acknowledged_only_when_it_is_durable() -> None:
    async def main(c: Counter) -> None:
        c.inbox.at_once = False
        reporting = asyncio.ensure_future(c.desk.report(ME, [saved(1), saved(2, 2)]))
        await c.clock.sleep(7.0)
        assert len(c.inbox.events) == 2
        assert not reporting.done()
        c.inbox.flush()
        assert (await reporting)["ack"] == 2

    at_desk(main)


def test_repeats_are_taken_in_once() -> None:
    async def main(c: Counter) -> None:
        await c.desk.report(ME, [saved(1), saved(2, 2)])
        answer = await c.desk.report(ME, [saved(1), saved(2, 2), saved(3, 3)])
        assert answer["ack"] == 3
        assert [e.step for e in c.inbox.events if isinstance(e, CheckpointSaved)] == [1, 2, 3]

    at_desk(main)


def test_after_a_restart_of_the_server_an_agent_goes_on_with_its_numbers() -> None:
    async def main(c: Counter) -> None:
        assert (await c.desk.report(ME, [saved(41, 7)]))["ack"] == 41
        assert len(c.inbox.events) == 1

    at_desk(main)


def test_an_agent_that_was_started_anew_counts_from_one_again() -> None:
    async def main(c: Counter) -> None:
        await c.desk.join(c.token, body())
        await c.desk.report(ME, [saved(5, 5)])
        await c.desk.join(c.token, body())
        assert (await c.desk.report(ME, [saved(1, 6)]))["ack"] == 1
        assert [e.step for e in c.inbox.events if isinstance(e, CheckpointSaved)] == [5, 6]

    at_desk(main)


def test_a_report_of_the_process_before_does_not_spoil_the_numbers_of_the_new_one() -> None:
    async def main(c: Counter) -> None:
        await c.desk.join(c.token, body())
        c.inbox.at_once = False
        late = asyncio.ensure_future(c.desk.report(ME, [saved(50, 5)]))
        await asyncio.sleep(0)
        joining = asyncio.ensure_future(c.desk.join(c.token, body()))
        await asyncio.sleep(0)
        c.inbox.open[1].set_result(None)
        await joining
        c.inbox.open[0].set_result(None)
        await late
        c.inbox.at_once = True
        assert (await c.desk.report(ME, [saved(1, 6)]))["ack"] == 1
        assert [e.step for e in c.inbox.events if isinstance(e, CheckpointSaved)] == [5, 6]

    at_desk(main)


MALFORMED: list[Any] = [
    {"seq": 2, "kind": "gossip"},
    {"seq": 2},
    {"seq": "two", "kind": h.MSG_HEARTBEAT},
    {"seq": float("inf"), "kind": h.MSG_HEARTBEAT},
    "not a message",
    None,
    {"seq": 2, "kind": h.MSG_HEARTBEAT, "attempt": "first"},
    {"seq": 2, "kind": h.MSG_HEARTBEAT, "warnings": 7},
    {"seq": 2, "kind": h.MSG_SAVED, "attempt": 1},
    {"seq": 2, "kind": h.MSG_SAVED, "attempt": 1, "step": "x"},
    {"seq": 2, "kind": h.MSG_SAVED, "attempt": 1, "step": float("inf")},
    {"seq": 2, "kind": h.MSG_SAVED, "attempt": 1, "step": 1, "save_s": float("nan")},
    {"seq": 2, "kind": h.MSG_SAVED, "attempt": 1, "step": 1, "save_s": float("inf")},
    {"seq": 2, "kind": h.MSG_STARTED, "attempt": 1, "ranks": 1, "spawned_at": float("nan")},
    {"seq": 2, "kind": h.MSG_ENDED, "attempt": 1, "outcome": "fine"},
    {"seq": 2, "kind": h.MSG_ENDED, "attempt": 1, "outcome": "ok", "last_step_at": float("nan")},
    {"seq": 2, "kind": h.MSG_NOTICE, "notice": "rumour"},
    {"seq": 2, "kind": h.MSG_NOTICE, "notice": "terminate", "deadline": float("inf")},
    {"seq": 2, "kind": h.MSG_RESTORED, "attempt": 1, "base": "newest"},
    {"seq": 2, "kind": h.MSG_CHECKED, "attempt": 1, "unreachable": 5},
    {"seq": 2, "kind": h.MSG_PROGRESS, "attempt": 1},
    {"seq": 2, "kind": h.MSG_PROGRESS, "attempt": 1, "step": 1, "metrics": ["loss"]},
    {"seq": 2, "kind": h.MSG_PROGRESS, "attempt": 1, "step": 1, "first_step_at": float("nan")},
    {"seq": 2, "kind": h.MSG_EXEC_ENDED, "id": "e1", "rc": "zero"},
]


@pytest.mark.parametrize("message", MALFORMED, ids=[str(n) for n in range(len(MALFORMED))])
def test_a_malformed_message_is_bad_input_and_nothing_of_it_reaches_the_journal(message: Any) -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(BadInput):
            await c.desk.report(ME, [saved(1), message, saved(3, 3)])
        assert [type(e) for e in c.inbox.events] == [CheckpointSaved], "those before it were taken in"

    at_desk(main)


def test_metrics_may_be_no_numbers_since_no_journal_holds_them() -> None:
    async def main(c: Counter) -> None:
        message = {"seq": 1, "kind": h.MSG_PROGRESS, "attempt": 1, "step": 1, "metrics": {"loss": float("nan")}}
        await c.desk.report(ME, [message])
        assert c.telemetry.observed[ME].step == 1

    at_desk(main)


def test_heartbeats_and_progress_are_telemetry_and_only_the_first_and_the_first_move_are_journalled() -> None:
    async def main(c: Counter) -> None:
        beat = {"seq": 1, "kind": h.MSG_HEARTBEAT, "attempt": 1, "ranks_alive": 2, "warnings": ["the disk is full"]}
        await c.desk.report(ME, [beat])
        assert c.telemetry.observed[ME].ranks_alive == 2
        assert c.telemetry.observed[ME].warnings == ["the disk is full"]
        for n in range(2, 6):
            told = {"kind": h.MSG_PROGRESS, "attempt": 1, "step": n, "total": 9, "metrics": {"loss": 1 / n}}
            await c.desk.report(ME, [{"seq": n, **told}])
        assert [e.step for e in c.inbox.events if isinstance(e, ProgressSeen)] == [2, 3]
        assert (c.heard[ME].step, c.heard[ME].total) == (5, 9)

    at_desk(main)


def test_an_agent_that_knows_of_a_newer_attempt_tells_of_a_journal_that_was_put_back() -> None:
    async def main(c: Counter) -> None:
        beat = {"kind": h.MSG_HEARTBEAT, "ranks_alive": 1}
        await c.desk.report(ME, [{"seq": 1, **beat, "attempt": 2}])
        assert c.inbox.events == []
        await c.desk.report(ME, [{"seq": 2, **beat, "attempt": 7}])
        assert [(type(e), getattr(e, "to", None)) for e in c.inbox.events] == [(AttemptsSkipped, 7)]

    at_desk(main)


def test_steps_of_the_attempt_before_say_nothing_about_the_one_that_runs() -> None:
    async def main(c: Counter) -> None:
        await c.desk.report(ME, [{"seq": 1, "kind": h.MSG_PROGRESS, "attempt": 1, "step": 45}])
        await c.desk.report(ME, [{"seq": 2, "kind": h.MSG_HEARTBEAT, "attempt": 2, "ranks_alive": 1}])
        assert c.heard[ME].step is None
        await c.desk.report(ME, [{"seq": 3, "kind": h.MSG_PROGRESS, "attempt": 2, "step": 41}])
        assert [(e.attempt, e.step) for e in c.inbox.events if isinstance(e, ProgressSeen)] == [(1, 45), (2, 41)]

    at_desk(main)


def test_the_end_of_a_command_is_no_event_of_the_job() -> None:
    async def main(c: Counter) -> None:
        answer = await c.desk.report(ME, [{"seq": 1, "kind": h.MSG_EXEC_ENDED, "id": "e7", "rc": 3}])
        assert answer["ack"] == 1
        assert c.inbox.events == []

    at_desk(main)


def test_ranks_that_failed_raise_a_suspicion() -> None:
    async def main(c: Counter) -> None:
        suspects: list[InstanceId] = []
        c.desk.on_failure = suspects.append
        ended = {"seq": 1, "kind": h.MSG_ENDED, "attempt": 1, "outcome": "failed", "rc": 1}
        await c.desk.report(ME, [ended])
        await c.desk.report(ME, [{**ended, "seq": 2, "outcome": "ok", "rc": 0}])
        assert suspects == [ME]
        assert [e.outcome for e in c.inbox.events if isinstance(e, RanksEnded)] == ["failed", "ok"]

    at_desk(main)


LATE: list[dict[str, Any]] = [
    {"kind": h.MSG_SAVED, "attempt": 1, "step": 7},
    {"kind": h.MSG_ENDED, "attempt": 1, "outcome": "saved", "step": 7},
    {"kind": h.MSG_NOTICE, "notice": "terminate", "deadline": 5.0},
    {"kind": h.MSG_OUTPUTS_STORED, "files": 1, "bytes": 2},
    {"kind": h.MSG_SHUTDOWN, "how": "preempted"},
]


def ended(joined: bool = True) -> JobState:
    return fold(fold(fresh(), machine(1)[: 4 if joined else 2]), [InstanceEnded(ME, 5.0, InstanceEnd.PREEMPTED)], 5.0)


def test_facts_of_a_machine_that_has_ended_are_taken_in_and_acknowledged_when_durable() -> None:
    async def main(c: Counter) -> None:
        c.inbox.at_once = False
        beat = {"seq": 3, "kind": h.MSG_HEARTBEAT, "attempt": 9}
        told = [{"seq": 4 + n, **message} for n, message in enumerate(LATE)]
        telling = asyncio.ensure_future(c.desk.report(ME, [beat, *told, {**beat, "seq": 20}], given_for=JOB))
        await c.clock.sleep(1.0)
        assert not telling.done()
        assert [type(e) for e in c.inbox.events] == [
            CheckpointSaved, RanksEnded, NoticeReceived, OutputsStored, ShutdownReported,
        ]  # fmt: skip
        c.inbox.flush()
        assert (await telling)["ack"] == 20
        assert ME not in c.telemetry.observed, "nothing is remembered of a machine that is gone"
        with pytest.raises(BadInput):
            await c.desk.report(ME, [{"seq": 21, "kind": h.MSG_SAVED, "attempt": 1}], given_for=JOB)

    at_desk(main, ended())


def test_signs_of_life_of_a_machine_that_has_ended_are_refused_so_that_its_agent_leaves() -> None:
    async def main(c: Counter) -> None:
        for message in ({"kind": h.MSG_HEARTBEAT}, {"kind": h.MSG_PROGRESS, "attempt": 1, "step": 1}):
            with pytest.raises(NotAuthorized):
                await c.desk.report(ME, [{"seq": 1, **message}], given_for=JOB)
        with pytest.raises(NotAuthorized):
            await c.desk.orders(ME, seen=0, wait_s=1.0)
        with pytest.raises(NotAuthorized):
            await c.desk.report(ME, [saved(1)], given_for=JobId("j-other"))

    at_desk(main, ended())


def test_a_machine_of_which_the_journal_knows_no_join_has_to_join_before_it_tells_anything() -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotAuthorized):
            await c.desk.report(ME, [saved(1)], given_for=JOB)
        assert c.inbox.events == []

    at_desk(main, ended(joined=False))


def test_a_machine_that_ends_while_it_joins_is_not_let_in() -> None:
    async def main(c: Counter) -> None:
        c.inbox.at_once = False
        joining = asyncio.ensure_future(c.desk.join(c.token, body()))
        await asyncio.sleep(0)
        c.inbox.job = ended()
        c.inbox.flush()
        with pytest.raises(NotAuthorized):
            await joining

    at_desk(main)


def test_a_machine_that_is_no_part_of_a_job_is_not_heard() -> None:
    async def main(c: Counter) -> None:
        stranger = InstanceId("i-99")
        with pytest.raises(NotAuthorized):
            await c.desk.report(stranger, [saved(1)])
        with pytest.raises(NotAuthorized):
            await c.desk.orders(stranger, seen=0, wait_s=1.0)

    at_desk(main)


# --- Orders ----------------------------------------------------------------------------------------------------------


def test_a_poll_waits_for_news_and_wakes_at_once() -> None:
    async def main(c: Counter) -> None:
        polling = asyncio.ensure_future(c.desk.orders(ME, seen=0, wait_s=30.0))
        await c.clock.sleep(3.0)
        assert not polling.done()
        c.desk.send(ME, {"phase": "run"})
        began = c.clock.now()
        document = await polling
        assert document is not None
        assert document["phase"] == "run"
        assert c.clock.now() == began
        assert await c.desk.orders(ME, seen=0, wait_s=30.0) == document, "not seen yet: answered at once"

    at_desk(main)


def test_a_poll_without_news_ends_in_time() -> None:
    async def main(c: Counter) -> None:
        c.desk.send(ME, {"phase": "run"})
        document = await c.desk.orders(ME, seen=0, wait_s=30.0)
        assert document is not None
        began = c.clock.now()
        assert await c.desk.orders(ME, seen=document["version"], wait_s=30.0) is None
        assert c.clock.now() == began + 30.0
        assert await c.desk.orders(ME, seen=document["version"], wait_s=-5.0) is None
        assert c.clock.now() == began + 30.0

    at_desk(main)


def test_versions_grow_whatever_the_clock_does_and_over_restarts() -> None:
    async def main(c: Counter) -> None:
        versions = []
        for n in range(100):
            c.desk.send(ME, {"n": n})
            versions.append((await c.desk.orders(ME, seen=0, wait_s=0.0) or {})["version"])
        await c.clock.sleep(1.0)
        new = Counter(c.clock, up())
        new.desk.send(ME, {})
        versions.append((await new.desk.orders(ME, seen=0, wait_s=0.0) or {})["version"])
        assert versions == sorted(set(versions))

    at_desk(main)


def test_a_thousand_polls_of_all_kinds_leak_nothing() -> None:
    async def main(c: Counter) -> None:
        c.desk.send(InstanceId("i-2"), {"phase": "hold"})
        seen = (await c.desk.orders(InstanceId("i-2"), seen=0, wait_s=0.0) or {})["version"]
        mine = [asyncio.ensure_future(c.desk.orders(ME, seen=0, wait_s=60.0)) for _ in range(1000)]
        cancelled = [asyncio.ensure_future(c.desk.orders(ME, seen=0, wait_s=60.0)) for _ in range(50)]
        others = [asyncio.ensure_future(c.desk.orders(InstanceId("i-2"), seen=seen, wait_s=20.0)) for _ in range(9)]
        await c.clock.sleep(1.0)
        for poll in cancelled:
            poll.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        c.desk.send(ME, {"phase": "run"})
        assert [document["phase"] for document in await asyncio.gather(*mine) if document] == ["run"] * 1000
        assert await asyncio.gather(*others) == [None] * 9
        assert not any(c.desk._waiting.values())

    at_desk(main)


def test_a_machine_that_is_forgotten_lets_its_poll_go() -> None:
    async def main(c: Counter) -> None:
        polling = asyncio.ensure_future(c.desk.orders(ME, seen=0, wait_s=60.0))
        await c.clock.sleep(1.0)
        c.desk.forget(ME)
        assert await polling is None
        assert ME not in c.desk._waiting

    at_desk(main)
