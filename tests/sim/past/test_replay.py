"""Replays: the market as far as a journal saw it, what nobody saw, and the same jobs under other policies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.control.kernel import Line
from everstep.control.sights import Sight
from everstep.model.causes import InstanceEnd
from everstep.model.errors import BadInput
from everstep.model.events import (
    Candidate,
    Decided,
    InstanceEnded,
    LaunchFailed,
    LaunchIntended,
    LaunchSucceeded,
    encode,
)
from everstep.model.gang import Slot
from everstep.model.ids import MARKET_STREAM, InstanceId, JobId, LaunchToken, job_stream
from everstep.model.offers import Market, Offer
from everstep.ports import Append, NewRecord
from everstep.sim.past.journals import read_journal
from everstep.sim.past.replay import read_past, recorded, replay
from everstep.sim.past.sightings import VALID_S, rebuild, watched
from everstep.sim.realistic import DEPLOYMENT, Entry, Played, play
from everstep.store.sqlite.store import SqliteStore
from tests.sim.world.made import START, V100, entry, lot, world

JOB = JobId("j-1")
HOUR = 3600.0


def offer(zone: str, *, available: int | None = None, price: float = 1.0) -> Offer:
    return Offer("cloud", "r", zone, V100, Market.SPOT, price, 3.0, START, "", available=available)


def intended(at: float, number: int, wanted: Offer) -> Line:
    token = LaunchToken(f"t{number}")
    return Line(JOB, LaunchIntended(token, number, Slot(0, 0), wanted, None), START + at)


def given(at: float, number: int) -> Line:
    event = LaunchSucceeded(LaunchToken(f"t{number}"), InstanceId(f"i-{number}"), START + at, 1.0)
    return Line(JOB, event, START + at)


def ended(at: float, number: int, end: InstanceEnd = InstanceEnd.PREEMPTED) -> Line:
    return Line(JOB, InstanceEnded(InstanceId(f"i-{number}"), START + at, end), START + at)


def test_what_nobody_saw_is_counted_and_what_was_seen_last_holds() -> None:
    lines = [
        intended(0.0, 1, offer("a")),
        given(10.0, 1),
        ended(2 * HOUR, 1),
        intended(2 * HOUR, 2, offer("b", price=1.5)),
        Line(JOB, LaunchFailed(LaunchToken("t2"), "no_capacity", ""), START + 2 * HOUR + 5.0),
    ]
    market = rebuild(watched(lines, START + 5 * HOUR), START, START + 5 * HOUR, enough=7)
    a, b = market.lots
    assert a.spot is not None
    assert b.spot is not None
    assert [a.spot.count(START + at) for at in (0.0, HOUR, 2 * HOUR, 9 * HOUR)] == [7, 7, 0, 0]
    assert [b.spot.count(START + at) for at in (0.0, 3 * HOUR)] == [0, 0]
    # Pool a: not its first ten seconds; then held for two hours, and half an hour more after it was taken.
    seen_h = (2 * HOUR + VALID_S - 10.0 + VALID_S) / HOUR
    assert market.pool_h == pytest.approx(10.0)
    assert market.unseen_h == pytest.approx(10.0 - seen_h)
    assert (a.on_demand_limit, b.on_demand_limit) == (0, 0), "nobody saw on-demand there"


def test_a_provider_that_counts_tells_of_pools_that_were_not_taken() -> None:
    def weighed(at: float, **verdicts: str) -> Line:
        candidates = tuple(Candidate(f"cloud/{zone}/p3.2xlarge/spot", 1.2, 1.2, v) for zone, v in verdicts.items())
        steady = Candidate("cloud/a/p3.2xlarge/on_demand", 3.0, 3.0, "possible")
        return Line(JOB, Decided(candidates=(*candidates, steady)), START + at)

    lines = [
        weighed(0.0, a="chosen", b="no capacity", c="spot is not allowed now"),
        intended(0.0, 1, offer("a", available=4)),
        given(2.0, 1),
        weighed(HOUR, a="possible", b="possible"),
    ]
    market = rebuild(watched(lines, START + 2 * HOUR), START, START + 2 * HOUR, enough=9)
    by_zone = {one.zone: one for one in market.lots}
    a, b = by_zone["a"].spot, by_zone["b"].spot
    assert a is not None
    assert b is not None
    assert a.count(START + 10.0) == 4
    assert [b.count(START + at) for at in (0.0, HOUR)] == [0, 1]
    assert by_zone["a"].on_demand_limit is None
    assert market.left_out == ("c p3.2xlarge",)


def test_a_machine_that_is_taken_is_a_loss_though_the_pool_has_room_again_at_once() -> None:
    def room(at: float) -> Line:
        return Line(JOB, Decided(candidates=(Candidate("cloud/a/p3.2xlarge/spot", 1.0, 1.0, "possible"),)), START + at)

    lines = [
        intended(0.0, 1, offer("a", available=2)),
        given(2.0, 1),
        ended(HOUR, 1),
        room(HOUR + 1.0),
        room(HOUR + 61.0),
    ]
    (a,) = rebuild(watched(lines, START + 2 * HOUR), START, START + 2 * HOUR, enough=9).lots
    assert a.spot is not None
    assert [a.spot.count(START + at) for at in (HOUR - 1, HOUR + 30, HOUR + 61)] == [2, 0, 1]


def journal_of(played: Played, path: Path) -> Path:
    rows = []
    for line in played.journal:
        kind, schema, body = encode(line.event)
        rows.append(json.dumps({"at": line.at, "job": line.job, "kind": kind, "schema": schema, "body": body}))
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def jobs() -> list[Entry]:
    return [entry(3.0, job=JobId(f"j-{n}"), at=1800.0 * n, deadline_s=8 * HOUR) for n in range(4)]


LOTS = (lot("a", ([2] * 20 + [0] * 10) * 4), lot("b", ([1] * 25 + [0] * 5) * 4, price=1.3))


def free(source: str, target: str) -> float:
    return 0.0


def test_the_same_policy_on_the_rebuilt_market_costs_about_the_same(tmp_path: Path) -> None:
    past = read_past(journal_of(play(world(*LOTS), jobs()), tmp_path / "j.jsonl"))
    was, again = recorded(past, free), replay(past, "", free)
    assert len(past.states) == 4
    assert was.preemptions > 0
    assert again.unfinished == 0
    assert again.cost_usd == pytest.approx(was.cost_usd, rel=0.1)
    assert again.mean_finish_h == pytest.approx(was.mean_finish_h, rel=0.1)


def test_another_policy_costs_what_it_costs_in_the_true_world(tmp_path: Path) -> None:
    past = read_past(journal_of(play(world(*LOTS), jobs()), tmp_path / "j.jsonl"))
    steady = [replace(one, task=replace(one.task, policy="on_demand")) for one in jobs()]
    truth = sum(c["cost_usd"] for c in play(world(*LOTS), steady).cloud.charges(DEPLOYMENT))
    replayed = replay(past, "on_demand", free)
    assert replayed.cost_usd == pytest.approx(truth, rel=0.02)
    assert replayed.cost_usd > 1.5 * recorded(past, free).cost_usd


def test_a_job_that_did_not_succeed_is_left_out_with_the_reason(tmp_path: Path) -> None:
    played = play(replace(world(*LOTS), until=START + 3 * HOUR), jobs())
    past = read_past(journal_of(played, tmp_path / "j.jsonl"))
    assert past.left_out
    assert set(past.left_out) | set(past.states) == {one.job for one in jobs()}
    assert all(text.startswith("it was still ") for text in past.left_out.values())


def test_a_journal_of_a_server_reads_as_the_same_lines(tmp_path: Path) -> None:
    played = play(world(*LOTS), jobs()[:1])
    text = journal_of(played, tmp_path / "j.jsonl")

    async def store() -> None:
        journal = SqliteStore(tmp_path / "journal.db")
        for line in played.journal:
            kind, schema, body = encode(line.event)
            await journal.append([Append(job_stream(line.job), (NewRecord(line.at, kind, schema, body),))], None)
        await journal.close()

    asyncio.run(store())
    assert read_journal(tmp_path / "journal.db").lines == read_journal(text).lines == played.journal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the journal holds no job"),
        ("no", ":1: is not JSON"),
        ("[1]", ":1: is no line of a journal: expected at, job, kind, body"),
        ('{"at": 1, "job": "j", "kind": "Danced", "body": {}}', ":1: kind: this version knows no event 'Danced'"),
        ('{"at": 1, "job": "j", "kind": "JobSubmitted", "body": {}}', ":1: is no JobSubmitted"),
        ('{"at": 1, "job": "j", "kind": "KeepExpired", "body": {}}', "KeepExpired of j does not fit"),
        ("[" * 100_000, ":1: is not usable JSON: a number or a nesting is too long"),
        ("1" * 5_000, ":1: is not usable JSON: a number or a nesting is too long"),
        ('{"at": 1, "job": "j", "kind": [1], "body": {}}', ":1: kind: this version knows no event [1]"),
        ('{"at": NaN, "job": "j", "kind": "KeepExpired", "body": {}}', "nan is no time in UTC seconds"),
        ('{"at": 1e999, "job": "j", "kind": "KeepExpired", "body": {}}', "inf is no time in UTC seconds"),
        ('{"at": -1, "job": "j", "kind": "KeepExpired", "body": {}}', "-1 is no time in UTC seconds"),
        ("SQLite format 3\0 and then nothing of the kind", "the journal is damaged"),
    ],
)
def test_what_is_no_journal_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_past(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("Decided", "inputs", None), ("CheckpointSaved", "step", "x")],
)
def test_a_value_of_another_type_is_one_line(tmp_path: Path, kind: str, key: str, value: object) -> None:
    path = journal_of(play(world(*LOTS), jobs()[:1]), tmp_path / "j.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["kind"] == kind:
            row["body"][key] = value
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(BadInput, match=kind) as caught:
        read_past(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: no such file"):
        read_past(tmp_path / "journal.db")
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_the_share_that_nobody_observed(tmp_path: Path, capsys: Any) -> None:
    from everstep.cli.main import execute

    path = journal_of(play(world(*LOTS), jobs()[:2]), tmp_path / "j.jsonl")
    assert execute(["sim", "replay", str(path), "--policy", "on_demand", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in told["policies"]] == ["(recorded)", "(each its own)", "on_demand"]
    assert 0 < told["unseen_share"] < 1
    assert execute(["sim", "replay", str(path), "--policy", "on_demand"]) == 0
    shown = capsys.readouterr().out
    assert f"{100 * told['unseen_share']:.0f} % observed by nobody" in shown
    assert "filled with what was seen last" in shown
    assert execute(["sim", "replay", str(path), "--policy", "ondemand"]) == 2
    assert "there is no policy 'ondemand'; did you mean 'on_demand'?" in capsys.readouterr().err


def sighted(at: float, looked_from: float, **counts: int) -> Sight:
    pools = [[f"cloud/{zone}/p3.2xlarge/spot", 1.0 + at / (10 * HOUR), count] for zone, count in counts.items()]
    return Sight("PoolsSeen", {"full": False, "looked": {"cloud": START + looked_from}, "pools": pools}, START + at)


def test_the_market_stream_tells_of_pools_that_no_job_of_the_journal_was_in() -> None:
    lines = [
        intended(0.0, 1, offer("a", available=5)),
        given(10.0, 1),
        ended(2 * HOUR, 1),
        intended(5 * HOUR, 2, offer("a", available=5)),
    ]
    sights = [
        sighted(0.0, 0.0, a=4, b=0),
        sighted(HOUR, 0.0, b=3),
        # The server was away from 1 h to 3 h; b was dry again by then.
        sighted(3 * HOUR, 3 * HOUR, a=4, b=0),
        sighted(4 * HOUR, 3 * HOUR),
        sighted(9 * HOUR, 4 * HOUR, a=0, b=9),
    ]
    until = START + 5 * HOUR
    alone = rebuild(watched(lines, until), START, until, enough=9)
    market = rebuild(watched(lines, until, sights), START, until, enough=9)
    by_zone = {one.zone: one.spot for one in market.lots}
    assert set(by_zone) == {"a", "b"}
    b = by_zone["b"]
    assert b is not None
    assert [b.count(START + at * HOUR) for at in (0.5, 1.5, 2.9, 3.0, 4.9)] == [0, 3, 3, 0, 0]
    assert b.price(START + 3.5 * HOUR) == pytest.approx(1.3)
    assert {one.zone for one in alone.lots} == {"a"}
    # b: the looks from 0 to 1 h and from 3 to 4 h, and half an hour after each that told of it.
    assert market.pool_h == pytest.approx(10.0)
    seen_a = 2.0 + 0.5 + 1.0
    seen_b = 1.0 + 0.5 + 1.0
    assert market.unseen_h == pytest.approx(10.0 - seen_a - seen_b)


@pytest.mark.parametrize("body", [{}, {"pools": [[1]], "looked": {}}, {"pools": [["cloud/a/p3.2xlarge/spot", "x", 1]]}])
def test_a_sight_of_another_version_is_passed_over(body: dict[str, Any]) -> None:
    lines = [intended(0.0, 1, offer("a")), given(10.0, 1), ended(HOUR, 1)]
    odd = [Sight("PoolsSeen", body, START + 60.0), Sight("PoolsDreamt", body, START + 61.0)]
    until = START + 2 * HOUR
    assert watched(lines, until, odd)[offer("a").pool].sightings == watched(lines, until)[offer("a").pool].sightings


def test_the_market_stream_is_read_from_a_database_and_from_lines(tmp_path: Path) -> None:
    played = play(world(lot("a", [2] * 60)), [entry(0.2)])
    text = journal_of(played, tmp_path / "journal.jsonl")
    sight = sighted(5.0, 0.0, a=1)
    row = {"at": sight.at, "stream": "market", "kind": sight.kind, "body": sight.body}
    with text.open("a") as file:
        file.write("\n" + json.dumps(row))

    async def keep() -> None:
        store = SqliteStore(tmp_path / "journal.db")
        for line in played.journal:
            kind, schema, body = encode(line.event)
            await store.append([Append(job_stream(line.job), (NewRecord(line.at, kind, schema, body),))], None)
        await store.append([Append(MARKET_STREAM, (NewRecord(sight.at, sight.kind, 1, sight.body),))], None)
        await store.close()

    asyncio.run(keep())
    assert read_journal(text) == read_journal(tmp_path / "journal.db") == (played.journal, [sight])
    text.write_text(json.dumps({"stream": "market", "kind": "PoolsSeen"}) + "\n")
    with pytest.raises(BadInput, match="is no line of the market stream"):
        read_journal(text)
