"""How far the journal once was."""

from __future__ import annotations

from pathlib import Path

from everstep.control.highwater import HighWater


def test_it_only_rises_and_survives_its_process(tmp_path: Path) -> None:
    mark = HighWater(tmp_path / "journal.high")
    assert mark.read() == 0
    mark.keep(12)
    mark.keep(7)
    assert mark.read() == 12
    again = HighWater(tmp_path / "journal.high")
    again.keep(11)
    assert again.read() == 12
    again.keep(13)
    assert HighWater(tmp_path / "journal.high").read() == 13


def test_garbage_and_a_folder_that_is_gone_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "journal.high"
    file.write_bytes(b"\xff\x00 not a number")
    assert HighWater(file).read() == 0
    gone = HighWater(tmp_path / "gone" / "journal.high")
    gone.keep(5)
    assert gone.read() == 0
