"""What setup and run find in their environment, and that docs/environment.md says exactly that."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.agent import environment
from everstep.agent.environment import Node
from everstep.agent.orders import Orders, parse
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec

NODE = Node(
    "i-1", "10.0.0.1", 0, Path("/root/workdir"), Path("/root/checkpoints"), "mark", objects=Path("/root/objects.sock")
)
IF_WANTED = {hs.ENV_CHECKPOINT_MIRROR, hs.ENV_CHECKPOINT_AUDIT, hs.ENV_OBJECTS}


@pytest.fixture
def orders() -> Orders:
    return parse(
        {
            hs.ORDERS_VERSION: 1,
            hs.ORDERS_PHASE: hs.PHASE_RUN,
            hs.ORDERS_ATTEMPT: 3,
            hs.ORDERS_SPEC: spec("true", num_nodes=2, ranks_per_node=2, name="t", envs={"NODE_RANK": "mine"}),
            hs.ORDERS_NODE_RANK: 1,
            hs.ORDERS_MASTER: {"address": "10.0.0.1", "port": 1234},
        }
    )


def documented(repository: Path) -> dict[str, list[str]]:
    """Names in the first column of each section's table."""
    sections = (repository / "docs" / "environment.md").read_text().split("\n## ")[1:]
    return {s.split("\n", 1)[0]: re.findall(r"^\| `(\w+)` \|", s, re.MULTILINE) for s in sections}


def test_the_page_lists_exactly_what_is_set(repository: Path, orders: Orders) -> None:
    base = environment.base(NODE, {}, orders)
    run = environment.run(NODE, {}, orders, reports=Path("/r"), control=Path("/c"))
    rank = environment.rank(run, orders, 0)
    listed = documented(repository)
    assert {section: len(names) - len(set(names)) for section, names in listed.items()} == dict.fromkeys(listed, 0)
    assert {section: set(names) for section, names in listed.items()} == {
        "setup, run and exec": set(base) - {"NODE_RANK"} | IF_WANTED,
        "run": set(run) - set(base) | {"NODE_RANK"},
        "Ranks that the agent starts": set(rank) - set(run),
    }


def test_every_name_of_the_handshake_is_set(orders: Orders) -> None:
    env = environment.run(NODE, {}, orders, reports=Path("/r"), control=Path("/c"))
    names = {value for name, value in vars(hs).items() if name.startswith("ENV_")}
    # Which pipe it is, its keeper knows.
    assert names - IF_WANTED - {hs.ENV_LOG_PIPE} <= set(env)
    assert not IF_WANTED & set(env)


def test_an_audit_is_asked_for_if_the_task_does(orders: Orders) -> None:
    wanted = replace(orders, spec=replace(orders.spec, checkpoint_audit=20))
    env = environment.run(NODE, {}, wanted, reports=Path("/r"), control=Path("/c"))
    assert env[hs.ENV_CHECKPOINT_AUDIT] == "20"


def test_ours_wins_over_the_task_and_the_task_over_the_machine(orders: Orders) -> None:
    env = environment.run(NODE, {"NODE_RANK": "the machine's"}, orders, reports=Path("/r"), control=Path("/c"))
    assert env["NODE_RANK"] == "1"
    assert environment.base(NODE, {"NODE_RANK": "the machine's"}, orders)["NODE_RANK"] == "mine"


def test_what_is_said_to_be_the_same_is_the_same(repository: Path, orders: Orders) -> None:
    run = environment.run(NODE, {}, orders, reports=Path("/r"), control=Path("/c"))
    env = environment.rank(run, orders, 1)
    text = (repository / "docs" / "environment.md").read_text()
    same = re.findall(r"^\| `(\w+)` \| as `(\w+)` \|$", text, re.MULTILINE)
    assert len(same) > 10
    assert [(a, b) for a, b in same if env[a] != env[b]] == []


# --- The checkpoint folder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [None, 2])
def test_the_checkpoint_folder_is_there_before_anything_runs(
    server: AgentServer, agents: Agents, tmp_path: Path, ranks: int | None
) -> None:
    shared = tmp_path / "shared" / "j-1" / "checkpoints"
    driver = Driver(server, agents.start())
    what = spec(
        "echo $EVERSTEP_ATTEMPT > $EVERSTEP_CHECKPOINT_DIR/run-${RANK:-0}",
        setup="echo x > $EVERSTEP_CHECKPOINT_DIR/setup",
        checkpoint_dir=str(shared),
        checkpoint_shared=True,
        **({"ranks_per_node": ranks} if ranks else {}),
    )
    driver.run(what)
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    names = ["run-0", "run-1"][: ranks or 1]
    assert sorted(path.name for path in shared.iterdir()) == [*names, "setup"]


def test_the_folder_of_the_agents_choice_is_there_too(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec("echo x > $EVERSTEP_CHECKPOINT_DIR/x"))
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    assert (agent.root / "checkpoints" / "x").read_text() == "x\n"


def test_one_that_cannot_be_made_is_said_in_the_log_and_run_starts_all_the_same(
    server: AgentServer, agents: Agents, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    driver = Driver(server, agents.start())
    driver.run(spec("echo went on", checkpoint_dir=str(tmp_path / "file" / "saves")))
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    driver.log(f"[everstep] cannot make the folder {tmp_path}/file/saves: Not a directory\nwent on\n")
