"""The library in one process: faults of the disk, changes between attempts, and what is reported."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from everstep import train
from everstep.model import handshake
from everstep.train import folder as folder_module
from everstep.train import opening
from everstep.train.folder import Folder
from everstep.train.lineage import Position, Record, visible
from tests.train.counter import Counter

refuse_another_training = opening._refuse_another_training
pytestmark = pytest.mark.usefixtures("place")


def go(steps: int, *, size: int = 1, until: int | None = None, **options: Any) -> Counter:
    """Trains to ``steps``, saving after each; with ``until``, leaves the loop there without a last save."""
    counter = Counter(size)
    run = train.attach(counter=counter, every=0, **options)
    for step, batch in run.steps(list(range(5)), total=steps):
        counter.value += batch + random.random() + torch.rand(())
        if step == until:
            break
    return counter


def seeded(steps: int, **options: Any) -> Counter:
    torch.manual_seed(0)
    random.seed(0)
    return go(steps, **options)


def there(place: Path) -> str:
    return shown_in(place / "saves")


def shown_in(root: Path) -> str:
    return " ".join(map(str, visible(Folder(root, lambda _: None).listing())))


def facts(place: Path, kind: str) -> list[dict[str, Any]]:
    lines = (place / "reports" / "facts-0.jsonl").read_text().splitlines()
    return [fact for fact in map(json.loads, lines) if fact["kind"] == kind]


def shard(place: Path, position: str) -> Path:
    return Folder(place / "saves", pytest.fail).shard_path(Position.parse(position), 0)


def test_resumes_where_it_was(place: Path) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    seeded(9, until=5)
    assert torch.equal(go(9).value, undisturbed)
    assert [fact["base"] for fact in facts(place, "restored")][-1] == "1:4"


def test_keeps_the_newest_and_its_base(place: Path) -> None:
    seeded(5, until=5, keep=2)
    assert there(place) == "1:3 1:4"
    go(9, keep=2)
    assert there(place) == "1:4 2:8 2:9"
    assert not (place / "saves" / "000001" / "000000003").exists()


def test_the_boundary_where_a_save_ends_begins_no_other(place: Path) -> None:
    # The first one comes at once, the second one a long time later: by the local rule, of what the first one cost.
    counter = Counter(1)
    run = train.attach(counter=counter, keep=1000)
    for _ in run.steps(list(range(50)), total=50):
        time.sleep(0.01)
    saved = [fact["step"] for fact in facts(place, handshake.FACT_SAVED)]
    assert len(saved) == 2
    assert saved[-1] == 50


@pytest.mark.parametrize("damage", ["torn manifest", "empty manifest", "cut shard", "changed shard", "no shard"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(place: Path, damage: str) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    seeded(9, until=6)
    path = shard(place, "1:5")
    manifest = path.parent / "manifest.json"
    content = path.read_bytes()
    if damage == "torn manifest":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif damage == "empty manifest":
        manifest.write_bytes(b"")
    elif damage == "cut shard":
        path.write_bytes(content[:-10])
    elif damage == "changed shard":
        path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    else:
        path.unlink()
    assert torch.equal(go(9).value, undisturbed)
    assert facts(place, "restored")[-1]["base"] == "1:4"
    assert any("checkpoint 1:5 is skipped" in fact["text"] for fact in facts(place, "warning"))


class _FullDisk:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        self._file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failing_save_keeps_the_older_one_and_training(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()
    run = train.attach(counter=counter, every=0)
    real = Folder.write_shard

    def full(self: Folder, position: Position, rank: int, write: Any) -> None:
        real(self, position, rank, lambda file: write(_FullDisk(file)))

    for step, _ in run.steps([0], total=6):
        counter.value += 1
        monkeypatch.setattr(Folder, "write_shard", full if 3 <= step <= 4 else real)
    assert there(place) == "1:2 1:5 1:6"
    warned = [fact["text"] for fact in facts(place, "warning")]
    assert len(warned) == 2
    assert all("No space left on device" in text for text in warned)
    assert not list(place.rglob(".tmp-*"))


@pytest.mark.root
def test_a_disk_that_is_really_full(place: Path, small_disk: Path) -> None:
    def big(until: int) -> None:
        counter = Counter(60_000)  # 240 kB a save, on a disk of 1 MB
        run = train.attach(counter=counter, every=0, keep=1)
        for step, _ in run.steps([0], total=6):
            counter.value += 1
            if step == 3 and until == 6:
                (small_disk / "filler").write_bytes(b"x" * 700_000)
            if step == until:
                break

    big(until=6)
    assert there(place) == "1:2", "what was there before the disk was full stays"
    assert any("No space left on device" in fact["text"] for fact in facts(place, "warning"))
    (small_disk / "filler").unlink()
    big(until=0)
    assert there(place).endswith("2:6")


def test_leftovers_of_a_crash_are_cleaned_by_the_next_attempt(place: Path) -> None:
    seeded(4, until=3)
    folder = place / "saves" / "000001"
    (folder / "000000002" / ".tmp-shard-00000-abc").write_bytes(b"half")
    (folder / "000000003").mkdir()
    (folder / "000000003" / "shard-00000.pt").write_bytes(b"never published")
    (place / "saves" / "attempts" / ".tmp-000001-xyz").write_bytes(b"half")
    go(4)
    assert not list(place.rglob(".tmp-*"))
    assert not (folder / "000000003").exists()
    assert there(place) == "1:2 2:3 2:4"


def test_a_torn_record_fences_but_does_not_hide_what_was_there(place: Path) -> None:
    seeded(4, until=4)
    (place / "saves" / "attempts" / "000002.json").write_text("{")
    go(5)
    assert facts(place, "restored")[-1]["base"] == "1:3"


def refused(text: str, **options: Any) -> None:
    with pytest.raises(train.Refused) as caught:
        go(9, **options)
    assert caught.value.code == handshake.EXIT_REFUSED
    assert text in caught.value.text


def test_what_does_not_fit_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded(4, until=4)
    refused("counter does not fit: another size", size=2)
    refused("holds counter, attach() was given counter, more", more=Counter())
    monkeypatch.setenv(handshake.ENV_BASE, "1:77")
    refused("checkpoint 1:77 is not there or not whole; visible in")


def test_a_base_that_a_server_names_and_that_is_gone_gives_way_to_the_newest(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded(9, until=5)
    monkeypatch.setenv(handshake.ENV_BASE, "1:1")
    monkeypatch.setenv(handshake.ENV_BASE_SINCE, "2")
    go(9, until=7)
    told = facts(place, "restored")[-1]
    assert (told["base"], told["missed"]) == ("1:4", "1:1")
    [warning] = [fact["text"] for fact in facts(place, "warning")]
    assert warning.startswith("checkpoint 1:1 is not there or not whole; visible in")
    assert warning.endswith("1:2, 1:3, 1:4; going on from 1:4")


def test_a_wish_that_an_attempt_has_heard_takes_nothing_from_what_that_has_saved(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was lost before the server learnt that the second attempt had begun: the third is told the same."""
    seeded(9, until=5)
    monkeypatch.setenv(handshake.ENV_BASE, "1:2")
    monkeypatch.setenv(handshake.ENV_BASE_SINCE, "2")
    go(9, until=5)
    assert facts(place, "restored")[-1]["base"] == "1:2"
    go(9, until=7)
    told = facts(place, "restored")[-1]
    assert (told["base"], told.get("missed")) == ("2:4", None)


def test_with_nothing_left_a_base_that_a_server_names_gives_way_to_the_beginning(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(handshake.ENV_BASE, "1:2")
    monkeypatch.setenv(handshake.ENV_BASE_SINCE, "2")
    go(3)
    told = facts(place, "restored")[-1]
    assert (told["base"], told["missed"]) == (None, "1:2")


def test_another_world_size_is_refused(place: Path) -> None:
    seeded(4, until=4)
    manifest = shard(place, "1:3").parent / "manifest.json"
    raw = json.loads(manifest.read_text())
    raw["world_size"] = 2
    raw["shards"].append({**raw["shards"][0], "rank": 1})
    manifest.write_text(json.dumps(raw))
    refused("written by 2 ranks, now there are 1")


def test_the_same_attempt_again_goes_on_from_its_own_newest_save(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    monkeypatch.setenv(handshake.ENV_ATTEMPT, "5")
    seeded(9, until=6)
    assert torch.equal(go(9).value, undisturbed)
    assert [fact["base"] for fact in facts(place, "restored")][-2:] == [None, "5:5"]
    assert json.loads((place / "saves" / "attempts" / "000005.json").read_text())["base"] is None


def test_collecting_stops_when_somebody_is_choosing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol of `lineage` on the real folder: a claim between the mark and the deletion saves the victim."""
    seeded(5, keep=9)
    folder = Folder(place / "saves", pytest.fail)
    real = folder_module.Folder._began

    def claimed_meanwhile(self: Folder) -> Any:
        folder.claim(2)
        return real(self)

    monkeypatch.setattr(Folder, "_began", claimed_meanwhile)
    assert folder.collect(1, keep=1) == ()
    assert there(place) == "1:1 1:2 1:3 1:4 1:5"
    assert not list(place.rglob("collect-*"))


def test_records_are_created_once(place: Path) -> None:
    folder = Folder(place / "saves", pytest.fail)
    folder.prepare()
    assert folder.begin(Record(1, None, 1))
    assert not folder.begin(Record(1, None, 4))
    record = folder.read_record(1)
    assert record is not None
    assert record.world_size == 1


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"dir": "x", "thing": 3}, TypeError, "int has no state_dict"),
        ({"keep": 0}, ValueError, "keep"),
        ({"every": "often"}, ValueError, "'auto' or seconds"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        train.attach(**options)


def test_several_ranks_need_their_process_group_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group"):
        train.attach()


def test_steps_needs_an_end_and_runs_once() -> None:
    run = train.attach(counter=Counter())
    with pytest.raises(TypeError, match="total= or epochs="):
        run.steps([1])
    assert [(step, batch) for step, batch in run.steps([7, 8], epochs=2)] == [(1, 7), (2, 8), (3, 7), (4, 8)]
    with pytest.raises(RuntimeError, match="one loop"):
        run.steps([1], total=9)


def test_progress_without_a_run(place: Path) -> None:
    train._reporter.cache_clear()
    odd: Any = torch.ones(3)
    train.progress(3, 10, loss=torch.tensor(0.5, requires_grad=True).sum(), odd=odd, word="x")  # type: ignore[arg-type]
    raw = json.loads((place / "reports" / "progress-0.json").read_text())
    assert (raw["step"], raw["total"], raw["metrics"]) == (3, 10, {"loss": 0.5})
    train._reporter.cache_clear()


def test_a_second_training_in_the_folder_of_the_first_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_refuse_another_training", refuse_another_training)
    train.attach(counter=Counter())
    seeded(4)
    refused("this process has trained in")
    seeded(4, dir=place / "other")


def test_the_folder_stays_where_it_is_when_the_script_goes_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "work").mkdir()
    run = train.attach(counter=Counter(), every=0, dir="here", mirror="there")
    os.chdir("work")
    for _ in run.steps([1, 2], total=4):
        pass
    assert shown_in(place / "here") == "1:2 1:3 1:4"
    assert (place / "there" / "000001").is_dir()
    assert not list((place / "work").iterdir())


def test_where_nothing_can_be_read_training_begins_anew_and_nothing_is_deleted(place: Path) -> None:
    seeded(5, until=5)
    for position in ("1:2", "1:3", "1:4"):
        shard(place, position).write_bytes(b"")
    go(9)
    assert facts(place, "restored")[-1]["base"] is None
    assert any("none of the 3 checkpoints in" in fact["text"] for fact in facts(place, "warning"))
    assert all(shard(place, position).exists() for position in ("1:2", "1:3", "1:4"))


def test_without_its_record_an_attempt_is_gone_on_from(place: Path) -> None:
    undisturbed = seeded(9, dir=place / "other").value
    seeded(9, until=5)
    (place / "saves" / "attempts" / "000001.json").write_text("")
    assert torch.equal(go(9).value, undisturbed)
    assert facts(place, "restored")[-1]["base"] == "1:4"


class _OfThen:
    pass


def test_what_this_code_cannot_read_back_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holds(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "of then": _OfThen()}

    run = train.attach(counter=Holds(), every=0)
    next(iter(run.steps([1], total=4)))
    run.save()
    monkeypatch.delattr(f"{__name__}._OfThen")
    refused("is whole and cannot be read back here: AttributeError")
    monkeypatch.undo()
    assert shard(place, "1:0").exists()


def test_a_shard_without_the_right_to_read_it_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded(4, until=4)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("everstep.train.shard.os.fstat", denied)
        refused("may not be read: Permission denied")
    go(9)
    assert facts(place, "restored")[-1]["base"] == "1:3"


def test_a_sigterm_is_for_all_trainings_of_a_process(place: Path) -> None:
    first, second = (train.attach(counter=Counter(), every=60, dir=place / name) for name in ("first", "second"))
    rest = second.steps([1, 2], total=9)
    begun = first.steps([1, 2], total=9)
    assert next(begun) == (1, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(train.Saved):
        next(begun)
    assert shown_in(place / "first") == "1:1"
    with pytest.raises(train.Saved):
        list(rest)
    # Once all is saved, another one changes nothing.
    os.kill(os.getpid(), signal.SIGTERM)
