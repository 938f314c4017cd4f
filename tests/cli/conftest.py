"""A server that is not there: the client's methods, answered from memory and written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from everstep.cli import link
from everstep.cli.main import execute
from everstep.client import results as r
from everstep.client.home import Home
from everstep.client.placing import placing
from everstep.client.placing.wheel import build_wheel
from everstep.model.errors import BadInput, NotFound, Problem
from everstep.model.task import Task

NOW = 1_900_000_000.0

RUNNING = r.JobDetail(
    job="j-aaaa1111",
    name="charlm",
    phase="running",
    goal="run",
    since=NOW,
    submitted_at=NOW - 100,
    attempt=2,
    step=1200,
    total=5000,
    nodes=2,
    instances={"alive": 2, "ready": 2},
    market="spot",
    price_usd_per_h=0.8,
    cost_usd=0.0123,
    user="ann",
    project="default",
    preemptions=1,
    recoveries=1,
    metrics={"loss": 1.8321},
    attempts=(
        r.AttemptView(
            attempt=1,
            phase="ended",
            begun_at=NOW - 90,
            ended_at=NOW - 30,
            step=800,
            cause="preemption",
            evidence="i-1 was taken back",
        ),
        r.AttemptView(attempt=2, phase="running", begun_at=NOW - 25, base="1:800", step=1200),
    ),
    machines=(
        r.InstanceView(
            token="ev01", phase="ended", slot="0.0", zone="box-a", instance="i-1", end="preempted", market="spot"
        ),
        r.InstanceView(token="ev02", phase="ready", slot="0.1", zone="box-b", instance="i-2", market="on_demand"),
    ),
    saves=(r.CheckpointView(attempt=2, step=1100, at=NOW - 5, bytes=2048, durable=True),),
)
WAITING = replace(
    RUNNING,
    job="j-bbbb2222",
    name="sweep [red]",
    phase="acquiring",
    wait="no capacity in 6 pools, next try in 40 s",
    step=None,
    total=None,
    instances={},
    market="",
    price_usd_per_h=0.0,
    attempts=(),
    machines=(),
    saves=(),
    metrics={},
)
OFFER = r.OfferView(
    provider="local",
    region="box",
    zone="box-a",
    machine_type="m1",
    market="spot",
    accelerator="V100",
    accelerator_count=1,
    cpus=8,
    memory_gib=61,
    price_usd_per_h=0.4,
    on_demand_usd_per_h=1.2,
    as_of=NOW,
    source="trace",
    available=3,
)
PLAN = r.PlanView(
    offers=(OFFER,),
    choice={"market": "spot", "zone": "box-a", "price_usd_per_h": 0.4},
    hourly_usd=0.8,
    reasons=("cheapest",),
    warnings=("be careful",),
)


@dataclass
class FakeClient:
    """What ``everstep.client.api.Client`` promises, as far as commands use it."""

    found: dict[str, r.JobDetail] = field(default_factory=lambda: {j.job: j for j in (RUNNING, WAITING)})
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    parts: list[r.LogPart] = field(default_factory=list)
    failure: Exception | None = None
    endings: Iterator[r.JobDetail] | None = None
    closed: int = 0

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed += 1

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    def status(self, job: str) -> r.JobDetail:
        self._called("status", job)
        if self.endings is not None:
            return next(self.endings)
        found = [detail for known, detail in self.found.items() if known.startswith((job, f"j-{job}"))]
        if not found:
            raise NotFound(f"there is no job '{job}'")
        if len(found) > 1:
            raise BadInput(Problem("JOB", "", f"'{job}' begins {len(found)} jobs"))
        return found[0]

    def jobs(self, *, all: bool = False, limit: int | None = None) -> list[r.JobView]:
        self._called("jobs", all, limit)
        return list(self.found.values())[:limit]

    def events(self, job: str, *, after: int = 0, follow: bool = False) -> Iterator[r.EventView]:
        self._called("events", job, after, follow)
        yield r.EventView(1, NOW, "JobSubmitted", "submitted by ann", {"user": "ann"})
        yield r.EventView(2, NOW + 1, "Decided", "launch 2", {})

    def why(self, job: str, *, limit: int | None = None) -> list[r.DecisionView]:
        self._called("why", job, limit)
        candidate = r.CandidateView("box-a spot", 0.4, 0.5, "taken")
        return [
            r.DecisionView(NOW + 9, wait="a machine to boot"),
            r.DecisionView(NOW, ("launch 0.0",), (candidate,), ("cheapest",), {"seed": "7"}),
        ]

    def cost(self, job: str) -> r.AccountView:
        self._called("cost", job)
        line = r.LineView(
            kind="compute",
            resource="i-1",
            zone="box-a",
            machine_type="m1",
            market="spot",
            start=NOW,
            end=NOW + 60,
            quantity=0.5,
            price_usd=0.4,
            cost_usd=0.2,
            reclaimed=True,
        )
        return r.AccountView(
            lines=(line,),
            cost_usd=0.2,
            on_demand_cost_usd=0.6,
            saved_usd=0.4,
            saved_fraction=2 / 3,
            useful_instance_s=100.0,
            billed_instance_s=120.0,
            lost_steps=3,
            overhead={"boot": 12.0, "lost_work": 0.0},
        )

    def costs(self) -> r.Costs:
        self._called("costs")
        return r.Costs((r.JobCost("j-aaaa1111", "charlm", 0.2, 0.6, 2 / 3),), 0.2)

    def checkpoints(self, job: str) -> list[r.CheckpointView]:
        self._called("checkpoints", job)
        return [
            r.CheckpointView(attempt=1, step=800, at=NOW, bytes=2048),
            r.CheckpointView(attempt=1, step=900, at=NOW, visible=False, durable=False),
            r.CheckpointView(attempt=1, step=950, at=NOW, kept=False, keep=3),
        ]

    def outputs(self, job: str) -> list[r.OutputFile]:
        self._called("outputs", job)
        return [r.OutputFile("node-0/model/weights.pt", 2048), r.OutputFile("node-0/log", 3)]

    def fetch_output(self, job: str, path: str, target: Path) -> Path:
        self._called("fetch_output", job, path)
        target.write_text(path)
        return target

    def restore(self, job: str, step: int, *, attempt: int | None = None) -> str:
        self._called("restore", job, step, attempt)
        return f"{attempt or 1}:{step}"

    def logs(self, job: str, **filters: Any) -> Iterator[r.LogPart]:
        self._called("logs", job, {name: value for name, value in filters.items() if value is not None})
        yield from self.parts

    def cancel(self, job: str, *, reason: str = "") -> str:
        self._called("cancel", job, reason)
        return "releasing"

    def pause(self, job: str, *, reason: str = "") -> str:
        self._called("pause", job, reason)
        return "stopping"

    def unpause(self, job: str) -> str:
        self._called("unpause", job)
        return "acquiring"

    def retry(self, job: str, *, secrets: Any = None) -> str:
        self._called("retry", job, secrets)
        return "acquiring"

    def exec(self, job: str, command: str) -> str:
        self._called("exec", job, command)
        return "e1"

    def exec_result(self, job: str, exec_id: str) -> r.ExecView:
        self._called("exec_result", job, exec_id)
        return r.ExecView(True, (r.ExecResult("i-1", 0, "a\nb\n"), r.ExecResult("i-2", 3, "c")))

    def offers(self, *, accelerator: str | None = None, all: bool = False) -> list[r.OfferView]:
        self._called("offers", accelerator, all)
        return [OFFER]

    def plan(self, task: Task) -> r.PlanView:
        self._called("plan", task)
        return PLAN

    def has_upload(self, digest: str) -> bool:
        self._called("has_upload", digest)
        return False

    def upload(self, archive: Path) -> str:
        self._called("upload", archive.name)
        return archive.name.removesuffix(".tar.gz")

    def submit(self, task: Task, *, secrets: Any = None, project: str | None = None) -> str:
        self._called("submit", task, secrets, project)
        return "j-aaaa1111"

    def called(self, verb: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == verb]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(link, "connected", lambda: fake)
    monkeypatch.setattr(link, "started", lambda: fake)
    monkeypatch.setattr(link, "plan", lambda task: fake.plan(task))
    return fake


@dataclass(frozen=True)
class Done:
    """How a command line went."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs ``everstep WORDS`` in this process, away from any real installation."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("EVERSTEP_DEBUG", raising=False)

    def run(*words: str) -> Done:
        code = execute(list(words))
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """That of ``cli``; not made yet."""
    return Home(tmp_path / "home")


@pytest.fixture
def one_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is set up gets the package as it is now, whoever edits the code meanwhile."""
    wheel = build_wheel()
    monkeypatch.setattr(placing, "build_wheel", lambda: wheel)


def lines(text: str) -> Sequence[str]:
    return text.splitlines()
