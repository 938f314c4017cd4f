"""Scripted worlds by name: one for each thing that must not break."""

from __future__ import annotations

from dataclasses import replace

from everstep.model.gang import Gang, SlotGroup, ZoneRule
from everstep.model.ids import JobId
from everstep.model.offers import BillingRule, MachineRequirement, MachineType, Market, Offer
from everstep.model.task import CheckpointSpec, Objective, OnNoCapacity, Recovery, SpotMode, Task, Work
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

JOB = JobId("j-1")
V100 = MachineType("p3.2xlarge", "V100", 1, 8, 61)
SHARED = {"a": "/shared", "b": "/shared", "c": "/shared"}


def offer(zone: str, market: Market, price: float, available: int | None = None) -> Offer:
    return Offer("box", "r", zone, V100, market, price, 3.0, 0.0, "script", BillingRule(1.0, 0.0), available)


PLENTY = (
    offer("a", Market.SPOT, 1.0),
    offer("b", Market.SPOT, 1.2),
    offer("c", Market.SPOT, 1.4),
    offer("a", Market.ON_DEMAND, 3.0),
    offer("b", Market.ON_DEMAND, 3.0),
)
ON_DEMAND_ONLY = tuple(o for o in PLENTY if o.market is Market.ON_DEMAND)
DRY = tuple(replace(o, available=0) for o in PLENTY)


def task(nodes: int = 2, *, outputs: tuple[str, ...] = (), **fields: object) -> Task:
    gang = Gang((SlotGroup("worker", MachineRequirement(), nodes, zones=ZoneRule.ANY),))
    return replace(
        Task(name="t", run="true", gang=gang, outputs=outputs, checkpoint=CheckpointSpec()),
        **fields,  # type: ignore[arg-type]
    )


def world(name: str, wanted: Task | None = None, **fields: object) -> ScriptedWorld:
    plain = ScriptedWorld(name, (Submission(1.0091, JOB, wanted or task()),), (MarketAt(0.0, PLENTY),), shared=SHARED)
    return replace(plain, **fields)  # type: ignore[arg-type]


def _fault(at: float, kind: FaultKind, who: str, seconds: float = 0.0) -> Fault:
    return Fault(at, kind, who, seconds)


PREEMPT, KILL = FaultKind.PREEMPT, FaultKind.KILL

WORLDS = (
    world("calm"),
    world("one_machine", task(1, outputs=("out",))),
    world("child_lost_with_notice", faults=(_fault(22.3071, PREEMPT, "rank:1", 15.0113),)),
    world("master_lost_without_notice", faults=(_fault(25.1173, KILL, "rank:0"),)),
    world("child_preempted_at_once", faults=(_fault(25.1173, PREEMPT, "rank:1"),)),
    world(
        "two_losses_at_once",
        task(3),
        faults=(_fault(24.0173, PREEMPT, "rank:1"), _fault(24.0173, KILL, "rank:2")),
        until=220.0,
    ),
    world("notice_for_all", faults=(_fault(24.1, PREEMPT, "rank:0", 20.03), _fault(24.1, PREEMPT, "rank:1", 20.03))),
    world(
        "drought_then_on_demand",
        markets=(MarketAt(0.0, PLENTY), MarketAt(20.0, ON_DEMAND_ONLY), MarketAt(90.0, PLENTY)),
        faults=(_fault(26.0173, PREEMPT, "rank:0"),),
        until=220.0,
    ),
    world(
        "all_dry_for_a_while",
        task(spot=SpotMode.TRUE, recovery=Recovery(on_no_capacity=OnNoCapacity.WAIT)),
        markets=(MarketAt(0.0, DRY), MarketAt(31.0, PLENTY)),
    ),
    world(
        "no_capacity_is_fatal",
        task(recovery=Recovery(on_no_capacity=OnNoCapacity.FAIL)),
        markets=(MarketAt(0.0, ()),),
        until=60.0,
    ),
    world(
        "user_errors_until_failed",
        task(recovery=Recovery(max_restarts=1)),
        trainings={JOB: TrainingScript(fails_at=(9, 17, 21))},
        until=150.0,
    ),
    world(
        "user_error_then_success",
        task(recovery=Recovery(max_restarts=2)),
        trainings={JOB: TrainingScript(fails_at=(9,))},
    ),
    world("crash_by_fault", task(recovery=Recovery(max_restarts=1)), faults=(_fault(30.3, FaultKind.CRASH, "rank:1"),)),
    world("pause_unpause", requests=(Request(30.017, "pause", text="lunch"), Request(71.019, "unpause"))),
    world("cancel_while_running", requests=(Request(30.017, "cancel"),), until=80.0),
    world("cancel_while_launching", requests=(Request(1.4017, "cancel"),), until=60.0),
    world("cancel_while_booting", requests=(Request(4.017, "cancel"), Request(4.517, "pause")), until=60.0),
    world("cancel_while_stopping", requests=(Request(30.017, "pause"), Request(30.067, "cancel")), until=80.0),
    world("cancel_paused", requests=(Request(30.017, "pause"), Request(60.067, "cancel")), until=90.0),
    world("retry_after_cancel", requests=(Request(30.017, "cancel"), Request(60.067, "retry")), until=180.0),
    world("restore_older", requests=(Request(35.017, "restore", text="1:6"),)),
    world("exec", requests=(Request(25.017, "exec", text="nvidia-smi"), Request(2.0, "exec", text="too early"))),
    world("silent_node_that_comes_back", faults=(_fault(25.2, FaultKind.FREEZE, "rank:1", 31.07),), until=220.0),
    world("short_freeze", faults=(_fault(25.2, FaultKind.FREEZE, "rank:1", 3.07),)),
    world("agent_restarted", faults=(_fault(25.2, FaultKind.RESTART, "rank:1", 2.03),), until=220.0),
    world("launch_no_capacity", launches=(LaunchScript(error="no_capacity"), LaunchScript(0.6133))),
    world("launch_quota_exceeded", launches=(LaunchScript(error="quota_exceeded"),)),
    world("launch_price_above_max", launches=(LaunchScript(0.9, error="price_above_max"),)),
    world("launch_bad_request", launches=(LaunchScript(error="bad_request"),), until=60.0),
    world("launch_unauthorized", launches=(LaunchScript(error="unauthorized"),)),
    world("launch_throttled", launches=(LaunchScript(first=("throttled", "throttled", "unreachable")),)),
    world("launch_answer_lost", launches=(LaunchScript(lost_answer=True), LaunchScript(0.7, lost_answer=True))),
    world("setup_fails", agents=(AgentScript(setup_rc=3),), until=80.0),
    world("machine_that_never_joins", agents=(AgentScript(boot_s=None),), until=720.0),
    world("unreachable_peer", agents=(AgentScript(), AgentScript(unreachable=True)), until=220.0),
    world(
        "vendor_does_not_answer",
        faults=(_fault(24.0, FaultKind.API_DOWN, "", 15.0), _fault(26.1, KILL, "rank:1")),
        until=220.0,
    ),
    world("disks", shared={}, faults=(_fault(25.2, PREEMPT, "rank:1"),), until=220.0),
    world("disks_with_outputs", task(outputs=("out",)), shared={}, until=120.0),
    world(
        "three_jobs",
        submissions=tuple(Submission(1.0 + n * 0.7013, JobId(f"j-{n}"), task(1 + n % 2)) for n in range(1, 4)),
        faults=(_fault(24.07, PREEMPT, "machine:2"), _fault(27.01, KILL, "machine:1")),
        requests=(Request(40.0171, "cancel", JobId("j-3")),),
        until=240.0,
    ),
)
_TIMED = {"work": Work(hours=0.0114), "objective": Objective(deadline_s=900.0)}
"""What policies ask for that weigh a deadline: 40 steps of 1.03 s."""
SEAM = tuple(
    world(
        f"seam_{policy}",
        task(1, policy=policy, recovery=Recovery(cooldown_s=10.0), **_TIMED),
        markets=(MarketAt(0.0, PLENTY), MarketAt(25.0, ON_DEMAND_ONLY), MarketAt(90.0, PLENTY)),
        faults=(_fault(26.0173, PREEMPT, "rank:0"),),
        until=420.0,
    )
    for policy in ("spot_only", "spell", "incl", "uniform_progress", "failover", "cheapest", "utility", "auto")
)
_LONG = {JOB: TrainingScript(steps=200)}
_DROUGHT = (MarketAt(0.0, PLENTY), MarketAt(25.0, ON_DEMAND_ONLY), MarketAt(90.0, PLENTY))


def _moving(
    name: str,
    nodes: int = 1,
    zones: ZoneRule = ZoneRule.ANY,
    *,
    launches: tuple[LaunchScript, ...] = (),
    agents: tuple[AgentScript, ...] = (),
    faults: tuple[Fault, ...] = (),
    requests: tuple[Request, ...] = (),
) -> ScriptedWorld:
    """On-demand in a drought, spot again when it ends; 200 steps, 206 s. Machines above 2 x ``nodes`` are movers."""
    timed = {"work": Work(hours=0.0572), "objective": Objective(deadline_s=900.0)}
    wanted = task(nodes, policy="incl", recovery=Recovery(cooldown_s=10.0), **timed)
    wanted = replace(wanted, gang=Gang((replace(wanted.gang.groups[0], zones=zones),)))
    lost = (_fault(26.0173 + 0.001 * rank, PREEMPT, f"rank:{rank}") for rank in range(nodes))
    return world(
        name, wanted, markets=_DROUGHT, trainings=_LONG, faults=(*lost, *faults), until=420.0,
        launches=(*[LaunchScript()] * (2 * nodes), *launches), agents=(*[AgentScript()] * (2 * nodes), *agents),
        requests=requests,
    )  # fmt: skip


MOVES = (
    _moving("moves_back_to_spot"),
    _moving("gang_moves_back_to_spot", 2),
    _moving("gang_moves_to_one_zone", 2, ZoneRule.SAME_ZONE),
    _moving("move_is_refused", launches=(LaunchScript(error="no_capacity"),)),
    _moving("half_of_a_move_is_refused", 2, launches=(LaunchScript(), LaunchScript(error="no_capacity"))),
    _moving("mover_never_joins", agents=(AgentScript(boot_s=None),)),
    _moving("mover_is_preempted", faults=(_fault(95.0173, PREEMPT, "machine:3"),)),
    _moving("mover_is_preempted_while_the_gang_stops", faults=(_fault(98.6, PREEMPT, "machine:3"),)),
    _moving("relieved_machine_dies_during_the_move", faults=(_fault(95.0173, KILL, "machine:2"),)),
    _moving("cancelled_during_the_move", requests=(Request(95.0171, "cancel"),)),
    _moving("paused_during_the_move", requests=(Request(95.0171, "pause"), Request(130.0171, "unpause"))),
)
WORLDS = (*WORLDS, *SEAM, *MOVES)
BY_NAME = {w.name: w for w in WORLDS}
