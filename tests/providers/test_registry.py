from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from everstep import providers
from everstep.model.errors import BadInput
from everstep.providers.local import LocalProvider


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, providers.ENTRY_POINT_GROUP)


def test_the_box_is_built_in() -> None:
    assert providers.load("local", found=()) is LocalProvider


def test_entry_points_are_merged_with_the_built_ins_and_not_imported() -> None:
    known = providers.registered(found=[point("lab", "no.such.module:Lab")])
    assert sorted(known) == sorted(["lab", *(entry.name for entry in providers.BUILT_IN)])


def test_an_entry_point_is_loaded_by_its_dotted_name() -> None:
    assert (
        providers.load("lab", found=[point("lab", "everstep.providers.local:LocalProvider.stop")]) is LocalProvider.stop
    )


@pytest.mark.parametrize("names", [["local"], ["lab", "lab"]])
def test_a_name_claimed_twice_is_an_error(names: list[str]) -> None:
    with pytest.raises(
        BadInput, match=rf"provider '{names[-1]}' is claimed by .* and by an entry point; uninstall or rename"
    ):
        providers.registered(found=[point(name, "os:getcwd") for name in names])


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"there is no provider 'azure'; known: .*lab, local"):
        providers.load("azure", found=[point("lab", "os:getcwd")])


def test_a_missing_extra_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = providers.ProviderEntry("sky", "no_such_package.sky:Sky", extra="sky")
    monkeypatch.setattr(providers, "BUILT_IN", (entry,))
    with pytest.raises(BadInput) as caught:
        providers.load("sky", found=())
    expected = "provider: sky: needs no_such_package, which is not installed; pip install 'everstep[sky]'"
    assert str(caught.value) == expected


def test_a_broken_import_of_our_own_is_not_called_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError):
        providers.load("sky", found=[point("sky", "everstep.providers.no_such_cloud:Sky")])
