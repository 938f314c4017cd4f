from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.events import KINDS, Decided, Event, InstanceReady, Restored, encode
from everstep.model.ids import InstanceId, StreamId
from everstep.model.ledger import Overhead
from everstep.ports import Record
from everstep.server.texts import TEXTS, said, text_of
from everstep.server.views import decision_view, event_view


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    hints = typing.get_type_hints(kind)
    floats = st.floats(0, 1e11, allow_nan=False)
    known = {float: floats, float | None: st.none() | floats}
    fields = {f.name: known[hints[f.name]] for f in dataclasses.fields(kind) if hints[f.name] in known}  # type: ignore[arg-type]
    return st.builds(kind, **fields)


def test_every_kind_of_event_has_a_sentence() -> None:
    assert set(TEXTS) == set(KINDS.values())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_event_is_one_line(kind: str) -> None:
    @given(events_of(KINDS[kind]))
    def check(event: Event) -> None:
        text = text_of(event)
        assert text.strip() == text != ""
        assert len(text.splitlines()) == 1
        name, schema, body = encode(event)
        record = Record(1, StreamId("job/j"), 1, 0.0, name, schema, body)
        assert event_view(record).kind == kind

    check()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_decision_shows_the_bare_name_of_a_kind(kind: str) -> None:
    """The brain writes a fact that it concluded as the kind of its event; any kind may be one some day."""
    decided = Decided(effects=(kind, "end i-1"), reasons=("because",))
    _, schema, body = encode(decided)
    record = Record(1, StreamId("job/j"), 1, 0.0, "Decided", schema, body)
    for text in (text_of(decided), *decision_view(record).effects):
        assert not any(name in text for name in KINDS), text
    assert decision_view(record).effects[1] == "end i-1"


def test_what_planners_conclude_has_words_of_its_own() -> None:
    for kind in ("CauseSettled", "AttemptOverdue", "InstanceSilent", "KeepExpired", "BudgetSpent", "GaveUp"):
        assert not said(kind).startswith("note: ")
    assert text_of(Decided(effects=("CauseSettled",))) == "decided: settle why an attempt ended"


def test_the_time_until_a_machine_is_ready_is_called_as_on_the_bill() -> None:
    text = text_of(InstanceReady(InstanceId("i-1"), 7, 4.0))
    assert text == f"machine i-1 is ready ({Overhead.SETUP} took 4.0 s)"


def test_a_base_that_was_missed_is_named() -> None:
    told = Restored(InstanceId("i-1"), 2, "1:384", 0.25, missed="1:297")
    asked = "NOT from 1:297, which was asked for and is gone"
    assert text_of(told) == f"attempt 2 goes on from checkpoint 1:384 (restored in 0.2 s), {asked}"
    assert text_of(dataclasses.replace(told, base=None)) == f"attempt 2 starts from scratch, {asked}"


def test_amounts_look_as_in_tables() -> None:
    decided = Decided(
        effects=("launch box/a/m1/spot for slot 0.0 at $0.9500/h",),
        reasons=("slot 0.0: box/a/m1/spot at $0.0314/h: the cheapest", "the rest of the job would cost $0.05"),
        wait="a machine at $1234.5000/h at most",
    )
    _, schema, body = encode(decided)
    view = decision_view(Record(1, StreamId("job/j"), 1, 0.0, "Decided", schema, body))
    assert view.effects == ("launch box/a/m1/spot for slot 0.0 at $0.95/h",)
    assert view.reasons == (
        "slot 0.0: box/a/m1/spot at $0.0314/h: the cheapest",
        "the rest of the job would cost $0.05",
    )
    assert view.wait == "a machine at $1,234.50/h at most"
    assert text_of(decided) == (
        "decided: launch box/a/m1/spot for slot 0.0 at $0.95/h; waiting: a machine at $1,234.50/h at most"
    )


def test_a_kind_of_another_version_is_shown_as_it_is() -> None:
    record = Record(7, StreamId("job/j"), 3, 5.0, "NotYetInvented", 1, {"a": 1})
    view = event_view(record)
    assert (view.text, view.body) == ("NotYetInvented (of another version of everstep)", {"a": 1})
