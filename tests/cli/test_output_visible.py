"""What files and names hold does not reach a terminal as commands."""

from __future__ import annotations

import pytest

from everstep.cli.output import Column, facts, table, visible

NASTY = "a\x1b[2Jb\x07\x9b31m\u202ec\td\r"


def test_tables_and_facts_show_control_characters_instead_of_sending_them(capsys: pytest.CaptureFixture[str]) -> None:
    table([NASTY], [Column("NAME", str)])
    facts([("name", NASTY)])
    out = capsys.readouterr().out
    assert "\\x1b[2Jb\\x07\\x9b31m\\u202ec d\\x0d" in out
    assert out.count("\\x1b") == 2
    assert not {c for c in out if ord(c) < 32 or 127 <= ord(c) < 160 or ord(c) == 0x202E} - {"\n"}


def test_ordinary_text_of_any_language_stays() -> None:
    assert visible("Zürich 東京 — 5 €\nnext") == "Zürich 東京 — 5 €\nnext"


def test_a_column_that_says_nothing_is_left_out_if_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("NAME", str), Column("NOTE", lambda row: "-" if row < 9 else "big", sparse=True)]
    table([1, 2], columns)
    assert "NOTE" not in capsys.readouterr().out
    table([1, 9], columns)
    assert "NOTE" in capsys.readouterr().out
