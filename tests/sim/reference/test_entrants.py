"""Names of policies: ours, published ones, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from everstep.brain.select.policies import POLICIES
from everstep.plugins import PluginClash
from everstep.sim.reference import entrants


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    entrants._installed.cache_clear()
    yield
    entrants._installed.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, **found: object) -> None:
    def merge(group: str, built_in: Any) -> dict[str, Callable[[], object]]:
        assert group == "everstep.policies"
        return {name: lambda policy=policy: policy for name, policy in found.items()}

    monkeypatch.setattr(entrants, "merge", merge)


def test_published_names_stand_for_ours() -> None:
    assert entrants.named("greedy_spot_safety_net") == "greedy"
    assert entrants.named("optimal_dp") == "optimal"
    assert entrants.entrant("uniform_progress") is POLICIES["uniform_progress"]
    with pytest.raises(KeyError):
        entrants.named("nobody")


def test_an_installed_policy_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = object()
    install(monkeypatch, mine=mine)
    assert entrants.named("mine") == "mine"
    assert entrants.entrant("mine") is mine
    assert "mine" in entrants.names()


@pytest.mark.parametrize("name", ["greedy", "optimal", "greedy_spot_safety_net"])
def test_a_name_of_ours_is_not_to_be_had(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, **{name: object()})
    with pytest.raises(PluginClash, match=name):
        entrants.named("nobody")
