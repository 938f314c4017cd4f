from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from everstep.brain.lifecycle import orders, transition
from everstep.brain.lifecycle.orders import outputs_due
from everstep.brain.plan import _changed_orders
from everstep.model import handshake as h
from everstep.model.causes import NoticeKind
from everstep.model.events import (
    CancelRequested,
    ExecRequested,
    LaunchIntended,
    NoticeReceived,
    PauseRequested,
    RanksEnded,
)
from everstep.model.ids import InstanceId, LaunchToken, VolumeId
from everstep.model.job import InstanceState, JobState
from everstep.model.task import CheckpointSpec
from tests.brain.making import fold, fresh, machine, prepared, running

I1, I2 = InstanceId("i-1"), InstanceId("i-2")


def first(state: JobState) -> InstanceState:
    return next(iter(state.instances.values()))


def test_the_document_goes_through_the_wire_and_has_every_key_of_the_handshake() -> None:
    names = {value for key, value in vars(h).items() if key.startswith("ORDERS_")} - {h.ORDERS_VERSION}
    for state in (prepared(2), running(2), transition(running(), PauseRequested("u"), 1.0)):
        document = orders(state, first(state))
        assert set(document) == names
        assert json.loads(json.dumps(document)) == document


def test_a_machine_is_led_from_prepare_to_run_and_release() -> None:
    joined = fold(fresh(2), machine(1)[:3])
    phases = [orders(s, first(s))[h.ORDERS_PHASE] for s in (joined, prepared(2), running(2))]
    assert phases == [h.PHASE_PREPARE, h.PHASE_CHECK, h.PHASE_RUN]
    over = fold(running(), [RanksEnded(I1, 1, "ok")])
    assert orders(over, first(over))[h.ORDERS_PHASE] == h.PHASE_RELEASE


def test_every_node_knows_all_others_and_the_port_that_the_master_holds() -> None:
    state = running(2)
    documents = [orders(state, m) for m in state.instances.values()]
    assert [d[h.ORDERS_NODE_RANK] for d in documents] == [0, 1]
    assert documents[0][h.ORDERS_PEERS] == documents[1][h.ORDERS_PEERS]
    assert documents[1][h.ORDERS_MASTER] == {"address": "10.0.0.1", "port": 9001}
    assert documents[0][h.ORDERS_HAZARD_PER_H] > 0


def test_set_up_is_told_the_whole_gang_once_all_of_it_has_joined() -> None:
    alone = fold(fold(fresh(2), machine(1)[:3]), machine(2)[:2])
    assert orders(alone, first(alone))[h.ORDERS_PEERS] == []
    state = fold(alone, machine(2)[2:3])
    documents = [orders(state, m) for m in state.instances.values()]
    assert [d[h.ORDERS_PHASE] for d in documents] == [h.PHASE_PREPARE] * 2
    assert [[p["address"] for p in d[h.ORDERS_PEERS]] for d in documents] == [["10.0.0.1", "10.0.0.2"]] * 2


def test_set_up_of_a_replacement_is_told_the_survivors_and_itself() -> None:
    notice = NoticeReceived(I1, NoticeKind.TERMINATE, 9.0)
    state = fold(fold(running(2), [notice]), machine(3, slot=0)[:3])
    newcomer = list(state.instances.values())[-1]
    assert [p["address"] for p in orders(state, newcomer)[h.ORDERS_PEERS]] == ["10.0.0.3", "10.0.0.2"]
    # One that is leased for a move stands in its own place, though the machine there works.
    move = [replace(e, move=1) if isinstance(e, LaunchIntended) else e for e in machine(3, slot=0)[:3]]
    moving = fold(running(2), move)
    newcomer = list(moving.instances.values())[-1]
    assert [p["address"] for p in orders(moving, newcomer)[h.ORDERS_PEERS]] == ["10.0.0.3", "10.0.0.2"]


class Looks(dict[LaunchToken, InstanceState]):
    """Counts what is looked up in it."""

    looks = 0

    def __getitem__(self, key: LaunchToken) -> InstanceState:
        type(self).looks += 1
        return super().__getitem__(key)

    def values(self) -> Iterator[InstanceState]:  # type: ignore[override]
        for value in super().values():
            type(self).looks += 1
            yield value


def test_what_an_event_costs_grows_with_the_gang_and_not_with_its_square() -> None:
    looks = {}
    for nodes in (20, 80):
        state = running(nodes)
        after = transition(state, RanksEnded(I1, 1, "saved"), 1.0)
        Looks.looks = 0
        changed = tuple(
            _changed_orders(
                replace(state, instances=Looks(state.instances)), replace(after, instances=Looks(after.instances))
            )
        )
        looks[nodes] = Looks.looks
        assert [c.instance for c in changed] == [m.instance for m in after.instances.values()][: len(changed)]
    assert looks[20] > 20
    assert looks[80] <= 5 * looks[20]


@pytest.mark.parametrize(("event", "save"), [(PauseRequested("u"), True), (CancelRequested("u"), False)])
def test_a_pause_saves_first_and_a_cancel_does_not(event: PauseRequested | CancelRequested, save: bool) -> None:
    state = transition(running(stop_grace_s=20.0), event, 1.0)
    stop = orders(state, first(state))[h.ORDERS_STOP]
    assert (stop["save"], stop["grace_s"]) == (save, 20.0 if save else 0.0)


def test_commands_beside_the_ranks_are_for_the_attempt_in_which_they_were_asked() -> None:
    state = transition(running(), ExecRequested("u", "e1", "ls"), 1.0)
    assert orders(state, first(state))[h.ORDERS_EXEC] == [{"id": "e1", "command": "ls"}]


def test_secrets_go_by_name() -> None:
    state = running(secret_names=("TOKEN",), envs={"A": "1"})
    spec = orders(state, first(state))[h.ORDERS_SPEC]
    assert (spec[h.SPEC_SECRET_NAMES], spec[h.SPEC_ENVS]) == (["TOKEN"], {"A": "1"})


@pytest.mark.parametrize(("mirror", "sent"), [("", ""), ("s3://b/p", "s3://b/p/{job}"), ("/saves/", "/saves/{job}")])
def test_a_mirror_is_of_this_job_alone(mirror: str, sent: str) -> None:
    state = running(checkpoint=CheckpointSpec(mirror=mirror))
    spec = orders(state, first(state))[h.ORDERS_SPEC]
    assert spec[h.SPEC_CHECKPOINT_MIRROR] == sent.format(job=state.id)


def done(nodes: int, *, shared: bool, **fields: object) -> list[bool]:
    """Which nodes bring outputs home after success."""
    state = running(nodes, **fields)
    if not shared:
        unshared = {t: replace(m, shared_folder="", volume=VolumeId(t)) for t, m in state.instances.items()}
        state = replace(state, instances=unshared)
    state = fold(state, [RanksEnded(InstanceId(f"i-{n}"), 1, "ok") for n in range(1, nodes + 1)])
    return [outputs_due(state, m) for m in state.instances.values()]


def test_who_brings_what_home() -> None:
    named = {"outputs": ("out",)}
    assert done(2, shared=True) == [False, False]
    assert done(2, shared=True, **named) == [True, False]
    assert done(2, shared=False, **named) == [True, True]
    assert done(2, shared=False, checkpoint=CheckpointSpec(dir="ckpt")) == [True, True]


def test_nothing_is_brought_home_after_a_cancel_or_while_a_disk_keeps_it() -> None:
    cancelled = transition(running(outputs=("out",)), CancelRequested("u"), 1.0)
    assert not outputs_due(cancelled, first(cancelled))
    state = transition(running(outputs=("out",)), PauseRequested("u"), 1.0)
    assert outputs_due(state, first(state))
    assert not outputs_due(state, replace(first(state), volume=VolumeId("v-1")))
