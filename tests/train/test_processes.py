"""Real processes that are killed, stopped and fenced, and come back."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.model import handshake
from everstep.train.folder import Folder
from everstep.train.lineage import Position, Record, visible
from tests.train.zygote import Child, Zygote

SCRIPT = Path(__file__).parent / "tiny_script.py"
STEPS = 20


def env(**more: object) -> dict[str, str]:
    made: dict[str, object] = {handshake.ENV_CHECKPOINT_EVERY: 0, "TINY_STEPS": STEPS, **more}
    return {name: str(value) for name, value in made.items()}


def losses(text: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)}


def weights(text: str) -> str:
    found = re.findall(r"^weights (\w+)$", text, re.MULTILINE)
    assert len(found) == 1, text
    return str(found[0])


def eventually(what: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < deadline, "did not come in time"
        time.sleep(0.01)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    (tmp_path / "reports").mkdir()
    return tmp_path


def facts(place: Path, rank: int = 0) -> list[dict[str, object]]:
    path = place / "reports" / f"facts-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    "variant", [{}, {"TINY_WORKERS": 2}, {"TINY_OWN_LOOP": 1}], ids=["loader", "workers", "own loop"]
)
def test_killed_at_random_steps_ends_with_the_same_weights(
    scripts: Zygote, place: Path, variant: dict[str, object]
) -> None:
    assert scripts.run([SCRIPT], cwd=place / "plain", log=place / "plain.log", env=env(**variant)) == 0
    undisturbed = (place / "plain.log").read_text()
    deaths = sorted(random.Random(str(variant)).sample(range(2, STEPS + 1), 4))
    for number, death in enumerate([*deaths, 0], start=1):
        log = place / f"{number}.log"
        # In turn, saves after every step and seldom ones, so that steps are lost and done again.
        every = {handshake.ENV_CHECKPOINT_EVERY: 0.05 if number % 2 else 0}
        rc = scripts.run([SCRIPT], cwd=place, log=log, env=env(TINY_DIE_AT=death, **variant, **every))
        assert rc == (-9 if death else 0), log.read_text()
        text = log.read_text()
        assert f"attempt {number}" in text
        begun = losses(undisturbed)
        assert losses(text) == {step: begun[step] for step in losses(text)}, "another loss than undisturbed"
    assert weights(text) == weights(undisturbed)


def gang(scripts: Zygote, place: Path, name: str, *, folders: list[Path], **more: object) -> list[Child]:
    """Two ranks; ``more`` goes to rank 1 alone if it begins with TINY_DIE."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": 2}
    for_all = {key: value for key, value in more.items() if not key.startswith("TINY_DIE")}
    return [
        scripts.start(
            [SCRIPT],
            cwd=place,
            log=place / f"{name}-{rank}.log",
            env=env(
                **{
                    "RANK": rank,
                    "LOCAL_RANK": rank,
                    **common,
                    handshake.ENV_CHECKPOINT_DIR: folders[rank],
                    handshake.ENV_REPORT_DIR: place / "reports",
                    **(more if rank == 1 else for_all),
                }
            ),
        )
        for rank in range(2)
    ]


def both_end(children: list[Child], rc: int = 0) -> None:
    assert [child.wait() for child in children] == [rc, rc], children[0].text() + children[1].text()


def die(children: list[Child]) -> None:
    assert children[1].wait() == -9
    children[0].kill()
    assert children[0].wait() in (-9, 1)


def test_two_ranks_killed_and_resumed_end_with_the_same_weights(scripts: Zygote, place: Path) -> None:
    plain = gang(scripts, place, "plain", folders=[place / "other"] * 2)
    both_end(plain)
    for number, death in enumerate((8, 13), start=1):
        die(gang(scripts, place, str(number), folders=[place / "saves"] * 2, TINY_DIE_AT=death))
    last = gang(scripts, place, "last", folders=[place / "saves"] * 2)
    both_end(last)
    assert "from 2:12 attempt 3" in last[0].text()
    assert weights(last[0].text()) == weights(plain[0].text())
    assert losses(last[1].text()).items() <= losses(plain[1].text()).items()


def test_two_ranks_stop_at_the_same_step_when_one_is_asked(scripts: Zygote, place: Path) -> None:
    more = {"TINY_STEPS": 100_000, handshake.ENV_CHECKPOINT_EVERY: 3600}
    children = gang(scripts, place, "asked", folders=[place / "saves"] * 2, **more)
    eventually(lambda: len(losses(children[1].text())) > 3)
    children[1].terminate()
    both_end(children, handshake.EXIT_SAVED)
    assert max(losses(children[0].text())) == max(losses(children[1].text())) == facts(place)[-1]["step"]


def test_two_machines_without_a_shared_folder(scripts: Zygote, place: Path) -> None:
    """Resumes while both disks live; a lost disk makes the checkpoint unreadable, and that is said, not hidden."""
    disks = [place / "disk0", place / "disk1"]
    apart = {handshake.ENV_NUM_NODES: 2, "LOCAL_RANK": 0, handshake.ENV_CHECKPOINT_SHARED: 0, "TINY_STEPS": 8}
    die(gang(scripts, place, "1", folders=disks, TINY_DIE_AT=5, **apart))
    assert any("not durable" in str(fact.get("text")) for fact in facts(place))
    assert [fact["durable"] for fact in facts(place) if fact["kind"] == "saved"] == [False] * 4
    assert not list(disks[0].rglob("shard-00001.pt"))
    second = gang(scripts, place, "2", folders=disks, **apart)
    both_end(second)
    assert "from 1:4 attempt 2" in second[0].text()
    shutil.rmtree(disks[1])
    third = gang(scripts, place, "3", folders=disks, **apart)
    both_end(third)
    assert "from None attempt 3" in third[0].text()
    assert any("checkpoint 2:8 is skipped" in str(fact.get("text")) for fact in facts(place))


def test_two_machines_whose_disks_come_back_under_other_ranks(scripts: Zygote, place: Path) -> None:
    """The master is lost and its disk goes to the newcomer: the survivor has rank 0 now, and the wrong shard."""
    apart = {handshake.ENV_NUM_NODES: 2, "LOCAL_RANK": 0, handshake.ENV_CHECKPOINT_SHARED: 0, "TINY_STEPS": 12}
    plain = gang(scripts, place, "plain", folders=[place / "plain0", place / "plain1"], **apart)
    both_end(plain)
    disks = [place / "disk0", place / "disk1"]
    for number, death in enumerate((4, 8), start=1):
        die(gang(scripts, place, str(number), folders=disks, TINY_DIE_AT=death, **apart))
        disks.reverse()
    # A shard that is damaged where it is does not become whole by the way.
    torn = next(disks[0].rglob("000000007/shard-00001.pt"))
    torn.write_bytes(bytes(torn.stat().st_size))
    last = gang(scripts, place, "last", folders=disks, **apart)
    both_end(last)
    assert "from 2:6 attempt 3" in last[0].text()
    assert any("checkpoint 2:7 is skipped" in str(fact.get("text")) for fact in facts(place))
    assert weights(last[0].text()) == weights(plain[0].text())
    assert losses(last[1].text()).items() <= losses(plain[1].text()).items()


def under_agent(place: Path, **more: object) -> dict[str, str]:
    return env(
        **{
            handshake.ENV_REPORT_DIR: place / "reports",
            handshake.ENV_CONTROL_FILE: place / "control.json",
            handshake.ENV_CHECKPOINT_EVERY: 3600,
            handshake.ENV_CHECKPOINT_DIR: place / "saves",
            "TINY_STEPS": 100_000,
            "TINY_STEP_S": 0.002,
            **more,
        }
    )


def control(place: Path, **request: object) -> None:
    temporary = place / "control.tmp"
    temporary.write_text(json.dumps(request))
    temporary.replace(place / "control.json")


def test_control_file_saves_holds_goes_on_and_stops(scripts: Zygote, place: Path) -> None:
    child = scripts.start([SCRIPT], cwd=place, log=place / "log", env=under_agent(place, **{handshake.ENV_ATTEMPT: 4}))

    def saves() -> int:
        return sum(fact["kind"] == "saved" for fact in facts(place))

    eventually(lambda: len(losses(child.text())) > 3)
    assert saves() == 0
    control(place, seq=1, save=True, save_by=None, stop=False)
    eventually(lambda: saves() == 1)
    went_on = len(losses(child.text()))
    eventually(lambda: len(losses(child.text())) > went_on + 3)

    control(place, seq=2, save=True, save_by=time.time() + 2.0, stop=False)
    eventually(lambda: saves() == 3)
    stood = len(losses(child.text()))
    time.sleep(0.3)
    assert len(losses(child.text())) == stood, "does not hold still"
    assert facts(place)[-1]["step"] == stood, "held still behind the last save"

    control(place, seq=3, save=False, save_by=None, stop=False)
    eventually(lambda: len(losses(child.text())) > stood + 3)
    control(place, seq=4, save=True, save_by=None, stop=True)
    assert child.wait() == handshake.EXIT_SAVED
    last = max(losses(child.text()))
    assert [fact["kind"] for fact in facts(place)] == ["restored", "saved", "saved", "saved", "saved"]
    assert facts(place)[-1]["step"] == last
    assert (place / "saves" / Position(4, last).folder / "manifest.json").exists()
    progress = json.loads((place / "reports" / "progress-0.json").read_text())
    assert (progress["step"], progress["steps_done"], progress["total"]) == (last, last, 100_000)
    assert progress["stall_s"] > 0
    assert "loss" in progress["metrics"]


@pytest.mark.parametrize("workers", [0, 2])
def test_sigterm_saves_and_exits_75(scripts: Zygote, place: Path, workers: int) -> None:
    child = scripts.start([SCRIPT], cwd=place, log=place / "log", env=under_agent(place, TINY_WORKERS=workers))
    eventually(lambda: len(losses(child.text())) > 3)
    child.terminate()
    assert child.wait() == handshake.EXIT_SAVED, child.text()
    last = max(losses(child.text()))
    assert facts(place)[-1]["step"] == last
    again = under_agent(place, TINY_WORKERS=workers, TINY_STEPS=last + 1)
    assert scripts.run([SCRIPT], cwd=place, log=place / "log2", env=again) == 0, (place / "log2").read_text()
    assert set(losses((place / "log2").read_text())) == {last + 1}


def test_a_fenced_attempt_does_not_start(scripts: Zygote, place: Path) -> None:
    first = under_agent(place, TINY_STEPS=3, **{handshake.ENV_ATTEMPT: 7})
    assert scripts.run([SCRIPT], cwd=place, log=place / "log", env=first) == 0
    late = under_agent(place, TINY_STEPS=5, **{handshake.ENV_ATTEMPT: 6})
    assert scripts.run([SCRIPT], cwd=place, log=place / "late", env=late) == handshake.EXIT_REFUSED
    assert "attempt 6 is too old" in (place / "late").read_text()
    assert not losses((place / "late").read_text())


def test_an_attempt_that_is_fenced_while_it_runs_stops_publishing(scripts: Zygote, place: Path) -> None:
    child = scripts.start(
        [SCRIPT], cwd=place, log=place / "log", env=under_agent(place, **{handshake.ENV_CHECKPOINT_EVERY: 0})
    )
    folder = Folder(place / "saves", pytest.fail)
    eventually(lambda: len(visible(folder.listing())) > 1)
    base = visible(folder.listing())[-1]
    folder.claim(2)
    assert folder.begin(Record(2, base, 1))
    assert child.wait() == handshake.EXIT_REFUSED
    assert "a newer attempt has begun" in child.text()
    assert visible(folder.listing())[-1] == base
    assert facts(place)[-1]["kind"] == "warning"


def test_the_base_can_be_forced(scripts: Zygote, place: Path) -> None:
    variables = under_agent(
        place, TINY_STEPS=6, **{handshake.ENV_CHECKPOINT_EVERY: 0, handshake.ENV_CHECKPOINT_KEEP: 9}
    )
    assert scripts.run([SCRIPT], cwd=place, log=place / "1", env=variables) == 0
    forced = {**variables, handshake.ENV_BASE: "1:2"}
    assert scripts.run([SCRIPT], cwd=place, log=place / "2", env=forced) == 0
    assert losses((place / "2").read_text()) == {s: v for s, v in losses((place / "1").read_text()).items() if s > 2}
    missing = {**variables, handshake.ENV_BASE: "1:5"}
    assert scripts.run([SCRIPT], cwd=place, log=place / "3", env=missing) == handshake.EXIT_REFUSED
    assert "checkpoint 1:5 is not there" in (place / "3").read_text()
