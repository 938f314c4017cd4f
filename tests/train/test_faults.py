"""What goes wrong with checkpoints, each with its text: never a wrong model, never a lost older checkpoint."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from everstep import train
from everstep.model import handshake
from everstep.train.folder import Folder
from everstep.train.lineage import Position, visible
from everstep.train.shard import read_shard
from tests.train.counter import Counter
from tests.train.test_attempt import facts, go, refused, seeded, shard, there
from tests.train.test_processes import env, eventually, gang, losses, under_agent, weights
from tests.train.zygote import Zygote

FAULTY = Path(__file__).parent / "faulty_script.py"
SCRIPT = Path(__file__).parent / "tiny_script.py"
IN_BACKGROUND = 0.0001

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "plain").mkdir()
    (tmp_path / "reports").mkdir(exist_ok=True)
    return tmp_path


def edit_manifest(place: Path, position: str, **changes: Any) -> None:
    path = shard(place, position).parent / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- checkpoints of others ------------------------------------------------------------------------------------------


def test_another_torch_is_refused(place: Path) -> None:
    seeded(4, until=4)
    edit_manifest(place, "1:3", torch="1.13.1")
    refused(f"written with torch 1.13.1, this is {torch.__version__}: training on would not be exact; install torch")
    assert there(place) == "1:1 1:2 1:3"


def test_a_newer_format_is_refused_and_not_skipped(place: Path) -> None:
    seeded(4, until=4)
    edit_manifest(place, "1:3", format=3)
    refused("checkpoint 1:3 has format 3, this everstep reads up to 2: install the version that wrote it")


def test_a_checkpoint_of_the_first_format_is_read(place: Path) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    seeded(9, until=5)
    path = shard(place, "1:4")
    folder = Folder(place / "saves", pytest.fail)
    manifest = folder.read_manifest(next(p for p in visible(folder.listing()) if p.step == 4))
    assert manifest is not None
    torch.save(read_shard(folder, manifest, 0), path)
    content = path.read_bytes()
    raw = json.loads((path.parent / "manifest.json").read_text())
    del raw["format"]
    raw["shards"][0].update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    (path.parent / "manifest.json").write_text(json.dumps(raw))
    assert torch.equal(go(9).value, undisturbed)
    assert facts(place, "restored")[-1]["base"] == "1:4"


@pytest.mark.parametrize("where", ["first", "middle", "index", "length", "last"])
def test_no_byte_of_a_shard_goes_unchecked(place: Path, where: str) -> None:
    counter = Counter(100_000)
    run = train.attach(counter=counter, every=0)
    for _ in run.steps([0], total=2):
        counter.value += 1
    path = shard(place, "1:2")
    content = bytearray(path.read_bytes())
    at = {"first": 0, "middle": 200_000, "index": len(content) - 100, "length": len(content) - 8, "last": -1}[where]
    content[at] ^= 1
    path.write_bytes(content)
    train.attach(counter=Counter(100_000))
    assert facts(place, "restored")[-1]["base"] == "1:1"
    assert any("does not have the digest of the manifest" in fact["text"] for fact in facts(place, "warning"))


# --- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may become larger than 200 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("every", [0, IN_BACKGROUND])
def test_a_shard_that_is_too_large_for_the_disk(place: Path, small_files: None, every: float) -> None:
    run = train.attach(counter=Counter(10), every=0)
    list(run.steps([0], total=2))
    big = {"counter": Counter(10)}
    run = train.attach(every=every, **big)
    for step, _ in run.steps([0], total=9):
        time.sleep(0.005)
        if step == 4:
            big["counter"].value = torch.zeros(100_000)
    texts = [fact["text"] for fact in facts(place, "warning")]
    assert texts
    assert all("File too large" in text and "older checkpoints stay" in text for text in texts)
    assert "1:2" in there(place)
    assert not list(place.rglob(".tmp-*"))
    assert not [p for p in (place / "saves").rglob("0000*/0000*") if p.is_dir() and not (p / "manifest.json").exists()]


@pytest.mark.root
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(place: Path, small_disk: Path) -> None:
    seeded(3, until=3)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused(f"checkpoints cannot be kept in {small_disk}: Read-only file system; give a folder that can be written to")


@pytest.mark.root
@pytest.mark.parametrize("every", [0, IN_BACKGROUND])
def test_a_folder_that_becomes_read_only_stops_saves_and_not_training(
    place: Path, small_disk: Path, every: float
) -> None:
    counter = Counter()
    run = train.attach(counter=counter, every=every)
    for step, _ in run.steps([0], total=8):
        counter.value += 1
        time.sleep(0.01)
        if step == 5:
            run.save()
            subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert counter.value == 8
    assert "1:4" in there(place)
    assert any("Read-only file system" in fact["text"] for fact in facts(place, "warning"))


def test_a_clock_that_is_set_back_changes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    seeded(9, until=5)
    with monkeypatch.context() as patches:
        patches.setattr(time, "time", lambda: 1_000_000.0)
        go(7, until=7)
    assert torch.equal(go(9, dir=place / "saves").value, undisturbed)
    assert there(place).endswith("3:7 3:8 3:9")


# --- in the background ----------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.norm = nn.BatchNorm1d(256)


def trained(steps: int, *, clip: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    run = train.attach(net=net, optimizer=optimizer, every=IN_BACKGROUND, keep=100, **options)
    for _step, batch in run.steps(list(range(7)), total=steps):
        if clip:
            with torch.no_grad():
                net.layer.weight.clamp_(-0.05, 0.05)
        loss = net.norm(net.layer(torch.randn(16, 256) + batch)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)
    return net


def states_of(net: nn.Module) -> list[torch.Tensor]:
    return list(net.state_dict().values())


def published(place: Path) -> list[str]:
    return there(place).split()


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "parameters written to"])
def test_every_background_save_is_the_state_of_its_step(
    place: Path, monkeypatch: pytest.MonkeyPatch, clip: bool
) -> None:
    undisturbed = states_of(trained(40, clip=clip, dir=place / "other"))
    trained(40, clip=clip)
    positions = published(place)
    assert len(positions) > 3
    # From the end: an attempt from an older base hides what lies behind that.
    for position in sorted(random.Random(0).sample(positions[:-1], 3), key=Position.parse, reverse=True):
        monkeypatch.setenv(handshake.ENV_BASE, position)
        resumed = states_of(trained(40, clip=clip))
        assert all(torch.equal(a, b) for a, b in zip(resumed, undisturbed, strict=True)), position
    if clip:
        texts = {fact["text"] for fact in facts(place, "warning")}
        assert all("net.layer.weight was written to outside of an optimizer's step" in text for text in texts)


def test_leaving_the_loop_completes_what_is_under_way(place: Path) -> None:
    counter = Counter(500_000)
    run = train.attach(counter=counter, every=IN_BACKGROUND)
    for _ in run.steps([0], total=9):
        counter.value += 1
        if run._saves.pending:
            break
    assert there(place) == "1:1"


def test_a_second_sigterm_does_not_spoil_the_save_of_the_first(scripts: Zygote, work: Path) -> None:
    child = scripts.start([SCRIPT], cwd=work, log=work / "log", env=under_agent(work))
    eventually(lambda: len(losses(child.text())) > 3)
    for _ in range(3):
        child.terminate()
    assert child.wait() == handshake.EXIT_SAVED, child.text()
    saved = [json.loads(line) for line in (work / "reports" / "facts-0.jsonl").read_text().splitlines()]
    assert saved[-1]["step"] == max(losses(child.text()))


@pytest.mark.parametrize("every", [0, IN_BACKGROUND], ids=["each step", "background"])
def test_killed_at_any_change_of_the_folder(scripts: Zygote, work: Path, every: float) -> None:
    """Each life ends by SIGKILL a little later: in claims, shards, manifests, collecting. The end is as undisturbed."""
    assert scripts.run([SCRIPT], cwd=work / "plain", log=work / "plain.log", env=env()) == 0
    plain = (work / "plain.log").read_text()
    newest, ended, tries = "", False, 0
    chance = random.Random(every)
    while not ended:
        tries += 1
        log = work / f"{tries}.log"
        more = {
            handshake.ENV_CHECKPOINT_EVERY: every,
            "FAULT_AT": chance.randint(1, 30 if every else 70) if tries < 15 else 0,
        }
        rc = scripts.run([FAULTY], cwd=work, log=log, env=env(**more))
        assert rc in (-9, 0), log.read_text()
        there = [str(p) for p in visible(Folder(work / "checkpoints", lambda _: None).listing())]
        assert not newest or there, "the older checkpoints are lost"
        newest = there[-1] if there else ""
        begun = losses(plain)
        assert losses(log.read_text()).items() <= begun.items(), "another loss than undisturbed"
        ended = rc == 0
    assert tries > 3
    assert weights(log.read_text()) == weights(plain)


def test_two_ranks_save_in_the_background_and_resume(scripts: Zygote, work: Path) -> None:
    more = {handshake.ENV_CHECKPOINT_EVERY: IN_BACKGROUND, "TINY_STEP_S": 0.005}
    saves = Folder(work / "saves", lambda _: None)
    dying = gang(scripts, work, "1", folders=[work / "saves"] * 2, TINY_STEPS=100_000, **more)
    eventually(lambda: len(visible(saves.listing())) > 1)
    for child in dying:
        child.kill()
        child.wait()
    newest = visible(saves.listing())[-1]
    more["TINY_STEPS"] = newest.step + 5
    last = gang(scripts, work, "2", folders=[work / "saves"] * 2, **more)
    plain = gang(scripts, work, "plain", folders=[work / "other"] * 2, **more)
    assert [child.wait() for child in (*last, *plain)] == [0] * 4, last[0].text()
    assert f"from {newest} attempt 2" in last[0].text()
    assert weights(last[0].text()) == weights(plain[0].text())


@pytest.mark.parametrize("every", [0, IN_BACKGROUND], ids=["each step", "background"])
def test_a_full_disk_of_one_rank_is_a_failed_save_of_all(
    scripts: Zygote, work: Path, monkeypatch: pytest.MonkeyPatch, every: float
) -> None:
    monkeypatch.setattr("tests.train.test_processes.SCRIPT", FAULTY)
    more = {handshake.ENV_CHECKPOINT_EVERY: every, "TINY_STEP_S": 0.005, "TINY_DIE_DISK": "5 9"}
    children = gang(scripts, work, "full", folders=[work / "saves"] * 2, **more)
    assert [child.wait() for child in children] == [0, 0], children[0].text() + children[1].text()
    warned = [json.loads(line) for line in (work / "reports" / "facts-0.jsonl").read_text().splitlines()]
    texts = [fact["text"] for fact in warned if fact["kind"] == "warning"]
    assert texts
    assert all("rank 1: OSError: [Errno 28] No space left on device" in text for text in texts)
    assert visible(Folder(work / "saves", pytest.fail).listing())[-1].step == 20
