from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.causes import InstanceEnd
from everstep.model.offers import BillingRule
from everstep.providers.local.meter import charges, compute_charge, disk_charge
from tests.providers.local.records import instance, volume


@pytest.mark.parametrize(
    ("fields", "hours", "cost"),
    [
        ({"ended_at": 4600.0}, 1.0, 1.0),
        ({"ended_at": 1001.0}, 60 / 3600, 60 / 3600),  # the minimum
        ({"ended_at": 1061.5, "granularity_s": 60.0}, 120 / 3600, 120 / 3600),  # whole units
        ({"ended_at": 1010.0, "time_scale": 360.0, "price_usd_per_h": 3.06}, 1.0, 3.06),  # market time
        ({"ended_at": 2000.0, "free_if_reclaimed_within_s": 3600.0, "end": InstanceEnd.PREEMPTED}, 0.0, 0.0),
        ({"ended_at": 2800.0, "free_if_reclaimed_within_s": 3600.0, "end": InstanceEnd.OWNER}, 0.5, 0.5),
        ({"ended_at": 4600.0, "free_if_reclaimed_within_s": 3600.0, "end": InstanceEnd.PREEMPTED}, 1.0, 1.0),
        ({"ended_at": None}, 0.5, 0.5),  # still running at 2800
    ],
)
def test_charges_by_hand(fields: dict[str, object], hours: float, cost: float) -> None:
    charge = compute_charge(instance(**fields), now=2800.0)
    assert charge["quantity"] == pytest.approx(hours, rel=1e-12)
    assert charge["cost_usd"] == pytest.approx(cost, rel=1e-12)


def test_a_disk_is_charged_by_the_gib_hour_of_market_time() -> None:
    charge = disk_charge(volume(deleted_at=1010.0, time_scale=360.0), now=9999.0)
    assert (charge["quantity"], charge["cost_usd"]) == (10.0, pytest.approx(0.1))


def test_only_the_deployment_asked_for() -> None:
    lines = charges([instance(), instance(id="i-2", deployment="e")], [volume(deployment="e")], "e", 2000.0)
    assert [line["resource"] for line in lines] == ["i-2", "vol-1"]


@given(
    start=st.floats(1.7e9, 1.9e9),
    lived=st.floats(0, 1e5),
    price=st.floats(0, 100),
    scale=st.sampled_from([1.0, 60.0, 360.0, 3600 / 7, 3600 / 13]),
    granularity=st.sampled_from([1.0, 60.0, 3600.0]),
    free=st.sampled_from([0.0, 3600.0]),
    end=st.sampled_from(InstanceEnd),
)
def test_two_ways_of_counting_agree(
    start: float, lived: float, price: float, scale: float, granularity: float, free: float, end: InstanceEnd
) -> None:
    rule = BillingRule(granularity, 60.0, free, scale)
    record = instance(
        started_at=start,
        ended_at=start + lived,
        price_usd_per_h=price,
        time_scale=scale,
        granularity_s=granularity,
        free_if_reclaimed_within_s=free,
        end=end,
    )
    expected = rule.cost_usd(start + lived - start, price, reclaimed=end is InstanceEnd.PREEMPTED)
    assert compute_charge(record, now=0.0)["cost_usd"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
