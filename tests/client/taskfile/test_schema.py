"""The generated files are current, and the table they come from is sound."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from everstep.client.taskfile import schema
from everstep.client.taskfile.fields import TABLE
from everstep.client.taskfile.reading import Status

ROOT = Path(__file__).parents[3]


def test_the_editor_schema_is_current() -> None:
    assert schema.SCHEMA_PATH.read_text(encoding="utf-8") == schema.schema_text()


def test_the_docs_are_current() -> None:
    page = (ROOT / schema.DOCS_PATH).read_text(encoding="utf-8")
    assert page == schema.with_tables(page)


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        schema.with_tables("no marks here")


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())


@pytest.mark.parametrize(
    "document",
    [
        {"resorces": {}},
        {"resources": {"acelerators": "A100"}},
        {"num_nodes": 0},
        {"service": {"replicas": 1}},
        {"work": {"steps": -1}},
        {"recovery": {"on_no_capacity": "panic"}},
        {"resources": {"any_of": [{"any_of": []}]}},
        [],
    ],
)
def test_the_schema_refuses(document: object) -> None:
    assert not jsonschema.Draft202012Validator(schema.json_schema()).is_valid(document)


def test_aliases_lead_to_a_key_of_the_same_section() -> None:
    aliases = [(fields, one) for fields in TABLE.values() for one in fields.values() if one.alias_of]
    assert aliases
    assert all(fields[one.alias_of].alias_of == "" for fields, one in aliases)


def test_every_text_fits_into_one_line() -> None:
    texts = [one.text for fields in TABLE.values() for one in fields.values()]
    assert all(text and "\n" not in text and not text.endswith(".") for text in texts)


def test_our_own_keys_all_work() -> None:
    assert all(one.status is Status.WORKS for fields in TABLE.values() for one in fields.values() if one.ours)


def test_every_foreign_key_is_in_the_docs_with_its_status() -> None:
    tables = schema.docs_tables()
    rows = [
        f"| `{one.name}` | *{one.status.value}* |"
        for place, fields in TABLE.items()
        if place != "alternative"
        for one in fields.values()
        if not one.ours
    ]
    assert len(rows) > 50
    assert [row for row in rows if row not in tables] == []


def test_the_command_notices_and_mends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, generated = tmp_path / "keys.md", tmp_path / "schema.json"
    page.write_text(f"intro\n{schema.BEGIN}\nold\n{schema.END}\noutro\n")
    monkeypatch.setattr(schema, "DOCS_PATH", page)
    monkeypatch.setattr(schema, "SCHEMA_PATH", generated)
    assert schema.main([]) == 1
    assert not generated.exists()
    assert schema.main(["--write"]) == 0
    assert schema.main([]) == 0
    text = page.read_text()
    assert text.startswith("intro\n")
    assert text.endswith("outro\n")
    assert "old" not in text.partition(schema.BEGIN)[2].splitlines()
