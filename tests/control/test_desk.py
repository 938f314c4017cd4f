"""The desk: who is let in, who waits for orders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.control.agents import NotYet
from everstep.model import handshake as h
from everstep.model.errors import BadInput, Conflict, HandshakeMismatch, NotAuthorized
from everstep.model.events import InstanceJoined, LaunchFailed
from everstep.model.ids import InstanceId, JobId, LaunchToken
from tests.brain.making import JOB, fold
from tests.control.counter import ME, T1, Counter, at_desk, body, ended, up

# --- Join ------------------------------------------------------------------------------------------------------------


def test_a_machine_joins_with_its_token_and_gets_a_credential() -> None:
    async def main(c: Counter) -> None:
        c.desk.send(ME, {"phase": "prepare"})
        answer = await c.desk.join(c.token, body())
        assert c.desk.bearer(answer["credential"])[1] == ME
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
            c.desk.bearer(text)
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
            c.desk.bearer(c.token)
        with pytest.raises(NotAuthorized):
            c.desk.bearer(credential.replace("i-1", "i-2"))

    at_desk(main)


def test_a_credential_survives_a_restart_of_the_server() -> None:
    async def main(c: Counter) -> None:
        credential = (await c.desk.join(c.token, body()))["credential"]
        assert Counter(c.clock, up()).desk.bearer(credential)[1] == ME

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
