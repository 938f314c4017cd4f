from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everstep.control.wakes import Wakes
from everstep.model.ids import JobId

JOBS = st.sampled_from([JobId(f"j-{n}") for n in range(6)])
TIMES = st.integers(0, 9).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), JOBS, TIMES), st.tuples(st.just("pop"), JOBS), st.tuples(st.just("look"), TIMES)
    ),
    max_size=300,
)


@given(STEPS)
def test_it_says_what_looking_at_all_would_say(steps: list[tuple[object, ...]]) -> None:
    wakes, plain = Wakes(), dict[JobId, float]()
    for step in steps:
        match step:
            case ("set", job, at):
                wakes[job] = plain[job] = at
            case ("pop", job):
                assert wakes.pop(job, None) == plain.pop(job, None)
            case ("look", now):
                assert wakes.due(now) == [
                    job for at, job in sorted((at, job) for job, at in plain.items()) if at <= now
                ]
        assert wakes.earliest() == min(plain.values(), default=None)
        assert dict(wakes) == plain
        assert len(wakes._heap) <= 2 * len(plain) + 65
