"""Stores by URL, and the rule by which plugins are merged."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from everstep.model.errors import BadInput
from everstep.plugins import BuiltIn, PluginClash, merge
from everstep.store import open_store, registry
from everstep.store.memory import MemoryStore
from everstep.store.sqlite import SqliteStore


async def test_urls_open_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_store("memory://"), MemoryStore)
    for url, expected in ((f"sqlite:///{tmp_path}/a.db", "a.db"), ("sqlite:///b.db", "b.db")):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == str(tmp_path / expected)
        await store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me:secret@host/db", "store: no store is called 'mysql'; known: memory://, sqlite://"),
        ("journal.db", "store: a store is named by a URL; known: memory://, sqlite://"),
        ("", "store: a store is named by a URL; known: memory://, sqlite://"),
        ("memory://x", "store: 'memory://x' is not understood; a journal in memory is memory://"),
        (
            "sqlite://journal.db",
            "store: 'sqlite://journal.db' names no file; write sqlite:///relative/path or sqlite:////absolute/path",
        ),
        (
            "sqlite:///",
            "store: 'sqlite:///' names no file; write sqlite:///relative/path or sqlite:////absolute/path",
        ),
    ],
)
def test_bad_urls_get_one_line(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {name: registry.BUILT_IN[name] for name in ("memory", "sqlite")})
    with pytest.raises(BadInput) as refused:
        open_store(url)
    assert str(refused.value) == message


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "everstep.stores")


def test_plugins_join_what_is_built_in() -> None:
    merged = merge("everstep.stores", {"a": BuiltIn("json:dumps")}, installed=[point("b", "json:loads")])
    assert {name: load().__name__ for name, load in merged.items()} == {"a": "dumps", "b": "loads"}


@pytest.mark.parametrize(
    "installed",
    [[point("a", "json:loads")], [point("b", "json:loads"), point("b", "json:load")]],
    ids=["with what is built in", "with each other"],
)
def test_a_clash_of_names_is_an_error(installed: list[EntryPoint]) -> None:
    with pytest.raises(PluginClash, match="claimed by both"):
        merge("everstep.stores", {"a": BuiltIn("json:dumps")}, installed=installed)


def test_the_same_entry_point_seen_twice_is_no_clash() -> None:
    assert set(merge("everstep.stores", {}, installed=[point("b", "json:loads")] * 2)) == {"b"}


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(BadInput, match=r"the package no_such_driver is missing; .* 'everstep\[postgres\]'"):
        BuiltIn("no_such_driver:open", extra="postgres").load()
    with pytest.raises(ModuleNotFoundError):
        BuiltIn("no_such_driver:open").load()
