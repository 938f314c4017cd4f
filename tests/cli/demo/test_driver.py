from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from everstep.cli.demo import driver as driving
from everstep.cli.demo import scenario
from everstep.cli.demo.driver import Driver, Sight, is_training
from everstep.cli.demo.live import Plain, drawn
from everstep.client import results as r
from everstep.client.home import NoServer
from everstep.model.errors import EverstepError
from tests.cli.conftest import NOW

MACHINES = tuple(
    r.InstanceView(token=f"ev{n}", phase="ready", slot=f"0.{n}", instance=f"i-{n}", market="spot", zone="harbour-a")
    for n in range(2)
)
TRAINING = r.JobDetail(
    job="j-demo0001",
    name="charlm",
    phase="running",
    step=1,
    total=100,
    nodes=2,
    attempt=1,
    attempts=(r.AttemptView(attempt=1, phase="running", begun_at=NOW, first_step_at=NOW, members=("i-0", "i-1")),),
    machines=MACHINES,
    metrics={"loss": 2.5},
)


@dataclass
class FakeStage:
    """Writes down what is broken."""

    broken: list[tuple[str, Any]] = field(default_factory=list)

    def box(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.broken.append((method, (params or {})["instance"]))

    def kill_server(self) -> None:
        self.broken.append(("kill server", ""))

    def start_server(self) -> None:
        self.broken.append(("start server", ""))


@dataclass
class FakeClient:
    """Answers from a script; an error in it is raised."""

    script: Iterator[Any]
    told: list[r.EventView] = field(default_factory=list)

    def status(self, job: str) -> r.JobDetail:
        answer = next(self.script)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, r.JobDetail)
        return answer

    def events(self, job: str, *, after: int = 0) -> Iterator[r.EventView]:
        yield from (event for event in self.told if event.version > after)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "_POLL_S", 0.0)
    monkeypatch.setattr(scenario, "SERVER_AWAY_S", 0.0)


def perform(*answers: Any, told: list[r.EventView] | None = None) -> tuple[FakeStage, Driver, list[Sight]]:
    stage, seen = FakeStage(), []
    client = FakeClient(iter([*answers, replace(TRAINING, phase="succeeded", step=100)]), told or [])
    driver = Driver(stage, client, "j-demo0001", 100, seen.append)  # type: ignore[arg-type]
    assert driver.run().phase == "succeeded"
    return stage, driver, seen


def at(step: int) -> r.JobDetail:
    return replace(TRAINING, step=step)


def test_every_fault_hits_whom_it_should_in_order() -> None:
    away = NoServer("killed")
    stage, driver, _ = perform(at(5), at(13), at(30), away, away, at(31), at(45), at(60), at(61))
    assert stage.broken == [
        ("preempt", "i-1"),
        ("kill server", ""),
        ("start server", ""),
        ("preempt", "i-0"),
        ("kill", "i-1"),
    ]
    assert [act["what"] for act in driver.acts] == [
        "a child lost with notice",
        "the server killed with -9",
        "the server started again",
        "the master lost with notice",
        "a node lost without notice",
    ]


def test_nothing_is_broken_while_the_last_fault_is_not_mended() -> None:
    noticed = replace(at(30), machines=(MACHINES[0], replace(MACHINES[1], notice="terminate")))
    restoring = replace(at(30), attempts=(replace(TRAINING.attempts[0], first_step_at=None),))
    for not_training in (replace(at(30), phase="acquiring"), noticed, restoring, replace(at(30), attempts=())):
        assert not is_training(not_training)
        stage, _, _ = perform(not_training, not_training)
        assert stage.broken == []
    assert is_training(at(30))


def test_the_drought_is_told_once_and_our_own_notices_are_not_taken_for_it() -> None:
    def notice(version: int, instance: str) -> r.EventView:
        return r.EventView(version, NOW, "NoticeReceived", f"{instance} is warned", {"instance": instance})

    _, driver, _ = perform(at(13), at(14), told=[])
    assert driver.acts[0]["target"] == "i-1"
    told: list[r.EventView] = []
    client = FakeClient(iter([at(13), at(14), replace(at(15), phase="succeeded")]), told)
    driver = Driver(FakeStage(), client, "j", 100, lambda sight: None)  # type: ignore[arg-type]

    def show(sight: Sight) -> None:
        told[:] = [notice(1, "i-1"), notice(2, "i-0"), notice(3, "i-5")]

    driver.show = show
    driver.run()
    assert [act["what"] for act in driver.acts].count(scenario.DROUGHT) == 1


def test_a_demo_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "LONGEST_S", -1.0)
    with pytest.raises(EverstepError, match="did not end within"):
        perform(at(1))


def test_the_views_show_machines_progress_and_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    sight = Sight(NOW, at(40), told=[(NOW + 3, "i-1 is warned", False), (NOW + 4, "the master lost", True)])
    plain = Plain()
    plain(sight)
    plain(sight)
    out = capsys.readouterr().out
    assert out.count("** the master lost") == 1
    assert "attempt 1  running  step 40/100  loss 2.5" in out
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as captured:
        console.print(drawn(sight))
        console.print(drawn(Sight(NOW, away=True)))
    for words in ("i-0", "harbour-a", "step 40/100", "the master lost", "waiting for the first word"):
        assert words in captured.get()
