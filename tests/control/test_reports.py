"""The desk: what is taken in of what machines tell, and when it is acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep.model import handshake as h
from everstep.model.errors import BadInput, NotAuthorized
from everstep.model.events import (
    AttemptsSkipped,
    CheckpointSaved,
    NoticeReceived,
    OutputsStored,
    ProgressSeen,
    RanksEnded,
    ShutdownReported,
)
from everstep.model.ids import InstanceId, JobId
from tests.brain.making import JOB
from tests.control.counter import ME, Counter, at_desk, body, ended, saved


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


def test_the_last_words_for_one_job_are_not_those_of_the_next_one_on_the_same_machine() -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotAuthorized):
            await c.desk.report(ME, [{"seq": 1, **LATE[0]}], given_for=JobId("j-before"))
        assert c.inbox.events == []

    at_desk(main)


def test_a_machine_of_which_the_journal_knows_no_join_has_to_join_before_it_tells_anything() -> None:
    async def main(c: Counter) -> None:
        with pytest.raises(NotAuthorized):
            await c.desk.report(ME, [saved(1)], given_for=JOB)
        assert c.inbox.events == []

    at_desk(main, ended(joined=False))


def test_a_machine_that_is_no_part_of_a_job_is_not_heard() -> None:
    async def main(c: Counter) -> None:
        stranger = InstanceId("i-99")
        with pytest.raises(NotAuthorized):
            await c.desk.report(stranger, [saved(1)])
        with pytest.raises(NotAuthorized):
            await c.desk.orders(stranger, seen=0, wait_s=1.0)

    at_desk(main)
