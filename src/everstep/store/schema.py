"""The tables of the journal and every statement on them, written once for all SQL databases.

SQLAlchemy writes the SQL for a dialect; the drivers run it as it is, with positional values. Building a statement per
call would cost more than running it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    Delete,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.expression import ClauseElement

SCHEMA_VERSION = 1
"""Raised with every change of the tables; a journal of a higher one is refused."""

_TABLES = MetaData()
# SQLite's key of a row must be called INTEGER, and holds 64 bits anyway.
_SEQ = BigInteger().with_variant(Integer(), "sqlite")


def _lines(name: str) -> Table:
    return Table(
        name,
        _TABLES,
        Column("seq", _SEQ, primary_key=True, autoincrement=False),
        Column("stream", String, nullable=False),
        Column("version", Integer, nullable=False),
        Column("at", Float, nullable=False),
        Column("kind", String, nullable=False),
        Column("schema", Integer, nullable=False),
        Column("body", Text, nullable=False),
        Index(f"{name}_by_stream", "stream", "version", unique=True),
    )


JOURNAL = _lines("journal")
ARCHIVE = _lines("archive")
"""Lines of streams that ended: out of the way of a restart, read like the others."""

STREAMS = Table(
    "streams",
    _TABLES,
    Column("name", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("archived", Boolean, nullable=False),
)
SNAPSHOTS = Table(
    "snapshots",
    _TABLES,
    Column("name", String, primary_key=True),
    Column("seq", _SEQ, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
LEASES = Table(
    "leases",
    _TABLES,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("expires_at", Float, nullable=False),
)


class Statement:
    """SQL text for a driver with positional parameters, and the order in which it wants its values."""

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = clause.compile(dialect=dialect)
        self.sql = str(compiled)
        self._order: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._fixed: dict[str, Any] = dict(compiled.params)

    def args(self, **values: Any) -> tuple[Any, ...]:
        """The values by name, in the driver's order."""
        return tuple(values[name] if name in values else self._fixed[name] for name in self._order)


class Statements:
    """Every statement of a store, compiled for one dialect."""

    def __init__(self, dialect: Dialect, upsert_insert: Callable[[Table], Any]) -> None:
        """Args: upsert_insert: the dialect's ``insert`` that knows ``on_conflict_do_update``."""

        def upsert(table: Table) -> Any:
            statement = upsert_insert(table)
            changed = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
            return statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=changed)

        def compiled(clause: ClauseElement) -> Statement:
            return Statement(clause, dialect)

        name: BindParameter[str] = bindparam("name")
        # Values of these four go in by the order of the columns.
        self.add_line = compiled(insert(JOURNAL))
        self.set_stream = compiled(upsert(STREAMS))
        self.set_snapshot = compiled(upsert(SNAPSHOTS))
        self.set_lease = compiled(upsert(LEASES))
        self.last_seq = compiled(
            select(
                select(func.coalesce(func.max(JOURNAL.c.seq), 0)).scalar_subquery(),
                select(func.coalesce(func.max(ARCHIVE.c.seq), 0)).scalar_subquery(),
            )
        )
        self.head = compiled(select(STREAMS.c.version).where(STREAMS.c.name == name))
        self.lease = compiled(
            select(LEASES.c.holder, LEASES.c.number, LEASES.c.expires_at).where(LEASES.c.name == name)
        )
        self.snapshot = compiled(
            select(SNAPSHOTS.c.seq, SNAPSHOTS.c.digest, SNAPSHOTS.c.body).where(SNAPSHOTS.c.name == name)
        )
        self.live_streams = compiled(select(STREAMS.c.name, STREAMS.c.version).where(~STREAMS.c.archived))
        self.read_all = compiled(_page(lambda t: select(t).where(t.c.seq > bindparam("after")), "seq"))
        self.read_stream = compiled(
            _page(lambda t: select(t).where(t.c.stream == name, t.c.version > bindparam("after")), "version")
        )
        self.archive_lines = compiled(
            insert(ARCHIVE).from_select(list(ARCHIVE.columns.keys()), select(JOURNAL).where(JOURNAL.c.stream == name))
        )
        gone: Delete = delete(JOURNAL).where(JOURNAL.c.stream == name)
        self.drop_lines = compiled(gone)
        self.trim_lines, self.trim_archive = (
            compiled(delete(t).where(t.c.stream == name, t.c.version <= bindparam("through")))
            for t in (JOURNAL, ARCHIVE)
        )
        self.mark_archived = compiled(update(STREAMS).where(STREAMS.c.name == name).values(archived=True))


def ddl(dialect: Dialect) -> list[str]:
    """What creates all tables and indexes, in order."""
    tables = _TABLES.sorted_tables
    indexes = sorted((i for t in tables for i in t.indexes), key=lambda i: str(i.name))
    return [
        *(str(CreateTable(t).compile(dialect=dialect)) for t in tables),
        *(str(CreateIndex(i).compile(dialect=dialect)) for i in indexes),
    ]


def table_names() -> frozenset[str]:
    """The tables a journal has."""
    return frozenset(_TABLES.tables)


def _page(part: Callable[[Table], Select[Any]], order: str) -> Any:
    """One page over live and archived lines in order; both sides come by an index, so the database only merges."""
    return union_all(part(JOURNAL), part(ARCHIVE)).order_by(order).limit(bindparam("limit", type_=Integer))
