"""Lifetimes: every format, its censoring, and what its malformed rows say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from everstep.brain.forecast.records import SHORTEST_H, Lifetime
from everstep.market.lifetimes import read_lifetimes
from everstep.market.rows import instant
from everstep.model.errors import BadInput

DATA = Path(__file__).parents[3] / "shared" / "data" / "preemption"
START = "2030-01-31T00:00:00Z"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "lives.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def lives(folder: Path, *lines: str) -> tuple[Lifetime, ...]:
    return read_lifetimes(written(folder, *lines)).lives


def test_the_plain_format(tmp_path: Path) -> None:
    found = lives(tmp_path, "pool,start,duration_h,observed", f"a,{START},2.5,1", ",,3,0", "b,,0,1")
    assert found == (
        Lifetime(2.5, 2.5, ("a",), instant(START)),
        Lifetime(3.0, math.inf, (), None),
        Lifetime(SHORTEST_H, SHORTEST_H, ("b",), None),
    )
    assert lives(tmp_path, "duration_h,observed", "1,true") == (Lifetime(1.0, 1.0),)


def test_an_owners_stop_and_the_end_at_24_h_are_no_preemptions(tmp_path: Path) -> None:
    found = lives(
        tmp_path,
        "vm,machine_type,zone,start_utc,lifetime_s,end_kind,max_life_kill",
        f"1,n9,us-central9-f,{START},7200,preempted,0",
        f"2,n9,us-central9-f,{START},7200,user_stop,0",
        f"3,n9,us-central9-f,{START},86400,preempted,1",
    )
    pool = ("gcp", "us-central9", "gcp/us-central9-f/n9/spot")
    assert [(one.lived_h, one.ended_by_h) for one in found] == [(2, 2), (2, math.inf), (24, math.inf)]
    assert {(one.pool, one.start_s) for one in found} == {(pool, instant(START))}


def test_who_reached_the_maximum_life_is_censored(tmp_path: Path) -> None:
    header = "gpu,zone,stress,start,end,lifetime_h,reached_max_life"
    found = lives(tmp_path, header, f"K90,r-b,1,{START},x,24.1,1", f"K90,r-b,1,{START},x,3,0")
    assert [one.lost for one in found] == [False, True]


def test_between_two_looks_is_an_interval(tmp_path: Path) -> None:
    header = "cloud,log,zone,gpu,num_gpus,start,first_down,preempted,lo_h,hi_h"
    found = lives(
        tmp_path, header, f"aws,l,us-east-9c,k90,8,{START},x,1,1.5,1.7", f"aws,l,us-east-9c,k90,8,{START},x,0,53,54"
    )
    assert [(one.lived_h, one.ended_by_h) for one in found] == [(1.5, 1.7), (53, math.inf)]
    assert found[0].pool == ("aws", "us-east-9", "aws/us-east-9c/K90:8/spot")


def test_who_comes_and_goes_by_name_lives_that_long(tmp_path: Path) -> None:
    read = read_lifetimes(
        written(tmp_path, "0,add,a", "0,add,b", "3600000,remove,b", "7200000,add,b", "10800000,remove,a")
    )
    assert sorted((one.lived_h, one.lost) for one in read.lives) == [(1.0, False), (1.0, True), (3.0, True)]
    assert not read.paired


def test_of_those_without_names_the_oldest_goes_first(tmp_path: Path) -> None:
    read = read_lifetimes(written(tmp_path, "0,1", "3600000,2", "7200000,1", "10800000,1"))
    assert [(one.lived_h, one.lost) for one in read.lives] == [(2.0, True), (2.0, False)]
    assert read.paired
    dated = read_lifetimes(written(tmp_path, "2030-01-31, 00:00:00, 1", "2030-01-31, 02:00:00, 0"))
    assert [(one.lived_h, one.lost, one.start_s) for one in dated.lives] == [(2.0, True, instant(START))]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("duration_h,observed", "-1,1"), ":2: duration_h: expected hours, 0 or more, found '-1'"),
        (("duration_h,observed", "1,perhaps"), ":2: observed: expected 1 or 0, found 'perhaps'"),
        (
            ("duration_h,observed,start", "1,1,then"),
            ":2: start: expected a time such as 2030-01-31T18:00:00Z, found 'then'",
        ),
        (
            ("lifetime_s,end_kind,max_life_kill,machine_type,zone,start_utc", f"1,lost,0,n,z,{START}"),
            ":2: end_kind: expected preempted or user_stop, found 'lost'",
        ),
        (
            ("cloud,zone,gpu,num_gpus,start,preempted,lo_h,hi_h", f"aws,z,g,1,{START},1,2,1"),
            ":2: hi_h: expected lo_h (2) or more, found '1'",
        ),
        (("0,add,a", "1,remove,b"), ":2: name: b is not there"),
        (("0,add,a", "1,add,a"), ":2: name: a is there already"),
        (("5,add,a", "1,remove,a"), ":2: milliseconds: time runs backwards"),
        (("5,add,a", "9,move,a"), ":2: what: expected add or remove, found 'move'"),
        (("0,1", "5,some"), ":2: alive: expected a whole number, 0 or more, found 'some'"),
        (
            ("2030-01-31, 00:00:00, 1", "2030-01-31, noon, 2"),
            ":2: date: expected a date and a time such as 2030-01-31, 18:00:00, found '2030-01-31 noon'",
        ),
        (
            ("hours,ended", "1,1"),
            ":1: expected at least the columns duration_h and observed; the file has hours, ended",
        ),
    ],
)
def test_a_bad_row_is_refused_with_one_line(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(BadInput) as caught:
        read_lifetimes(path)
    assert str(caught.value) == f"{path}{message}"


def test_the_real_lifetimes_can_be_read() -> None:
    paths = sorted(DATA.glob("*.csv"))
    if not paths:
        pytest.skip("the data beside the project is not there")
    found = {path.name: read_lifetimes(path) for path in paths}
    counts = {name: (len(read.lives), sum(one.lost for one in read.lives)) for name, read in found.items()}
    # The 1,009 machines and 206 preemptions of the Kaplan-Meier reference; 462 rows of which 13 were still up.
    assert counts["gcp_preemptible_2019.csv"] == (1009, 206)
    assert counts["spot_gpu_persistent_mar2020.csv"] == (462, 449)
    assert counts["gcp_gpu_transient_feb2019.csv"] == (126, 19)
    # One cluster, once with names and once without: as many ends, as many hours.
    named, counted = found["bamboo_p3_events.csv"], found["parcae_p3_alive_count.csv"]
    assert counts["bamboo_p3_events.csv"] == counts["parcae_p3_alive_count.csv"]
    assert sum(one.lived_h for one in named.lives) == pytest.approx(sum(one.lived_h for one in counted.lives))
    assert counted.paired
    assert not named.paired


def test_a_count_that_no_cluster_has_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        lives(tmp_path, "1000,999999999999")
    assert str(caught.value).endswith(
        ":1: alive: expected machines of one cluster, 1000000 at most, found '999999999999'"
    )


def test_a_loss_within_the_first_second_is_a_life_of_a_second(tmp_path: Path) -> None:
    header = "lo_h,hi_h,preempted,cloud,zone,gpu,num_gpus,start"
    (found,) = lives(tmp_path, header, f"0,5e-324,1,aws,us-east-1a,v100,1,{START}")
    assert (found.lived_h, found.ended_by_h) == (SHORTEST_H, SHORTEST_H)
