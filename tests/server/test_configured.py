"""Keys of a provider in ``config.yaml`` that it does not know, or that it needs and has not got."""

from __future__ import annotations

import pytest

from everstep.model.errors import BadInput
from everstep.providers.aws import AwsProvider
from everstep.server.configured import check_keys


def test_each_wrong_and_each_missing_key_is_a_line_of_its_own() -> None:
    with pytest.raises(BadInput) as caught:
        check_keys(AwsProvider, {"regoins": ["us-east-1"], "colour": "red"}, "config.yaml", "aws")
    assert str(caught.value).splitlines() == [
        "config.yaml: providers.aws.regoins: unknown key; did you mean 'regions'?",
        "config.yaml: providers.aws.colour: unknown key",
        "config.yaml: providers.aws: regions is missing",
        "config.yaml: providers.aws: types is missing",
    ]


def test_what_takes_any_key_is_left_to_itself() -> None:
    def plugin(place: str, **more: object) -> object:
        return place, more

    check_keys(plugin, {"place": "here", "colour": "red"}, "config.yaml", "nimbus")
