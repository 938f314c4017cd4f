"""The outbox loses nothing, keeps order, and degrades on a full disk."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent import outbox as module
from everstep.agent.clock import Clock
from everstep.agent.outbox import Outbox
from everstep.model import handshake as hs


def make(path: Path) -> Outbox:
    return Outbox(path / "outbox.jsonl", Clock())


def numbers(outbox: Outbox) -> list[int]:
    return [message["seq"] for message in outbox.batch(10**6)]


def test_order_and_acknowledgement(tmp_path: Path) -> None:
    outbox = make(tmp_path)
    for attempt in (1, 2, 3):
        outbox.put(hs.MSG_LEASE_EXPIRED, attempt=attempt)
    assert [message["attempt"] for message in outbox.batch()] == [1, 2, 3]
    assert numbers(outbox) == [1, 2, 3]
    assert [message["seq"] for message in outbox.batch(2)] == [1, 2]
    outbox.acknowledge(2)
    assert (numbers(outbox), outbox.unacked()) == ([3], 1)
    outbox.acknowledge(99)
    assert numbers(outbox) == [3], "an acknowledgement of what was never sent is not believed"


def test_rewind_sends_again_what_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 5)
    outbox = make(tmp_path)
    for _ in range(20):
        outbox.put(hs.MSG_HEARTBEAT)
    outbox.acknowledge(20)
    outbox.acknowledge(17)
    assert numbers(outbox) == [18, 19, 20]
    outbox.acknowledge(20)
    outbox.acknowledge(3)
    assert numbers(outbox) == [16, 17, 18, 19, 20]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    steps = st.tuples(st.sampled_from(["put", "ack", "restart", "tear"]), st.integers(0, 30))
    return draw(st.lists(steps, max_size=40))


@given(histories())
def test_any_history_keeps_every_unacknowledged_message(tmp_path_factory: Any, history: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("outbox")
    outbox = make(folder)
    expected: dict[int, str] = {}
    last = acked = 0
    for action, value in history:
        if action == "put":
            last += 1
            outbox.put(hs.MSG_NOTICE, notice=str(value))
            expected[last] = str(value)
        elif action == "ack" and acked <= value <= last:
            outbox.acknowledge(value)
            acked = value
        elif action in ("restart", "tear"):
            outbox.close()
            if action == "tear":  # killed in the middle of a write
                with open(folder / "outbox.jsonl", "ab") as file:
                    file.write(b'{"seq": %d, "kin' % (last + 1))
            outbox = make(folder)
        got = {message["seq"]: message["notice"] for message in outbox.batch(10**6)}
        assert got == {seq: text for seq, text in expected.items() if seq > acked}
        assert list(got) == sorted(got)
    outbox.close()


def test_full_disk_degrades_with_one_warning_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    outbox = make(tmp_path)
    outbox.put(hs.MSG_NOTICE, notice="before")
    real_write, real_open = os.write, os.open

    def full(fd: int, data: bytes) -> int:
        if fd > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data)

    def no_new_file(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "open", no_new_file)
    for number in range(3):
        outbox.put(hs.MSG_NOTICE, notice=str(number))
    monkeypatch.undo()
    assert [message["notice"] for message in outbox.batch()] == ["before", "0", "1", "2"]
    assert [record.message for record in caplog.records if "kept in memory" in record.message].__len__() == 1
    outbox.put(hs.MSG_NOTICE, notice="after")
    outbox.close()
    assert [message["notice"] for message in make(tmp_path).batch()] == ["before", "0", "1", "2", "after"]


def test_bound_spares_what_ends_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNACKED_LIMIT", 10)
    outbox = make(tmp_path)
    results = [outbox.put(hs.MSG_SAVED, step=step) for step in range(15)]
    assert results == [True] * 10 + [False] * 5
    assert outbox.dropped == 5
    assert outbox.put(hs.MSG_ENDED, outcome="ok")
    assert numbers(outbox) == list(range(1, 12))


def test_file_is_private_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPACT_BYTES", 2000)
    monkeypatch.setattr(module, "REMEMBERED", 3)
    outbox = make(tmp_path)
    for number in range(200):
        outbox.put(hs.MSG_HEARTBEAT, ranks_alive=number)
        outbox.acknowledge(number + 1)
    path = tmp_path / "outbox.jsonl"
    assert path.stat().st_size < 4000
    assert path.stat().st_mode & 0o077 == 0
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
