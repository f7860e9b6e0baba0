"""What members send does not stay in Flower's database: not in its tables, its free pages or its log."""

import signal
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from fedlap.errors import ConfigError

# Which nodes there are, and what the tables look like. Every other table is emptied: nobody can say of the next version
# of Flower in which of them it will keep what a member has sent.
KEPT = {"node", "alembic_version", "sqlite_sequence"}
SECONDS = 60.0  # for another connection to let go of the database


def erase_messages(database: Path, keys: Collection[bytes] | None = None) -> None:
    """Empty a database of Flower's of all but its nodes, of these keys if they are given, and write it anew.

    It is not deleted, for it knows the nodes: one that was left running would not be let in again, and end. No run
    outlasts the server, so what an ended one has left behind goes too, delivered or not.
    """
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(database, timeout=SECONDS, isolation_level=None)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            connection.execute("BEGIN IMMEDIATE")
            for (table,) in found:
                if table not in KEPT:
                    connection.execute(f'DELETE FROM "{table}"')
                if table == "node" and keys is not None:
                    places = ", ".join("?" * len(keys))
                    connection.execute(f"DELETE FROM node WHERE public_key NOT IN ({places})", tuple(keys))
            connection.execute("COMMIT")
            connection.execute("VACUUM")
            empty = empty_log(connection)
        if not empty:
            raise sqlite3.OperationalError("another program reads it")
    except sqlite3.Error as error:
        raise ConfigError(
            f"{database}: still holds what members have sent ({error}); start and stop the server again to erase it"
        ) from error


def empty_log(connection: sqlite3.Connection) -> bool:
    """Move the log of a database into it and leave nothing in the log; whether others let it, in the time they have."""
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def overwrite_deleted() -> None:
    """Have every connection of Flower's in this process overwrite with zeros what it deletes."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    @event.listens_for(Engine, "connect")
    def overwrite(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA secure_delete = ON")


def ignore_signals() -> None:
    """Let nothing but a kill interrupt the erasing: whoever stops a server twice still wants it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
