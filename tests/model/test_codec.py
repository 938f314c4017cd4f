from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.codec import from_dict, to_dict
from everstep.model.events import KINDS, SCHEMA, Decided, Event, RanksEnded, decode, encode
from everstep.model.job import JobState
from everstep.model.task import Task

# As they come back from JSON: no NaN, which is not JSON, and no lone surrogates, which are not UTF-8.
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of any type that the vocabulary uses."""
    if isinstance(hint, typing.NewType):
        return values(hint.__supertype__)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if a is type(None) else values(a) for a in args])
    if origin is tuple:
        return (
            st.lists(values(args[0]), max_size=3).map(tuple) if args[-1] is Ellipsis else st.tuples(*map(values, args))
        )
    if origin is dict:
        return st.dictionaries(TEXTS, values(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: values(hints[f.name]) for f in dataclasses.fields(hint)})
    return {str: TEXTS, int: st.integers(-(2**53), 2**53), float: FLOATS, bool: st.booleans()}[hint]


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
def test_every_event_survives_its_written_form(kind: str, data: st.DataObject) -> None:
    event: Event = data.draw(values(KINDS[kind]))
    name, schema, body = encode(event)
    assert (name, schema) == (kind, SCHEMA.get(kind, 1))
    again = decode(name, json.loads(json.dumps(body, allow_nan=False)))
    assert again == event
    assert type(again) is type(event)


@given(values(Task))
def test_tasks_survive_their_written_form(task: Task) -> None:
    assert from_dict(Task, json.loads(json.dumps(to_dict(task)))) == task


@given(values(JobState))
def test_states_survive_their_written_form(state: JobState) -> None:
    assert from_dict(JobState, json.loads(json.dumps(to_dict(state)))) == state


def test_unknown_keys_are_ignored_and_missing_ones_take_the_default() -> None:
    old = {"instance": "i-1", "attempt": 2, "outcome": "ok", "a_key_of_tomorrow": {"x": 1}}
    assert decode("RanksEnded", old) == RanksEnded("i-1", 2, "ok")  # type: ignore[arg-type]
    assert decode("Decided", {}) == Decided()


def test_a_missing_key_without_a_default_is_an_error() -> None:
    with pytest.raises(TypeError, match="outcome"):
        decode("RanksEnded", {"instance": "i-1", "attempt": 2})


def test_defaults_are_written_so_that_readers_do_not_depend_on_them() -> None:
    assert to_dict(Decided()) == {
        "effects": [], "reasons": [], "candidates": [], "inputs": {}, "wait": "", "wake_at": None,
    }  # fmt: skip


def test_a_number_written_without_a_point_is_a_float_again() -> None:
    task = from_dict(Task, {"stop_grace_s": 30})
    assert isinstance(task.stop_grace_s, float)


def test_an_unknown_kind_and_a_stranger_are_errors() -> None:
    with pytest.raises(KeyError):
        decode("Nothing", {})
    with pytest.raises(TypeError, match="object is not part of the vocabulary"):
        to_dict(object())
    with pytest.raises(ValueError, match="'gone' is not a valid"):
        decode("InstanceEnded", {"instance": "i-1", "ended_at": 1.0, "end": "gone"})
