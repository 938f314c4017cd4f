from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.events import KINDS, Event, encode
from everstep.model.ids import StreamId
from everstep.ports import Record
from everstep.server.texts import TEXTS, text_of
from everstep.server.views import event_view


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


def test_a_kind_of_another_version_is_shown_as_it_is() -> None:
    record = Record(7, StreamId("job/j"), 3, 5.0, "NotYetInvented", 1, {"a": 1})
    view = event_view(record)
    assert (view.text, view.body) == ("NotYetInvented (of another version of everstep)", {"a": 1})
