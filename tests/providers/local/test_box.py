"""The rules of the box, without processes: time is an argument."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import (
    BadInput,
    BadRequest,
    NoCapacity,
    PriceAboveMax,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unreachable,
)
from everstep.model.ids import DeploymentId, JobId, LaunchToken
from everstep.model.offers import Market, Offer, Pool
from everstep.ports import Launched, LaunchRequest, OfferQuery, VolumeSpec
from everstep.providers.local.box import Box
from everstep.providers.local.config import parse_config
from everstep.providers.local.daemon import begin_market
from everstep.providers.local.metadata import answer
from everstep.providers.local.state import InstanceRecord, State
from everstep.providers.local.supply import SupplyBook
from tests.providers.local.records import instance

T0 = 1_000_000.0
BASE = """
trace_hour_s: 3600
notice_s: 10
machines:
  m: {prices: {on_demand: 3, spot: 1}}
  traced: {prices: {on_demand: 3}}
zones:
  a: {region: r, machines: [m], spot: {capacity: 3}, on_demand: {capacity: 1}}
  t: {region: r, machines: [traced], spot: {trace: t.json}}
"""
TRACE = {"metadata": {"gap_seconds": 100}, "data": [3, 1, 2, 0], "prices": [1.0, 2.0, 5.0, 1.0]}

MakeBox = Callable[..., Box]


class NoProcesses:
    """Machines that exist on paper."""

    def start(self, record: InstanceRecord, user_data: dict[str, str]) -> InstanceRecord:
        if "FAIL" in user_data:
            raise OSError("no more processes")
        return replace(record, pid=1)

    def report(self, record: InstanceRecord, line: str) -> None:
        pass


@pytest.fixture(autouse=True)
def _closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever opens the file of a box closes it; Python 3.13 complains of those who leave that to the collector."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def kept(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", kept)
    yield
    for connection in opened:
        connection.close()


@pytest.fixture
def make_box(tmp_path: Path) -> MakeBox:
    return lambda extra="", folder="box": open_box(tmp_path / folder, extra)


def open_box(home: Path, extra: str = "", *, now: float = T0) -> Box:
    home.mkdir(exist_ok=True)
    (home / "t.json").write_text(json.dumps(TRACE))
    config = parse_config(BASE + extra, where="box.yaml", folder=home)
    state = State(home / "state.sqlite")
    begin_market(state, config, now)
    book = SupplyBook(config, provider="local", workstation=None, began_at=state.facts.market_began_at)
    return Box(state, book, NoProcesses(), home)


def offer(box: Box, zone: str = "a", market: Market = Market.SPOT, now: float = T0) -> Offer:
    (found,) = [o for o in box.offers(OfferQuery(), now) if o.zone == zone and o.market == market]
    return found


def request(box: Box, number: int, wanted: Offer | None = None, **changes: object) -> LaunchRequest:
    wanted = wanted or offer(box)
    plain = LaunchRequest(LaunchToken(f"t{number}"), DeploymentId("d"), JobId("j"), number, wanted, None, {})
    return replace(plain, **changes)  # type: ignore[arg-type]


def launch(box: Box, *requests: LaunchRequest, now: float = T0) -> list[Launched]:
    answers = box.launch(requests, all_or_nothing=True, now=now)
    return [a for a in answers if isinstance(a, Launched)]


def alive(box: Box) -> list[str]:
    return [r.id for r in box.state.instances.values() if r.alive]


# --- the market ------------------------------------------------------------------------------------------------------


def test_offers_follow_the_trace_and_spot_never_costs_more_than_on_demand(make_box: MakeBox) -> None:
    box = make_box()
    seen = [offer(box, "t", now=T0 + s) for s in (0, 99.9, 100, 200, 300, 9999)]
    assert [o.available for o in seen] == [3, 3, 1, 2, 0, 0]
    assert [o.price_usd_per_h for o in seen] == [1, 1, 2, 3, 1, 1]
    assert seen[2].price_as_of == T0 + 100


@pytest.mark.parametrize(("order", "stays"), [("newest", 0), ("oldest", 2)])
def test_the_surplus_is_warned_then_due_in_the_configured_order(make_box: MakeBox, order: str, stays: int) -> None:
    box = make_box(f"preempt_order: {order}\n")
    machines = [launch(box, request(box, n, offer(box, "t")), now=T0 + n)[0].instance for n in range(3)]
    assert box.advance(T0 + 99) == []
    assert box.next_wake(T0 + 99) == pytest.approx(T0 + 100)
    assert box.advance(T0 + 100) == []
    warned = {n.instance: (n.kind, n.deadline) for n in box.notices("d")}
    assert warned == {m: (NoticeKind.TERMINATE, T0 + 110) for i, m in enumerate(machines) if i != stays}
    assert box.next_wake(T0 + 100) == pytest.approx(T0 + 110)
    due = box.advance(T0 + 110)
    assert {(d.record.id, d.end) for d in due} == {(m, InstanceEnd.PREEMPTED) for m in warned}
    for d in due:
        box.ended(d.record.id, d.end, T0 + 111)
    assert alive(box) == [machines[stays]]


def test_what_is_doomed_makes_room(make_box: MakeBox) -> None:
    box = make_box()
    launch(box, *(request(box, n, offer(box, "t")) for n in range(3)))
    box.advance(T0 + 100)
    assert offer(box, "t", now=T0 + 100).available == 0
    assert offer(box, "t", now=T0 + 200).available == 1


def test_the_price_is_fixed_at_launch(make_box: MakeBox) -> None:
    box = make_box()
    (machine,) = launch(box, request(box, 1, offer(box, "t")))
    assert machine.price_usd_per_h == 1.0
    (found,) = box.resources("d", T0 + 150)
    assert found.price_usd_per_h == 1.0
    assert offer(box, "t", now=T0 + 150).price_usd_per_h == 2.0


def test_the_clock_of_the_market_survives_a_restart_and_starts_anew_with_another_configuration(tmp_path: Path) -> None:
    open_box(tmp_path / "b").state.close()
    assert open_box(tmp_path / "b", now=T0 + 150).book.market_s(T0 + 150) == 150
    assert open_box(tmp_path / "b", "boot_s: 1\n", now=T0 + 170).book.market_s(T0 + 170) == 0


def test_the_market_may_wait_for_the_first_launch(tmp_path: Path) -> None:
    box = open_box(tmp_path / "b", "trace_start: first_launch\n")
    assert offer(box, "t", now=T0 + 5000).available == 3
    launch(box, request(box, 1, offer(box, "t")), now=T0 + 5000)
    assert box.book.market_s(T0 + 5100) == 100
    box.state.close()
    assert open_box(tmp_path / "b", "trace_start: first_launch\n").book.began_at == T0 + 5000


def test_history_has_one_point_per_change(make_box: MakeBox) -> None:
    box = make_box()
    pool = Pool("local", "t", "traced", Market.SPOT)
    points = box.book.history([pool, replace(pool, provider="else")], T0 + 50, T0 + 250)
    assert [(p.at - T0, p.available, p.price_usd_per_h) for p in points] == [(50, 3, 1), (100, 1, 2), (200, 2, 3)]
    assert box.book.history([pool], T0 - 100, T0 - 50) == []


def test_maximum_life_is_announced_and_is_no_preemption(make_box: MakeBox) -> None:
    box = make_box("max_life_s: 100\n")
    (machine,) = launch(box, request(box, 1))
    on_demand = launch(box, request(box, 2, offer(box, market=Market.ON_DEMAND)))[0].instance
    assert (offer(box).max_life_s, offer(box, market=Market.ON_DEMAND).max_life_s) == (100, None)
    box.advance(T0 + 90)
    assert [(n.kind, n.deadline) for n in box.notices("d")] == [(NoticeKind.MAX_LIFE, T0 + 100)]
    assert [(d.record.id, d.end) for d in box.advance(T0 + 100)] == [(machine.instance, InstanceEnd.MAX_LIFE)]
    assert box.state.instances[on_demand].notice is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 4), st.booleans()), max_size=12))
def test_never_more_machines_than_the_market_has(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, int, bool]]
) -> None:
    box = open_box(tmp_path_factory.mktemp("box"))
    now, number = T0, 0
    for wait_s, launches, together in moves:
        now += wait_s
        for due in box.advance(now):
            box.ended(due.record.id, due.end, now)
        room = offer(box, "t", now=now).available or 0
        wanted = [request(box, number + n, offer(box, "t", now=now)) for n in range(launches)]
        number += launches
        try:
            answers = box.launch(wanted, all_or_nothing=together, now=now)
            started = sum(isinstance(a, Launched) for a in answers)
        except NoCapacity:
            started = 0
        assert started == (min(room, launches) if not together or launches <= room else 0)
        holding = [r for r in box.state.instances.values() if r.alive and not r.doomed]
        assert len(holding) <= TRACE["data"][min(int((now - T0) // 100), 3)]  # type: ignore[index]
        overdue = [r for r in box.state.instances.values() if r.alive and r.deadline is not None and r.deadline <= now]
        assert not overdue
    box.state.close()


# --- errors ----------------------------------------------------------------------------------------------------------


def test_every_typed_error_can_be_ordered_so_many_times(make_box: MakeBox) -> None:
    box = make_box("fail: [{zone: a, market: spot, error: throttled, times: 2, retry_after_s: 7}]\n")
    for _ in range(2):
        with pytest.raises(Throttled) as caught:
            launch(box, request(box, 1))
        assert caught.value.retry_after_s == 7
    launch(box, request(box, 3, offer(box, "t")), request(box, 1))
    assert len(alive(box)) == 2


def test_ordered_failures_are_not_forgotten_by_a_restart(tmp_path: Path) -> None:
    extra = "fail: [{error: no_capacity, times: 2}]\n"
    box = open_box(tmp_path / "b", extra)
    with pytest.raises(NoCapacity):
        launch(box, request(box, 1))
    box.state.close()
    box = open_box(tmp_path / "b", extra)
    with pytest.raises(NoCapacity):
        launch(box, request(box, 1))
    launch(box, request(box, 1))


@pytest.mark.parametrize(
    ("extra", "changes", "error", "text"),
    [
        ("quota: 0\n", {}, QuotaExceeded, "the account holds 0 machines, its quota is 0"),
        ("", {"max_price_usd_per_h": 0.5}, PriceAboveMax, "the spot price in a is 1.0 USD/h, above 0.5"),
        ("", {"token": LaunchToken("x" * 65)}, BadRequest, "a token has 1 to 64 ASCII characters"),
        ("", {"token": LaunchToken("")}, BadRequest, "a token has 1 to 64 ASCII characters"),
        ("", {"volume": "vol-none"}, BadRequest, "there is no disk vol-none"),
    ],
)
def test_refusals(
    make_box: MakeBox, extra: str, changes: dict[str, object], error: type[ProviderError], text: str
) -> None:
    box = make_box(extra)
    with pytest.raises(error, match=text):
        launch(box, request(box, 1, **changes))
    assert box.state.instances == {}


def test_a_token_twice_in_one_call_is_one_machine(make_box: MakeBox) -> None:
    box = make_box()
    first, second = launch(box, request(box, 1), request(box, 1))
    assert first == second
    assert len(alive(box)) == 1


def test_a_machine_whose_process_cannot_start_failed_to_boot(make_box: MakeBox) -> None:
    box = make_box()
    (launched,) = launch(box, request(box, 1, user_data={"FAIL": "1"}))
    (found,) = box.resources("d", T0)
    assert (found.id, found.alive, found.end) == (launched.instance, False, InstanceEnd.BOOT_FAILED)


# --- disks and state ------------------------------------------------------------------------------------------------


def test_a_disk_of_another_size_or_zone_is_refused(make_box: MakeBox) -> None:
    box = make_box()
    spec = VolumeSpec(DeploymentId("d"), JobId("j"), "v", "a", 8.0)
    volume = box.ensure_volume(spec, T0)
    for change, text in [
        ({"size_gib": 9.0}, "with 8.0 GiB"),
        ({"zone": "x"}, "no zone x"),
        ({"size_gib": 0.0}, "0.0 GiB"),
    ]:
        with pytest.raises(BadRequest, match=text):
            box.ensure_volume(replace(spec, **change), T0)  # type: ignore[arg-type]
    assert box.ensure_volume(replace(spec, zone="t"), T0) != volume
    with pytest.raises(BadRequest, match="attached to"):
        launch(box, request(box, 1, volume=volume), request(box, 2, volume=volume))
    assert box.state.instances == {}


def test_a_full_disk_is_a_clear_error_and_changes_nothing(make_box: MakeBox) -> None:
    box = make_box()
    launch(box, request(box, 1))
    pages = box.state._db.execute("PRAGMA page_count").fetchone()[0]
    box.state._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(
        Unreachable, match=r"cannot write its state to .*state\.sqlite: database or disk is full; nothing"
    ):
        launch(box, *(request(box, n, offer(box, market=Market.SPOT), job="j" * 9000) for n in (2, 3)))
    assert len(alive(box)) == 1
    box.state._db.execute(f"PRAGMA max_page_count={pages + 1000}")
    launch(box, request(box, 2))
    assert len(alive(box)) == 2


def test_what_happened_while_the_disk_was_full_is_written_later(make_box: MakeBox) -> None:
    box = make_box()
    (first,), (second,) = launch(box, request(box, 1)), launch(box, request(box, 2))
    box.state._db.execute("PRAGMA query_only=ON")
    box.ended(first.instance, InstanceEnd.LOST, T0 + 5)
    assert alive(box) == [second.instance]
    box.state._db.execute("PRAGMA query_only=OFF")
    box.terminate([second.instance], T0 + 6)
    again = State(box.state.path)
    assert again.instances[first.instance].end is InstanceEnd.LOST
    assert again.instances[second.instance].stop_by == T0 + 11


@pytest.mark.parametrize("damage", [b"this is no database" * 100, b""])
def test_a_damaged_state_file_is_named_with_the_way_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(damage)
    if not damage:
        assert State(path).instances == {}  # an empty file is what SQLite starts from
        return
    with pytest.raises(BadInput) as caught:
        State(path)
    assert str(caught.value).startswith(f"{path}: is damaged (file is not a database); move the file away")
    assert f"sweep --home {tmp_path}" in str(caught.value)


def test_a_damaged_row_and_a_newer_schema_are_named(make_box: MakeBox) -> None:
    box = make_box()
    launch(box, request(box, 1))
    box.state._db.execute("UPDATE thing SET body = '{' WHERE kind = 'instance'")
    with pytest.raises(BadInput, match="is damaged"):
        State(box.state.path)
    box.state._db.execute("PRAGMA user_version=99")
    with pytest.raises(BadInput, match=r"was written by a newer everstep \(version 99, this one knows 1\)"):
        State(box.state.path)


# --- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_is_shaped_like_ec2s() -> None:
    calm = instance(id="i-calm")
    warned = instance(id="i-warned", notice=NoticeKind.TERMINATE, deadline=1_700_000_000.25)
    shaky = instance(id="i-shaky", notice=NoticeKind.REBALANCE, noticed_at=1_700_000_000.0)
    gone = instance(id="i-gone", ended_at=1.0)
    records = {r.id: r for r in (calm, warned, shaky, gone)}

    def get(path: str) -> tuple[int, str]:
        return answer(records, "GET", path)

    assert get("/i-calm/latest/meta-data/instance-id") == (200, "i-calm")
    assert get("/i-calm/latest/meta-data/spot/instance-action")[0] == 404
    assert get("/i-calm/latest/meta-data/events/recommendations/rebalance")[0] == 404
    status, body = get("/i-warned/latest/meta-data/spot/instance-action")
    assert status == 200
    assert json.loads(body) == {"action": "terminate", "time": "2023-11-14T22:13:20.250Z", "kind": "terminate"}
    status, body = get("/i-shaky/latest/meta-data/events/recommendations/rebalance")
    assert json.loads(body) == {"noticeTime": "2023-11-14T22:13:20.000Z"}
    assert get("/i-gone/latest/meta-data/instance-id")[0] == 404
    assert get("/i-nobody/latest/meta-data/instance-id")[0] == 404
    assert get("/")[0] == 404
    assert answer(records, "POST", "/i-calm/latest/meta-data/instance-id")[0] == 405
