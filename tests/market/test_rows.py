"""Rows of CSV files: every malformed shape has its own line."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.market.faults import Malformed
from everstep.market.rows import Row, rows
from everstep.model.errors import BadInput

COLUMNS = ("zone", "price")


def read(path: Path) -> list[Row]:
    return list(rows(path, COLUMNS))


def table(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_columns_are_found_by_name_wherever_they_are(tmp_path: Path) -> None:
    found = read(table(tmp_path, "price,other,zone\n1.5,x,a\n\n2,y, b \n"))
    assert [(row.text("zone"), row.price("price"), row.line) for row in found] == [("a", 1.5, 2), ("b", 2.0, 4)]
    assert found[0].text("absent") == ""


def test_a_gzipped_file_with_a_byte_order_mark_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress("\ufeffzone,price\na,1\n".encode()))
    assert read(path)[0].word("zone") == "a"


def test_an_empty_price_is_not_sold(tmp_path: Path) -> None:
    assert math.isnan(read(table(tmp_path, "zone,price\na,\n"))[0].price("price"))


def test_further_cells_belong_to_a_last_column_that_nobody_reads(tmp_path: Path) -> None:
    found = read(table(tmp_path, "zone,price,generation\na,1,V1,V2\n"))
    assert found[0].price("price") == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": is empty"),
        ("zone,price\n", ": has no rows"),
        ("zone,cost\na,1\n", ":1: price: the column is missing; the file has zone, cost"),
        ("zone,price,zone\na,1,b\n", ":1: zone: the column is there twice"),
        ("zone,price\na,1\nb\n", ":3: expected 2 cells, found 1; quote cells that hold a comma"),
        ("zone,price\na,b,1\n", ":2: expected 2 cells, found 3; quote cells that hold a comma"),
    ],
)
def test_a_bad_table_is_refused_with_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value) == f"{path}{message}"


@pytest.mark.parametrize(
    ("cell", "ask", "message"),
    [
        ("x", lambda row: row.price("price"), "expected USD per hour, 0 or more, found 'x'"),
        ("-1", lambda row: row.price("price"), "expected USD per hour, 0 or more, found '-1'"),
        ("nan", lambda row: row.price("price"), "expected USD per hour, 0 or more, found 'nan'"),
        ("inf", lambda row: row.price("price"), "expected USD per hour, 0 or more, found 'inf'"),
        ("1e300", lambda row: row.price("price"), "expected USD per hour, 0 or more and 1e+15 at most, found '1e300'"),
        ("", lambda row: row.number("price"), "expected a number, 0 or more, found ''"),
        ("1.5", lambda row: row.count("price"), "expected a whole number, 0 or more, found '1.5'"),
        ("", lambda row: row.word("price"), "the cell is empty"),
        ("noon", lambda row: row.instant("price"), "expected a time such as 2030-01-31T18:00:00Z, found 'noon'"),
        (
            "0001-01-01T00:00:00+14:00",
            lambda row: row.instant("price"),
            "expected a time such as 2030-01-31T18:00:00Z, found '0001-01-01T00:00:00+14:00'",
        ),
        ("yes", lambda row: row.flag("price"), "expected 1 or 0, found 'yes'"),
    ],
)
def test_a_bad_cell_names_file_line_and_column(
    tmp_path: Path, cell: str, ask: Callable[[Row], object], message: str
) -> None:
    path = table(tmp_path, f"zone,price\na,1\nb,{cell}\n")
    with pytest.raises(Malformed) as caught:
        ask(read(path)[1])
    assert str(caught.value) == f"{path}:3: price: {message}"
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(path), 3, "price")


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    absent, binary, torn = tmp_path / "absent.csv", tmp_path / "b.csv", tmp_path / "t.csv.gz"
    binary.write_bytes(b"zone,price\n\xff\xfe,1\n")
    torn.write_bytes(gzip.compress(b"zone,price\n" + b"a,1\n" * 5000)[:-20])
    for path, message in (
        (absent, "cannot be read: no such file or directory; check the path"),
        (binary, "is not UTF-8 text; write it again"),
        (torn, "is not a whole gzip file; fetch it again"),
    ):
        with pytest.raises(BadInput) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {message}"


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    found = read(table(tmp_path, "zone,price\na,2030-01-31\nb,2030-01-31T01:00:00+01:00\nc,2030-01-31T00:00:00Z\n"))
    assert {row.instant("price") for row in found} == {1_896_048_000.0}


def test_a_header_of_very_many_columns_is_read_at_once(tmp_path: Path) -> None:
    path = table(tmp_path, ",".join(str(n) for n in range(50_000)) + "\n1\n")
    with pytest.raises(Malformed, match="zone: the column is missing"):
        read(path)


def test_what_a_terminal_would_obey_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(Malformed) as caught:
        read(table(tmp_path, "zone,\x1b[31mprice\0\x07\na,1\n"))
    assert str(caught.value).endswith("price: the column is missing; the file has zone, \ufffd[31mprice\ufffd\ufffd")
