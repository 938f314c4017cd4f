"""Recorded journals replay: folded they give the same states, and today's brain decides as it did then."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import given

from everstep.testing.recording import Replayer, Row, fold, from_text, summary, to_text
from everstep.testing.scripted import ScriptedWorld
from everstep.testing.scripted_run import play_on_heap, record
from tests.parity.generated import worlds
from tests.parity.worlds import BY_NAME

JOURNALS = sorted((Path(__file__).parent / "journals").glob("*.jsonl"))
#: Journals whose decisions are others today, and what the first that differs said: they must still fold.
OTHERWISE_TODAY = {
    # A gang with disks of its own starts when all of them are there (designs/0007); slot 0 did not wait then.
    "v0.1-disks_with_outputs": "'wait': 'the disk of slot 0.1 is being made'",
}


def test_there_are_recorded_journals() -> None:
    assert len(JOURNALS) >= 8


@pytest.mark.parametrize("path", JOURNALS, ids=[p.stem for p in JOURNALS])
def test_a_recorded_journal_folds_to_what_became_of_its_jobs(path: Path) -> None:
    rows = from_text(path.read_text())
    states = fold(rows)
    ends = [row["end"] for row in rows if "end" in row]
    assert ends
    assert [summary(states[end["job"]]) for end in ends] == ends


@pytest.mark.parametrize("path", JOURNALS, ids=[p.stem for p in JOURNALS])
def test_the_brain_of_today_decides_as_it_did_then(path: Path) -> None:
    difference = Replayer(from_text(path.read_text())).first_difference()
    if path.stem in OTHERWISE_TODAY:
        assert difference is not None, "decided as it was then: take it out of the list"
        assert OTHERWISE_TODAY[path.stem] in str(difference)
    else:
        assert difference is None, str(difference)


@given(worlds())
def test_any_recording_folds_and_replays(world: ScriptedWorld) -> None:
    rows = from_text(to_text(record(world)))
    assert Replayer(rows).first_difference() is None
    assert fold(rows) == play_on_heap(world).states


def _of_kind(rows: list[Row], kind: str) -> int:
    return next(n for n, row in enumerate(rows) if "line" in row and row["line"]["kind"] == kind)


def _recorded() -> list[Row]:
    return from_text(to_text(record(BY_NAME["child_lost_with_notice"])))


def test_a_tampered_decision_is_named() -> None:
    rows = _recorded()
    place = _of_kind(rows, "LaunchIntended")
    rows[place]["line"]["body"]["offer"]["zone"] = "elsewhere"
    difference = Replayer(rows).first_difference()
    assert difference is not None
    assert difference.row == place + 1
    assert difference.now is not None
    assert difference.now["body"]["offer"]["zone"] == "a"


def test_a_line_that_was_taken_out_is_named() -> None:
    rows = _recorded()
    place = _of_kind(rows, "CauseSettled")
    rows.pop(place)
    difference = Replayer(rows).first_difference()
    assert difference is not None
    assert difference.row == place + 1


def test_a_line_that_was_put_in_is_named() -> None:
    rows = _recorded()
    place = _of_kind(rows, "TerminateIntended")
    rows.insert(place, copy.deepcopy(rows[place]))
    difference = Replayer(rows).first_difference()
    assert difference is not None
    assert difference.row == place + 2, "the first of the twins is what is decided, the second is one too many"
    assert difference.now is None


def test_another_market_gives_other_decisions() -> None:
    rows = _recorded()
    row = next(row for row in rows if "offers" in row)
    row["offers"] = [o for o in row["offers"] if o["zone"] != "a"]
    difference = Replayer(rows).first_difference()
    assert difference is not None
    assert difference.recorded is not None
    assert difference.recorded["kind"] == "Decided"


def test_another_end_is_named() -> None:
    rows = _recorded()
    rows[-1]["end"]["phase"] = "failed"
    difference = Replayer(rows).first_difference()
    assert difference is not None
    assert difference.row == len(rows)


def test_a_file_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="not a recording"):
        from_text('{"format": 99}\n')
