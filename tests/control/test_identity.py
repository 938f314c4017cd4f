"""Where a provider's machines prove who they are, the desk lets in who does, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from everstep.control.agents import AgentDesk
from everstep.model import handshake as h
from everstep.model.errors import BadInput, NotAuthorized
from everstep.model.events import InstanceBarred, InstanceJoined
from everstep.model.ids import InstanceId
from everstep.model.job import InstanceState
from tests.brain.making import fold
from tests.control.counter import Counter, at_desk, body, up


def test_the_proof_decides_and_that_there_was_none_is_journalled_once() -> None:
    asked: list[tuple[str | None, Mapping[str, str]]] = []

    async def identify(machine: InstanceState, proof: Mapping[str, str]) -> None:
        asked.append((machine.instance, proof))
        if proof.get("document") != "mine":
            raise NotAuthorized("this is the identity of another machine")

    async def main(counter: Counter) -> None:
        desk = AgentDesk(
            key=b"k",
            inbox=counter.inbox,
            clock=counter.clock,
            telemetry=counter.telemetry,
            lease_s=900.0,
            heartbeat_s=1.0,
            identify=identify,
        )
        for proof in ({}, {"document": "another's"}):
            with pytest.raises(NotAuthorized, match="another machine"):
                await desk.join(counter.token, body(**({h.JOIN_IDENTITY: proof} if proof else {})))
            counter.inbox.job = fold(up(), counter.inbox.events)
        nonsense: list[Any] = ["text", [], {"document": 7}, {"document": None}]
        for proof in nonsense[:1] + nonsense[2:]:
            with pytest.raises(BadInput, match="identity"):
                await desk.join(counter.token, body(**{h.JOIN_IDENTITY: proof}))
        assert counter.inbox.events == [InstanceBarred(InstanceId("i-1"), "this is the identity of another machine")]
        with pytest.raises(NotAuthorized, match="unknown join token"):
            await desk.join(counter.token + "0", body(**{h.JOIN_IDENTITY: {"document": "mine"}}))
        assert len(asked) == 2, "who has no token is not asked for more"

        await desk.join(counter.token, body(**{h.JOIN_IDENTITY: {"document": "mine"}}))
        assert [type(e) for e in counter.inbox.events] == [InstanceBarred, InstanceJoined]
        assert asked[-1] == ("i-1", {"document": "mine"})

    at_desk(main)
