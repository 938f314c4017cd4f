"""Logs of killed and resumed scripts as one text: byte for byte that of a run that nobody interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model import handshake as hs
from everstep.server.marks import Marked, Shown, find, join
from everstep.train.script.output import marks as written
from everstep.train.script.output.marks import Marks


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


@dataclass
class Script:
    """What prints and is saved; each start of it leaves a log of its own, as an attempt does."""

    folder: Path
    name: str = "train-1"
    printed: bytes = b""
    known: list[int] = field(default_factory=list)
    saved: tuple[bytes, list[int]] | None = None

    def start(self, write: int, env: dict[str, str], *, afresh: bool = False) -> Marks:
        marks = Marks(self.name, write, env)
        if self.saved is None or afresh:
            self.printed = b""
            marks.begin()
            return marks
        self.printed = self.saved[0]
        log = self.folder / f"{self.name}.log"
        log.write_bytes(self.printed)
        with log.open("rb") as file:
            marks.on(len(self.printed), self.saved[1], file.fileno())
        return marks

    def print(self, write: int, text: bytes) -> None:
        self.printed += text
        os.write(write, text)

    def save(self, marks: Marks) -> None:
        marks.at(len(self.printed))
        self.saved = self.printed, marks.known


def told(write: int, rank: int = 0, label: int = 0) -> dict[str, str]:
    where = os.fstat(write)
    return {hs.ENV_LOG_PIPE: f"{label}:{where.st_dev}:{where.st_ino}", "RANK": str(rank), "LOCAL_RANK": str(rank)}


def attempt(script: Script, before: bytes, does: Sequence[bytes | None], after: bytes | None) -> bytes:
    """The log of a start: what the shell said, what the script did (None: a save), and what came behind its end."""
    with pipe() as (read, write):
        os.write(write, before)
        marks = script.start(write, told(write))
        for text in does:
            if text is None:
                script.save(marks)
            else:
                script.print(write, text)
        os.write(write, after or b"")
        return os.read(read, 1 << 20)


def shown(logs: Sequence[bytes], failed: Sequence[int] = ()) -> tuple[bytes, dict[int, Shown]]:
    marked = []
    for number, log in enumerate(logs):
        found, _ = find(log, 0)
        marked.append(Marked(number, found, len(log), number in failed))
    texts = dict(join(marked))
    return b"".join(logs[key][a:b] for key in sorted(texts) for a, b in texts[key].stretches), texts


@pytest.fixture(autouse=True)
def _every_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_EVERY_S", 0.0)


TEXT = st.binary(min_size=1, max_size=9).map(lambda data: data.replace(b"\x1b", b"e"))


@given(
    lives=st.lists(st.tuples(st.lists(st.none() | st.integers(1, 3), max_size=6), st.integers(0, 60)), max_size=4),
    chunks=st.lists(TEXT, min_size=1, max_size=12),
)
def test_the_text_is_that_of_a_run_without_losses_whatever_was_lost_with_the_machines(
    lives: list[tuple[list[int | None], int]], chunks: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = Script(tmp_path_factory.mktemp("log"))
    done, logs = 0, []
    saved_at = 0
    for number, (life, lost) in enumerate(lives):
        does: list[bytes | None] = []
        done = saved_at
        for act in life:
            does += [None] if act is None else chunks[done : done + act]
            done += 0 if act is None else len(chunks[done : done + act])
            saved_at = done if act is None else saved_at
        log = attempt(script, b"machine %d\n" % number, does, None)
        # The script's first mark is there; what comes behind may be lost with the machine.
        first = log.index(hs.LOG_MARK_END) + len(hs.LOG_MARK_END)
        logs.append(log[: max(first, len(log) - lost)] if number == 0 else log[: max(0, len(log) - lost)])
    logs.append(attempt(script, b"the last\n", list(chunks[saved_at:]), b"done\n"))
    text, texts = shown(logs)
    assert text == (b"machine 0\n" if lives else b"the last\n") + b"".join(chunks) + b"done\n"
    assert not any(one.note for one in texts.values())


def test_a_script_that_was_over_stays_when_a_second_one_is_interrupted(tmp_path: Path) -> None:
    one, two = Script(tmp_path, "one"), Script(tmp_path, "two")
    first = attempt(one, b"hello\n", [b"a", None, b"b"], b"between\n") + attempt(two, b"", [b"c", None, b"d"], None)
    # The shell starts both again: the first goes on at its last save.
    second = attempt(one, b"hello again\n", [b"b"], b"between\n") + attempt(two, b"", [b"d", b"e"], b"end\n")
    text, texts = shown([first, second])
    assert text == b"hello\nabbetween\ncdeend\n"
    assert (texts[0].cut, texts[1].continues) == (True, True)


def test_a_script_without_a_save_begins_anew(tmp_path: Path) -> None:
    script = Script(tmp_path)
    logs = [attempt(script, b"1\n", [b"a", b"b"], None), attempt(script, b"2\n", [b"a", b"b", b"c"], b".")]
    assert shown(logs)[0] == b"1\nabc."


def test_what_a_failure_left_stays(tmp_path: Path) -> None:
    script = Script(tmp_path)
    logs = [attempt(script, b"", [b"a\n", None, b"Traceback\n"], None), attempt(script, b"again\n", [b"b\n"], None)]
    text, texts = shown(logs, failed=[0])
    assert text == b"a\nTraceback\nagain\nb\n"
    assert not any(one.note for one in texts.values())


def test_a_gap_that_cannot_be_closed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_REPEATED", 4)
    monkeypatch.setattr(written, "_MOST_REPEATED", 4)
    script = Script(tmp_path)
    logs = [attempt(script, b"", [b"a" * 10, None, b"b" * 10, None], None), attempt(script, b"", [b"c"], None)]
    text, texts = shown([logs[0][: logs[0].index(b"b")], logs[1]])
    assert text == b"a" * 10 + b"c"
    assert "did not arrive here" in texts[1].note
    assert "train-1" in texts[1].note


def test_scripts_that_print_at_the_same_time_are_not_cut(tmp_path: Path) -> None:
    one, two = Script(tmp_path, "one"), Script(tmp_path, "two")
    parts = [(one, [b"a", None]), (two, [b"b", None]), (one, [None])]
    log = b"".join(attempt(script, b"", list(does), None) for script, does in parts)
    again = b"".join(attempt(script, b"", [], None) for script in (one, two, one))
    text, texts = shown([log, again])
    assert text == b"ab"
    assert "at once" in texts[0].note


def test_only_the_agents_pipe_gets_marks_and_of_ranks_that_share_it_the_first(tmp_path: Path) -> None:
    with pipe() as (read, write), (tmp_path / "file").open("wb") as file:
        for marks in (Marks("s", file.fileno(), told(write)), Marks("s", write, {}), Marks("s", write, told(read, 1))):
            marks.begin()
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        Marks("s", write, told(write, 1)).at(5)
        assert [mark.kind for mark in find(os.read(read, 999), 0)[0]] == [hs.LOG_BESIDE]
        Marks("s", write, told(write, 1, label=1)).at(5)
        assert [mark.kind for mark in find(os.read(read, 999), 0)[0]] == [hs.LOG_AT]


@given(st.integers(0, 60))
def test_a_mark_that_is_torn_is_seen_when_the_rest_is_there(cut: int) -> None:
    mark = hs.LOG_MARK_BEGIN + b"at;train-1;12" + hs.LOG_MARK_END
    log = b"abc" + mark + b"de"
    cut = min(cut, len(log))
    found, searched = find(log[:cut], 0)
    if 3 < cut < 3 + len(mark):
        assert (found, searched) == ([], 3)
    more, _ = find(log[searched:], searched)
    assert [(one.start, one.end, one.count) for one in [*found, *more]] == [(3, 3 + len(mark), 12)]
