from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (1.5, 1.5),
        ("0", 0),
        ("90s", 90),
        ("10m", 600),
        ("10 min", 600),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("2 days 3 hours", 183_600),
        ("1H30M", 5400),
        ("PT1H30M", 5400),
        ("P2D", 172_800),
        ("P1DT12H", 129_600),
        ("PT0.5S", 0.5),
        ("1e3", 1000),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "-5m",
        "abc",
        "1x",
        "5 5",
        "1m30m",
        "1m1h",
        "nan",
        "inf",
        "1h30",
        "P",
        "PT",
        "P1H",
        "PT1D",
        "--",
        "1,5h",
        "٣s",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration such as 90s, 10m, 1h30m or 2d"):
        units.parse_duration(text)


@pytest.mark.parametrize("value", [True, math.nan, math.inf, -1.0, -1])
def test_numbers_that_are_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        units.parse_duration(value)


def test_a_duration_has_a_ceiling() -> None:
    assert units.parse_duration("3650d") == units.MAX_DURATION_S
    with pytest.raises(ValueError, match="at most 10 years"):
        units.parse_duration("3651d")
    with pytest.raises(ValueError, match="expected a"):
        units.parse_duration("9" * 400 + "d")


@given(st.integers(0, int(units.MAX_DURATION_S)))
def test_exact_durations_of_whole_seconds_come_back(seconds: int) -> None:
    assert units.parse_duration(units.exact_duration(seconds)) == seconds


@given(st.floats(0.001, units.MAX_DURATION_S))
def test_exact_durations_come_back(seconds: float) -> None:
    assert units.parse_duration(units.exact_duration(seconds)) == seconds


@given(st.floats(0, units.MAX_DURATION_S))
def test_durations_for_people_are_near(seconds: float) -> None:
    text = units.format_duration(seconds)
    step = 0.1 if seconds < 9.95 else 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    # The ten-year ceiling itself may round up to just above it.
    assert abs(units.parse_duration(text) - seconds) <= step / 2 + 0.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.5, "0.5 s"),
        (9.99, "10 s"),
        (45, "45 s"),
        (90, "1 min 30 s"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
        (7199, "2 h"),
        (86_399, "1 d"),
        (183_600, "2 d 3 h"),
        (-90, "-1 min 30 s"),
        (math.inf, "unknown"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "unit", "count"),
    [
        ("512", "B", 512),
        ("512", "GiB", 512 * 2**30),
        (64, "GiB", 64 * 2**30),
        ("512MB", "B", 512 * 2**20),
        ("64GB", "GiB", 64 * 2**30),
        ("64Gi", "B", 64 * 2**30),
        ("1.5 TiB", "B", 3 * 2**39),
        ("10k", "B", 10_240),
        ("7 B", "GiB", 7),
    ],
)
def test_sizes(text: str | int, unit: str, count: int) -> None:
    assert units.parse_size(text, unit=unit) == count


@pytest.mark.parametrize("text", ["", "-1", "GB", "1 ZB", "nan", "inf", "64GBs", "1i", "5 5", "0x10", "9999999999GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        units.parse_size(text)


@given(st.integers(0, units.MAX_SIZE_BYTES))
def test_sizes_for_people_are_near(count: int) -> None:
    # One decimal: half a tenth of the unit, which is at least a thousandth of the value.
    assert abs(units.parse_size(units.format_size(count)) - count) <= max(count * 0.051, 0.5)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1288490189, "1.2 GiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**60, "1.0 EiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert units.format_size(count) == text


@pytest.mark.parametrize(
    ("text", "usd"),
    [
        ("1.5", 1.5),
        (1.5, 1.5),
        ("$1.5", 1.5),
        ("$ 1.50", 1.5),
        ("1.5 USD", 1.5),
        ("$1,250", 1250),
        ("1,234,567.5", 1_234_567.5),
        ("0", 0),
    ],
)
def test_money(text: str | float, usd: float) -> None:
    assert units.parse_money(text) == usd


@pytest.mark.parametrize("text", ["", "-1", "$", "1.5 EUR", "€3", "1,5", "12,34,56", "nan", "$inf", "1 2", "1e300"])
def test_what_is_no_money(text: str) -> None:
    with pytest.raises(ValueError, match="expected an amount in US dollars"):
        units.parse_money(text)


def test_money_has_a_ceiling() -> None:
    with pytest.raises(ValueError, match=r"at most \$1,000,000,000"):
        units.parse_money("1000000001")


@given(st.integers(10, 10**11))
def test_money_for_people_comes_back_to_the_cent(cents: int) -> None:
    assert units.parse_money(units.format_money(cents / 100)) == cents / 100


@given(st.floats(0, units.MAX_MONEY_USD))
def test_any_price_written_as_a_number_comes_back(usd: float) -> None:
    if usd == 0 or usd >= 1e-6:
        assert units.parse_money(usd) == pytest.approx(usd, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (12.34, "$12.34"),
        (0.0123, "$0.0123"),
        (0.0999, "$0.0999"),
        (0.09999, "$0.10"),
        (-3, "-$3.00"),
        (1234.5, "$1,234.50"),
        (-0.00001, "$0.0000"),
    ],
)
def test_money_for_people(usd: float, text: str) -> None:
    assert units.format_money(usd) == text


def test_prices_for_people() -> None:
    assert units.format_price(1.234) == "$1.23/h"


@pytest.mark.parametrize(
    "text", ["2030-01-31T18:00Z", "2030-01-31 18:00+00:00", "2030-01-31T19:00:00+01:00", "20300131T180000Z"]
)
def test_instants(text: str) -> None:
    assert units.parse_instant(text) == datetime(2030, 1, 31, 18, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["", "tomorrow", "2030-13-01T00:00Z", "18:00", "2030-02-30T00:00Z"])
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time with its zone such as"):
        units.parse_instant(text)


@pytest.mark.parametrize("text", ["2030-01-31T18:00", "2030-01-31"])
def test_an_instant_needs_its_zone(text: str) -> None:
    with pytest.raises(ValueError, match="the zone is missing"):
        units.parse_instant(text)


@given(st.integers(0, 4_000_000_000))
def test_instants_come_back(utc_s: int) -> None:
    assert units.parse_instant(units.format_instant(utc_s)) == utc_s


@given(st.text(max_size=30))
def test_no_text_makes_a_parser_raise_anything_else(text: str) -> None:
    for parse in (units.parse_duration, units.parse_size, units.parse_money, units.parse_instant):
        try:
            outcome = "" if math.isfinite(parse(text)) else "not finite"
        except ValueError as error:
            outcome = str(error).partition(" ")[0]
        assert outcome in ("", "expected")
