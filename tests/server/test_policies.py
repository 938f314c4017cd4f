"""Policies of installed packages, beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everstep.brain.select import SELECTORS, Live, Rotate
from everstep.brain.select.policies import Spell
from everstep.plugins import PluginClash
from everstep.server import policies


def install(monkeypatch: pytest.MonkeyPatch, found: dict[str, dict[str, object]]) -> None:
    def merge(group: str, built_in: Any) -> dict[str, Callable[[], object]]:
        return {name: lambda thing=thing: thing for name, thing in found.get(group, {}).items()}

    monkeypatch.setattr(policies, "merge", merge)


def test_policies_of_both_kinds_are_selectors(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, seam = Rotate(), Spell()
    install(monkeypatch, {"everstep.selectors": {"mine": mine}, "everstep.policies": {"theirs": seam}})
    found = policies.selectors()
    assert {name: found[name] for name in SELECTORS} == SELECTORS
    assert found["mine"] is mine
    theirs = found["theirs"]
    assert isinstance(theirs, Live)
    assert theirs.policy is seam


@pytest.mark.parametrize("group", ["everstep.selectors", "everstep.policies"])
@pytest.mark.parametrize("name", ["greedy", "auto", "rotate"])
def test_a_name_of_ours_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch, group: str, name: str) -> None:
    install(monkeypatch, {group: {name: Rotate()}})
    with pytest.raises(PluginClash, match=name):
        policies.selectors()
