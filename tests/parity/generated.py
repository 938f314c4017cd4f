"""Scripted worlds drawn by hypothesis. Every drawn instant gets a fraction of its own, so that few coincide."""

from __future__ import annotations

from hypothesis import strategies as st

from everstep.model.ids import JobId
from everstep.model.task import Recovery
from everstep.testing.scripted import (
    AgentScript,
    Fault,
    FaultKind,
    LaunchScript,
    MarketAt,
    Request,
    ScriptedWorld,
    Submission,
    TrainingScript,
)
from tests.parity.worlds import DRY, ON_DEMAND_ONLY, PLENTY, SHARED, task

_ERRORS = ("no_capacity", "quota_exceeded", "price_above_max", "bad_request", "unauthorized")
_PASSING = ("throttled", "unreachable")


def _odd(tenths: int, place: int) -> float:
    return tenths / 10 + (place * 37 % 101 + 1) * 0.000917


@st.composite
def worlds(draw: st.DrawFn) -> ScriptedWorld:
    """One or two jobs, up to three nodes each, with whatever can go wrong."""
    jobs = draw(st.integers(1, 2))
    place = iter(range(1, 10_000))

    def instant(low: int, high: int) -> float:
        return _odd(draw(st.integers(low, high)), next(place))

    names = [JobId(f"j-{n + 1}") for n in range(jobs)]
    submissions = tuple(
        Submission(
            instant(5, 40),
            job,
            task(draw(st.integers(1, 3)), recovery=Recovery(max_restarts=draw(st.integers(0, 2)))),
        )
        for job in names
    )
    launches = tuple(
        LaunchScript(
            instant(2, 40),
            draw(st.sampled_from(("", "", "", *_ERRORS))),
            tuple(draw(st.lists(st.sampled_from(_PASSING), max_size=2))),
            draw(st.integers(0, 5)) == 0,
        )
        for _ in range(draw(st.integers(0, 4)))
    )
    agents = tuple(
        AgentScript(
            boot_s=instant(20, 150),
            setup_s=instant(1, 40),
            setup_rc=int(draw(st.integers(0, 9)) == 0),
            look_s=instant(0, 5),
            check_s=instant(0, 9),
            unreachable=draw(st.integers(0, 9)) == 0,
            start_s=instant(1, 9),
            beat_s=instant(8, 14),
        )
        for _ in range(draw(st.integers(0, 4)))
    )
    faults = tuple(
        Fault(
            instant(30, 900),
            draw(st.sampled_from(FaultKind)),
            draw(st.sampled_from(("rank:0", "rank:1", "rank:2", "machine:1", "machine:3"))),
            draw(st.sampled_from((0.0, 3.0117, 8.0171, 20.0123, 47.0133))),
            draw(st.sampled_from(names)),
        )
        for _ in range(draw(st.integers(0, 5)))
    )
    requests = tuple(
        Request(
            instant(10, 1100),
            draw(st.sampled_from(("cancel", "pause", "unpause", "unpause", "retry", "restore", "exec"))),
            draw(st.sampled_from(names)),
            "1:6",
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    markets = [MarketAt(0.0, PLENTY)]
    for _ in range(draw(st.integers(0, 2))):
        markets.append(MarketAt(instant(10, 900), draw(st.sampled_from((PLENTY, ON_DEMAND_ONLY, DRY)))))
    return ScriptedWorld(
        name="drawn",
        submissions=submissions,
        markets=tuple(sorted(markets, key=lambda m: m.at)),
        launches=launches,
        agents=agents,
        trainings={
            job: TrainingScript(
                steps=draw(st.integers(5, 60)), fails_at=tuple(draw(st.lists(st.integers(1, 40), max_size=2)))
            )
            for job in names
        },
        faults=faults,
        requests=requests,
        shared=SHARED if draw(st.booleans()) else {},
        until=150.0,
    )
