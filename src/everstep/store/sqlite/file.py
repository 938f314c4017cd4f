"""Opening the file: made safely when it is new, refused with one line when it is not a journal we can use."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat

from sqlalchemy.dialects import sqlite as dialect_module

from everstep.model.errors import StoreError, StoreUnusable
from everstep.store.schema import SCHEMA_VERSION, Statements, ddl, table_names
from everstep.store.sqlite.faults import in_our_words

DIALECT = dialect_module.dialect()
STATEMENTS = Statements(DIALECT, dialect_module.insert)

APPLICATION_ID = 0x45565354
"""``EVST`` in the header of the file: how a journal is told from any other database."""

_MAGIC = b"SQLite format 3\x00"
_PRIVATE = 0o600
# Checking every page costs about a second per gigabyte: done at each start only where nobody notices.
_CHECKED_WHEN_BELOW_BYTES = 32 * 1024 * 1024


def prepare(path: str) -> None:
    """Makes the file if need be, readable by its owner alone, and sees that it is a sound journal.

    Raises:
        StoreUnusable: not a journal, damaged, of a newer everstep, or on a file system that cannot hold one.
    """
    is_new = _make_private(path)
    if not is_new:
        _check_header(path)
    connection = connect(path)
    try:
        with in_our_words(path):
            _check_or_create(connection, path)
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StoreUnusable(f"{path}: this file system cannot hold a journal; use a local disk")
            if os.path.getsize(path) < _CHECKED_WHEN_BELOW_BYTES:
                check_pages(connection, path)
    finally:
        connection.close()
    if is_new:
        _sync_folder(os.path.dirname(path))


def connect(path: str, *, read_only: bool = False, busy_timeout_s: float = 5.0) -> sqlite3.Connection:
    """A connection without hidden transactions, usable from any one thread at a time.

    Raises:
        StoreError: the file cannot be opened.
    """
    with in_our_words(path):
        connection = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            # FULL: a commit returns only after fsync, so what was acknowledged survives a power cut.
            connection.execute("PRAGMA synchronous=FULL")
            if read_only:
                connection.execute("PRAGMA query_only=ON")
        except BaseException:
            connection.close()
            raise
    return connection


def back_up(connection: sqlite3.Connection, path: str, target: str) -> None:
    """Copies the journal as of now to a new file, while others write on. Raises StoreUnusable if there is one."""
    if not _create_private(target):
        raise StoreUnusable(f"{target}: there is a file already; a backup goes to a new one")
    with in_our_words(path):
        copy = sqlite3.connect(target)
        try:
            connection.backup(copy)
        finally:
            copy.close()
    _sync_folder(os.path.dirname(target))


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Puts a backup in the place of a journal that no process has open.

    A plain copy over the file is not enough: the write-ahead log of the journal that was there would be replayed into
    the older one, and ruin it.

    Raises:
        StoreUnusable: the backup is not a sound journal. Nothing was changed.
    """
    source, target = os.path.abspath(backup), os.path.abspath(path)
    if not os.path.isfile(source):
        raise StoreUnusable(f"{source}: there is no such backup")
    staged = f"{target}-restoring"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staged)
    try:
        _create_private(staged)
        shutil.copyfile(source, staged)
        prepare(staged)
        for name in (f"{target}-wal", f"{target}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        os.replace(staged, target)
        _sync_folder(os.path.dirname(target))
    finally:
        for name in (staged, f"{staged}-wal", f"{staged}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def check_pages(connection: sqlite3.Connection, path: str) -> None:
    """Looks at every page of the file. Raises StoreUnusable with SQLite's first complaint."""
    with in_our_words(path):
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreUnusable(f"{path}: the journal is damaged ({' '.join(str(found).split())}); restore a backup")


def _make_private(path: str) -> bool:
    """Whether the file was made by this call; its mode is 0600 from its first instant, and mended if it was wider."""
    if _create_private(path):
        return True
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise StoreUnusable(f"{path}: not a file")
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(os.stat(name).st_mode) & ~_PRIVATE:
                _narrow(name)
    return False


def _create_private(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE))
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreUnusable(f"{path}: the journal cannot be made ({error.strerror})") from error
    return True


def _narrow(name: str) -> None:
    try:
        os.chmod(name, _PRIVATE)
    except OSError as error:
        raise StoreUnusable(f"{name}: others may read it and its mode cannot be changed ({error.strerror})") from error


def _check_header(path: str) -> None:
    """Refuses what is no database, or one that was cut short, before SQLite touches it."""
    try:
        header = _read_header(path)
    except OSError as error:
        raise StoreUnusable(f"{path}: the journal cannot be read ({error.strerror})") from error
    if not header:
        return
    if not header.startswith(_MAGIC):
        raise StoreUnusable(f"{path}: not an everstep journal")
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    has_wal = os.path.exists(f"{path}-wal")
    # With a write-ahead log beside it the file may rightly be shorter than its header says.
    if not has_wal and os.path.getsize(path) < page_bytes * int.from_bytes(header[28:32], "big"):
        raise StoreUnusable(f"{path}: the journal is damaged (cut short); restore a backup")


def _read_header(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(100)


def _check_or_create(connection: sqlite3.Connection, path: str) -> None:
    application, version = _marks(connection)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application == 0 and not tables:
        _create(connection)
        return
    if application != APPLICATION_ID:
        raise StoreUnusable(f"{path}: not an everstep journal")
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path}: written by a newer everstep (journal format {version}, this one knows {SCHEMA_VERSION}); upgrade"
        )
    missing = sorted(table_names() - tables)
    if missing:
        raise StoreUnusable(f"{path}: the journal is damaged (no table {missing[0]}); restore a backup")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        if _marks(connection)[0] == 0:
            for statement in ddl(DIALECT):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return application, version


def _sync_folder(folder: str) -> None:
    try:
        fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be opened ({error.strerror})") from error
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
