"""The IAM policy on the page is enough, and nothing in it is idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.model.errors import Unauthorized
from tests.providers.aws.conftest import MakeFake, MakeProvider
from tests.providers.aws.test_faults import Job

ROOT = Path(__file__).resolve().parents[3]


PLACEMENT = {"ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup", "ec2:DescribePlacementGroups"}
"""Without the first one gangs start all the same; without the others groups stay."""


def actions() -> set[str]:
    policy = json.loads((ROOT / "docs" / "aws-iam-policy.json").read_text())
    return {action for statement in policy["Statement"] for action in statement["Action"]}


NEEDED = sorted(actions() - {"ec2:CreatePlacementGroup"})


async def life(make_fake: MakeFake, make_provider: MakeProvider, allowed: set[str]) -> None:
    fake = make_fake(hidden_s=0.0, boot_s=0.0, shut_down_s=0.05, allowed=frozenset(allowed))
    job = Job(make_provider(fake, look_s=0.02), fake)
    await job.run()
    job.check()


async def test_gangs_start_without_placement_groups_where_they_are_not_allowed(
    make_fake: MakeFake, make_provider: MakeProvider
) -> None:
    await life(make_fake, make_provider, actions() - PLACEMENT)


async def test_it_is_enough(make_fake: MakeFake, make_provider: MakeProvider) -> None:
    await life(make_fake, make_provider, actions())


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(a, marks=pytest.mark.expensive(family="ec2-policy"))
        for a in sorted(actions() - {"ec2:CreatePlacementGroup"})
    ],
)
async def test_nothing_in_it_is_idle(make_fake: MakeFake, make_provider: MakeProvider, action: str) -> None:
    problem: Any = (Unauthorized, AssertionError)  # three launches refused, in the words of the driver
    with pytest.raises(problem):
        await life(make_fake, make_provider, actions() - {action})
