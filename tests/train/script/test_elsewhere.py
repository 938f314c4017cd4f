"""Files of a run that goes on in another working folder, where nothing that it wrote is; and in the old one again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from everstep.train.lineage import Position
from everstep.train.script.graph import Space, capture, restore
from everstep.train.script.graph.relocate import relocate
from everstep.train.script.output import Launch, Place, damage, keeping
from everstep.train.script.output.store import PIECE, Damaged, Store
from tests.train.script.outputs import Life

BIG = 3 << 20


@pytest.fixture
def life(tmp_path: Path) -> Life:
    (tmp_path / "a").mkdir()
    return Life(tmp_path / "a", tmp_path / "saves")


def nothing(*_: Any) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def open_log() -> TextIO:
    os.makedirs("runs")
    return open("runs/log", "w")


def writes(letter: str) -> Callable[[TextIO], None]:
    def work(log: TextIO) -> None:
        log.write(letter * BIG)
        log.flush()
        Path("small.txt").write_text(letter)
        Path("runs/best").write_bytes(letter.encode() * BIG)
        with open("grows", "a") as grows:
            grows.write(letter * BIG)

    return work


# --- what comes with a checkpoint -------------------------------------------------------------------------------------


@pytest.mark.expensive(family="script drills")
def test_all_that_the_run_wrote_is_there_on_the_other_machine(life: Life, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = Life(tmp_path / "plain", tmp_path / "unused")
    life(open_log, writes("1"), writes("2"), writes("lost"))
    other = life.elsewhere(tmp_path / "b")
    other(open_log, nothing, until="replay")
    assert other(open_log, writes("3"), writes("lost too")) == 0
    # What lies in the first folder is older than the save now.
    assert life(open_log, writes("4")) == 0
    assert plain(open_log, lambda log: [writes(letter)(log) for letter in "1234"]) == 0
    assert contents(life.work) == contents(plain.work)


def test_a_file_made_past_python_comes_along(life: Life, tmp_path: Path) -> None:
    def work() -> None:
        os.makedirs("runs/deep")
        os.system("head -c 2000000 /dev/zero > runs/deep/big; echo small > runs/small")

    life(nothing, work, lambda: os.system("echo lost > runs/small") and None)
    other = life.elsewhere(tmp_path / "b")
    assert other(nothing, nothing) == 0
    assert contents(other.work) == {"runs/deep/big": bytes(2_000_000), "runs/small": b"small\n"}
    assert life(nothing, nothing) == 0
    assert contents(life.work) == contents(other.work)


def test_the_first_world_comes_along(life: Life, tmp_path: Path) -> None:
    (life.work / "state").write_text("first")
    other = life.elsewhere(tmp_path / "b")
    (other.work / "state").write_text("first")

    def setup() -> None:
        assert Path("state").read_text() == "first"

    life(setup, lambda: Path("state").write_text("second") and None, nothing)
    assert other(setup, nothing) == 0
    assert contents(other.work) == {"state": b"second"}


def test_a_growing_file_is_not_copied_whole_at_every_save(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[int] = []
    plain = Store.put
    monkeypatch.setattr(Store, "put", lambda store, piece: put.append(len(piece)) or plain(store, piece))

    def grow() -> None:
        with open("log", "ab") as log:
            log.write(os.urandom(2 * PIECE + 1000))

    def check() -> None:
        assert put == [PIECE, PIECE, 1000, PIECE, PIECE, 2000], "the last piece is written again, the others are not"

    assert life(nothing, grow, grow, check) == 0


def test_a_huge_file_that_is_not_there_is_refused_in_words(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeping, "IN_STORE", BIG // 2)
    life(nothing, lambda: Path("huge").write_bytes(b"a" * BIG) and None, nothing)
    other = life.elsewhere(tmp_path / "b")
    assert other(nothing, nothing) == 76
    assert f"{other.work}/huge ({BIG} bytes) is not here, and is too big to be kept" in capfd.readouterr().err
    (other.work / "huge").write_bytes(b"b" * BIG)
    assert other(nothing, nothing) == 76
    (other.work / "huge").write_bytes(b"a" * BIG)
    assert other(nothing, nothing) == 0
    assert (other.work / "huge").read_bytes() == b"a" * BIG


def test_a_huge_file_that_the_setup_makes_again_will_do(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "IN_STORE", BIG // 2)

    def setup() -> None:
        if not os.path.exists("data"):
            Path("data").write_bytes(b"d" * BIG)

    life(setup, nothing, nothing)
    assert life.elsewhere(tmp_path / "b")(setup, nothing) == 0


def test_a_damaged_piece_is_told_before_anything_is_changed(life: Life, tmp_path: Path) -> None:
    life(nothing, lambda: Path("big").write_bytes(os.urandom(BIG)) and None, nothing)
    saved = life.saved()["output"]["files"]
    other = life.elsewhere(tmp_path / "b")
    assert not damage(Launch(life.folder, 0, Place({"work": other.work})), saved)
    (piece,) = (life.folder / "files/0").iterdir()
    whole = piece.read_bytes()
    piece.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert str(piece) in damage(Launch(life.folder, 0, Place({"work": other.work})), saved)
    assert not damage(Launch(life.folder, 0, Place({"work": life.work})), saved), "here the file itself is there"
    assert other(nothing, nothing) == 76
    piece.unlink()
    assert str(piece) in damage(Launch(life.folder, 0, Place({"work": other.work})), saved)
    assert life(nothing, nothing) == 0


# --- the store --------------------------------------------------------------------------------------------------------


def save(store: Store, root: Path, attempt: int, step: int, *texts: bytes) -> Path:
    """A checkpoint that needs these pieces; its folder."""
    store.collect()
    store.refer(Position(attempt, step), [store.put(text) for text in texts])
    return root / Position(attempt, step).folder


def pieces(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in (root / "files/0").iterdir()}


def test_what_no_checkpoint_needs_goes(tmp_path: Path) -> None:
    store = Store(tmp_path, 0, 1)
    first = save(store, tmp_path, 1, 10, b"both", b"first")
    save(store, tmp_path, 1, 20, b"both", b"second")
    (first / "files-0.json").unlink()
    save(store, tmp_path, 1, 30, b"third")
    assert pieces(tmp_path) == {b"both", b"second", b"third"}


def test_a_straggler_deletes_nothing(tmp_path: Path) -> None:
    old = Store(tmp_path, 0, 1)
    first = save(old, tmp_path, 1, 10, b"first")
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts/000002.claim").touch()
    new = Store(tmp_path, 0, 2)
    new.put(b"not referred to yet")
    (first / "files-0.json").unlink()
    old.collect()
    assert pieces(tmp_path) == {b"first", b"not referred to yet"}
    new.collect()
    assert pieces(tmp_path) == set()


def test_what_an_attempt_published_stays_when_it_comes_by_again(tmp_path: Path) -> None:
    save(Store(tmp_path, 0, 1), tmp_path, 1, 10, b"published")
    again = Store(tmp_path, 0, 1)
    save(again, tmp_path, 1, 10, b"as it is now")
    again.collect()
    assert pieces(tmp_path) == {b"published", b"as it is now"}


def test_a_piece_of_another_size_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path, 0, 1)
    name = store.put(b"whole")
    assert store.get(name, 5) == b"whole"
    with pytest.raises(Damaged, match=name):
        store.get(name, 4)


# --- paths ------------------------------------------------------------------------------------------------------------


def test_paths_below_the_folders_of_the_run_move_with_them(tmp_path: Path) -> None:
    for name in ("a/place/src", "b/src", "b/job"):
        (tmp_path / name).mkdir(parents=True)
    before = Place({"work": tmp_path / "a/place", "script": tmp_path / "a/place/src"})
    now = Place({"work": tmp_path / "b/job", "script": tmp_path / "b/src"})
    move = now.mover(before.described())
    assert move is not None
    moves = {"a/place/x": "b/job/x", "a/place/src/y": "b/src/y", "a/place": "b/job", "a/places": "a/places", "c": "c"}
    for old, new in moves.items():
        assert move(str(tmp_path / old)) == now.located(before.named(str(tmp_path / old))) == str(tmp_path / new)
    assert before.mover(before.described()) is None
    assert before.is_here(before.described())
    assert not now.is_here(before.described())


def test_paths_in_objects_move(tmp_path: Path) -> None:
    def values(root: str) -> dict[str, Any]:
        return {"text": f"{root}/x", "path": Path(root) / "y", "in": {f"{root}/k": [f"{root}", ("/etc", b"/old")]}}

    captured = capture([Space("module m", values("/old/root"))])
    relocate(captured, lambda path: path.replace("/old/root", "/new", 1))
    (restored,) = restore(captured, [Space("module m", {})])
    assert restored.values == values("/new")


# --- several ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.expensive(family="script drills")
def test_ranks_that_write_into_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    def setup(rank: int, attempt: int) -> Callable[[], TextIO]:
        def run() -> TextIO:
            assert not os.path.exists(f"runs/small-{rank}"), "what the run wrote is aside"
            # At the first start the other rank may be at work already.
            assert attempt == 1 or not os.path.exists(f"runs/small-{1 - rank}"), "and what another rank wrote"
            os.makedirs("runs", exist_ok=True)
            return open(f"runs/log-{rank}", "w")

        return run

    def work(rank: int) -> Callable[[TextIO], None]:
        def run(log: TextIO) -> None:
            log.write(f"{rank}" * BIG)
            log.flush()
            with open(f"runs/small-{rank}", "a") as small:
                small.write("x")

        return run

    for attempt, name in enumerate(["a", "a", "b", "a"], 1):
        (tmp_path / name).mkdir(exist_ok=True)
        lives = [Life(tmp_path / name, tmp_path / "saves", rank=rank, ranks=2, attempt=attempt) for rank in (0, 1)]
        started = [life.start(setup(life.rank, attempt), work(life.rank), work(life.rank)) for life in lives]
        assert [life.wait(pid) for life, pid in zip(lives, started, strict=True)] == [0, 0]
    for rank in (0, 1):
        assert (tmp_path / f"a/runs/small-{rank}").read_text() == "x" * 5
        assert (tmp_path / f"a/runs/log-{rank}").read_text() == f"{rank}" * BIG * 5
