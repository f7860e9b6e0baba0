"""What members have sent is in no file of the server's database once it is delivered, or the server has stopped."""

import sqlite3
import threading
from contextlib import closing

import pytest

from fedlap.errors import ConfigError
from fedlap.flower import erasure

REPLY = b"a member's reply" * 1000


def found(folder):
    return {path.name for path in folder.iterdir() if b"a member's reply" in path.read_bytes()}


@pytest.fixture
def database(tmp_path):
    """A database as Flower keeps it, with replies of a run that has ended and of one that has not."""
    path = tmp_path / "superlink.db"
    connection = sqlite3.connect(path, isolation_level=None)  # stays open, as Flower's does
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA secure_delete = OFF")  # on by default on some systems, for the pages alone
    connection.execute("CREATE TABLE objects (run INTEGER, content BLOB)")
    connection.execute("CREATE TABLE a_table_of_a_later_flower (content BLOB)")
    connection.execute("CREATE TABLE node (name TEXT, public_key BLOB)")
    connection.execute("INSERT INTO node VALUES ('va', X'01'), ('gone', X'02')")
    connection.executemany("INSERT INTO objects VALUES (?, ?)", [(run, REPLY) for run in (1, 2) for _ in range(10)])
    connection.execute("INSERT INTO a_table_of_a_later_flower VALUES (?)", (REPLY,))
    connection.execute("PRAGMA wal_checkpoint")
    connection.execute("DELETE FROM objects WHERE run = 1")
    assert found(tmp_path) == {"superlink.db", "superlink.db-wal"}
    yield path, connection
    connection.close()


def test_a_stop_erases_what_was_deleted_and_what_nobody_has_fetched(database, tmp_path):
    path, connection = database
    erasure.erase_messages(path)
    assert found(tmp_path) == set()
    assert connection.execute("SELECT name FROM node").fetchall() == [("va",), ("gone",)]


def test_a_start_also_forgets_the_nodes_of_keys_that_are_no_members(database, tmp_path):
    path, connection = database
    erasure.erase_messages(path, [b"\x01"])
    assert found(tmp_path) == set()
    assert connection.execute("SELECT name FROM node").fetchall() == [("va",)]


def test_a_server_that_was_never_started_has_nothing_to_erase(tmp_path):
    erasure.erase_messages(tmp_path / "none.db")
    assert not list(tmp_path.iterdir())


def test_whoever_still_reads_is_waited_for(database, tmp_path):
    """On a busy machine a request may still be at work when the server stops."""
    path, _ = database
    with closing(sqlite3.connect(path, check_same_thread=False)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM objects").fetchone()
        later = threading.Timer(0.5, reader.rollback)
        later.start()
        erasure.erase_messages(path)
        later.join()
    assert found(tmp_path) == set()


def test_one_that_never_ends_is_named(database, tmp_path, monkeypatch):
    path, _ = database
    monkeypatch.setattr(erasure, "SECONDS", 0.1)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM objects").fetchone()
        with pytest.raises(ConfigError, match=r"superlink\.db: still holds .* start and stop the server again"):
            erasure.erase_messages(path)


def test_what_is_deleted_is_overwritten_and_leaves_the_log_while_the_server_runs(tmp_path):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    erasure.overwrite_deleted()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'superlink.db'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        connection.exec_driver_sql("CREATE TABLE objects (content BLOB)")
        connection.exec_driver_sql("INSERT INTO objects VALUES (?)", (REPLY,))
        connection.commit()
        connection.exec_driver_sql("DELETE FROM objects")
        connection.commit()
    assert found(tmp_path)
    with closing(sqlite3.connect(tmp_path / "superlink.db")) as connection:
        assert erasure.empty_log(connection)
    assert found(tmp_path) == set()
    engine.dispose()
