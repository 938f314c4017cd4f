"""kill -9 of the server at any instant, in any world: nothing is lost, nothing is left, nothing is done twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.control.kernel import Kernel
from everstep.model.errors import Conflict
from everstep.model.events import CancelRequested, decode
from everstep.model.ids import JobId
from everstep.model.job import InstancePhase
from everstep.testing.scripted import ScriptedWorld
from everstep.testing.scripted_run import DEPLOYMENT
from tests.control.site import Site, on_site
from tests.parity.generated import worlds

KILLS = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 300)), min_size=1, max_size=3)


@settings(max_examples=max(settings().max_examples // 3, 10))
@given(worlds(), KILLS, st.sampled_from((0.0, 0.0, 0.23)))
def test_a_server_killed_at_any_instant_loses_nothing_and_leaves_nothing(
    drawn: ScriptedWorld, kills: list[tuple[int, int]], slow_s: float
) -> None:
    async def main(site: Site) -> None:
        site.store.delay_s = slow_s
        await site.start()
        for after, away in kills:
            await site.clock.sleep(after / 10 + 0.00037)
            await site.kill()
            await site.clock.sleep(away / 10 + 0.00053)
            await site.revive()
        await site.clock.sleep(120.0)
        for job in list(site.controller.states):
            try:
                await site.controller.ask(job, CancelRequested("u"))
            except Conflict:
                continue
        await site.clock.sleep(400.0)
        await _check(site)

    on_site(main, drawn, exclusive=True)


async def _check(site: Site) -> None:
    states = {job: site.controller.states[job] for job in site.controller.states}
    folded = Kernel(DEPLOYMENT, strict=True)
    for record in await site.lines():
        folded.replay(JobId(record.stream.removeprefix("job/")), decode(record.kind, record.body), record.at)
    assert folded.states == states
    assert all(not s.quarantined for s in states.values()), [s.quarantined for s in states.values()]
    assert site.controller.unknown() == []
    tokens = Counter(m.request.token for m in site.provider.machines.values())
    assert all(count == 1 for count in tokens.values()), "one launch, one machine"
    for machine in site.provider.machines.values():
        assert not machine.alive, "an orphan"
        known = states[machine.request.job].by_instance(machine.instance)
        assert known is not None
        assert known.phase is InstancePhase.ENDED
        assert (known.started_at, known.ended_at) == (machine.started_at, machine.ended_at), "what is billed"
    assert all(s.phase.ended for s in states.values()), {s.phase for s in states.values()}
