"""The MySQL table committer, with a real server: nothing is lost and nothing doubled."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from servers.mysql import PASSWORD, MySQL, MySqlProcess, running
from tests.support.lakes import ids
from tests.support.mysql import MySqlQuery, new_query, on_both, query_into
from tests.support.sql_table import commit_answers
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.contract import BATCH_WRITE_PREFIX, Conflict, ManifestState
from penstock.committers.database import transaction
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.mysql.address import settings_of
from penstock.committers.mysql.connection import MySqlServer
from penstock.committers.store.sql import SqlManifestStore


@pytest.fixture
def query(mysql_server: MySqlProcess) -> MySqlQuery:
    return new_query(mysql_server)


# Commits ----------------------------------------------------------------------------------------------


def test_an_unfinished_commit_is_awaited(query: MySqlQuery, store: SqlManifestStore) -> None:
    """The server still executes COMMIT while the client has lost its connection."""

    def late(connection: Any) -> None:
        real_close, connection.close = connection.close, lambda: None

        def arrive() -> None:
            connection.commit()
            real_close()

        threading.Timer(1.0, arrive).start()
        raise pymysql.OperationalError(2013, "the connection was lost")

    query.run(store, query.batch(0), ids(0))
    with commit_answers(late):
        query.run(store, query.batch(1), ids(1))

    assert query.ids() == [0, 1]
    assert query.state(store, 1) is ManifestState.COMMITTED


def test_a_deadlock_is_a_conflict_that_is_tried_again(
    query: MySqlQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction has a key of the batch, and waits for a row that the commit has locked."""
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY)")
    query.run(store, query.batch(0), ids(0))
    outcomes: list[Any] = []
    real = transaction.TransactionCommitter.commit

    def commit(self: Any, *given: Any) -> Any:
        outcomes.append(real(self, *given))
        return outcomes[-1]

    monkeypatch.setattr(transaction.TransactionCommitter, "commit", commit)
    given = settings_of(query.table.url)
    other = pymysql.connect(
        host=given["host"], port=int(given["port"]), user=given["user"], password=given["password"],
        database=given["database"],
    )  # fmt: skip
    cursor = other.cursor()
    cursor.execute("SET innodb_lock_wait_timeout = 20")
    cursor.execute("INSERT INTO events VALUES (7)")
    # it has changed more rows, so that the server ends the other one
    cursor.executemany("INSERT INTO events VALUES (%s)", [(number,) for number in range(1000, 3000)])

    def lock_fence() -> None:
        waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        while query.sql(waits) == [(0,)]:
            time.sleep(0.05)
        cursor.execute("UPDATE penstock_fence SET version = version WHERE query_id = 'q1'")
        other.rollback()
        other.close()

    waiting = threading.Thread(target=lock_fence)
    waiting.start()
    query.run(store, query.batch(1), ids(7))
    waiting.join()

    assert isinstance(outcomes[0], Conflict)
    assert query.ids() == [0, 7]


def test_staging_tables_that_a_lost_driver_has_left_are_dropped_by_the_next_try(
    query: MySqlQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are dropped after the COMMIT, because DROP TABLE would commit."""
    monkeypatch.setattr(transaction.TransactionCommitter, "_finish", lambda *_: None)
    manifest = query.prepare(store, query.batch(0), ids(0))
    target = query.target()
    target.commit(manifest)
    assert len(query.staged()) == 1
    monkeypatch.undo()

    query.recover(store)

    assert query.staged() == []
    assert query.ids() == [0]


def test_the_fence_forgets_old_batch_writes(query: MySqlQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    for number in (1, 2):
        query.sql("UPDATE penstock_fence SET committed_at = committed_at - INTERVAL 8 DAY")
        write = query_into(query.table.url, f"{BATCH_WRITE_PREFIX}{number}")
        write.run(store, write.batch(0), ids(number))

    found = query.sql("SELECT query_id FROM penstock_fence ORDER BY query_id")
    assert found == [("q1",), (f"{BATCH_WRITE_PREFIX}2",)]
    assert query.ids() == [0, 1, 2]


# Tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE events (id bigint) ENGINE = MyISAM", "MyISAM has no transactions"),
        ("CREATE VIEW events AS SELECT 1 AS id", "it is no plain table"),
    ],
)
def test_unsupported_tables_are_refused(
    query: MySqlQuery, store: SqlManifestStore, statement: str, said: str
) -> None:
    query.sql(statement)
    with pytest.raises(TableNotSupportedError, match=said):
        query.run(store, query.batch(0), ids(1))


def test_a_table_with_other_rows_and_columns_gets_the_rows(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    query.sql(
        "CREATE TABLE events (n int AUTO_INCREMENT PRIMARY KEY, ID bigint NOT NULL, "
        "twice bigint AS (id * 2), "
        "made timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) PARTITION BY HASH (n) PARTITIONS 3"
    )
    query.run(store, query.batch(0), ids(4, 5))
    assert query.sql("SELECT n > 0, ID, twice, made IS NULL FROM events ORDER BY ID") == [
        (1, 4, 8, 0), (1, 5, 10, 0)
    ]  # fmt: skip


def test_names_may_have_any_character(query: MySqlQuery, store: SqlManifestStore) -> None:
    names = ["a`b", "100%", "%s", "sp ace", "Ünï", "select", "x'y", 'x"y', "a\\b"]
    query.run(store, query.batch(0), pa.table({name: [number] for number, name in enumerate(names)}))
    assert query.sql("SELECT * FROM events") == [tuple(range(len(names)))]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "an empty name"), ("x" * 65, "longer than 64"), ("🙂", "beyond U"), ("x ", "ends with a space"),
        ("Penstock_row", "column of the staging tables"),
    ],
)  # fmt: skip
def test_names_that_mysql_cannot_have_are_refused(
    query: MySqlQuery, store: SqlManifestStore, name: str, said: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=said):
        query.run(store, query.batch(0), pa.table({name: [1]}))


def test_columns_that_differ_only_by_case_are_refused(query: MySqlQuery, store: SqlManifestStore) -> None:
    with pytest.raises(SchemaMismatchError, match=r"(?i)duplicate column name"):
        query.run(store, query.batch(0), pa.table({"a": [1], "A": [2]}))


def test_a_table_that_another_one_replaced_is_noticed(query: MySqlQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    query.sql("DROP TABLE events")
    query.sql("CREATE TABLE events (id bigint)")
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        query.run(store, query.batch(1), ids(1))


def test_a_table_of_another_case_is_another_table(query: MySqlQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE EVENTS (id bigint)")
    query.run(store, query.batch(0), ids(0))
    assert query.ids() == [0]
    assert query.sql("SELECT count(*) FROM EVENTS") == [(0,)]


def test_rows_that_break_a_constraint_are_named_without_their_values(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY, s varchar(90) UNIQUE)")
    query.sql("INSERT INTO events VALUES (1, 'geheim-value')")
    rows = pa.table({"id": [5, 6], "s": ["other", "geheim-value"]})
    with pytest.raises(
        SchemaMismatchError, match=r"(?s)duplicate entry for key (events\.)?s: .*the row with id = '6'"
    ) as refused:
        query.run(store, query.batch(0), rows)
    assert "geheim" not in str(refused.value)
    assert query.ids() == [1]


@on_both
def test_missing_privileges_are_named(mysql_server: MySqlProcess, store: SqlManifestStore) -> None:
    url = mysql_server.new_url()
    owner = query_into(url)
    owner.run(store, owner.batch(0), ids(0))
    schema = owner.table.schema
    user = f"u{schema[:20]}"
    with mysql_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT CREATE, DROP, SELECT ON {schema}.* TO {user}@'127.0.0.1'")
        limited = query_into(url.replace("//penstock:", f"//{user}:"), "q2")
        with pytest.raises(AccessRefusedError, match="INSERT command denied"):
            limited.run(store, limited.batch(0), ids(1))
        cursor.execute(f"GRANT INSERT ON {schema}.* TO {user}@'127.0.0.1'")
        with pytest.raises(AccessRefusedError, match="UPDATE command denied"):
            limited.run(store, limited.batch(0), ids(1))
        cursor.execute(f"GRANT UPDATE ON {schema}.penstock_fence TO {user}@'127.0.0.1'")
        limited.run(store, limited.batch(0), ids(1))
    assert owner.ids() == [0, 1]


# Servers ----------------------------------------------------------------------------------------------


def test_a_server_gets_no_file_that_it_asks_for(
    query: MySqlQuery, store: SqlManifestStore, tmp_path: Path
) -> None:
    """With LOAD DATA LOCAL a server may name any file of the client, in its answer to any statement."""
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    server = MySqlServer(settings_of(query.table.url), "t")
    connection = server.connect()
    query.sql("CREATE TABLE loot (s longtext)")

    connection.query(f"LOAD DATA LOCAL INFILE '{secret}' INTO TABLE loot")
    connection.commit()
    connection.close()

    assert query.sql("SELECT * FROM loot") == []


def test_a_load_that_changes_a_value_is_an_error(query: MySqlQuery) -> None:
    """With LOCAL the server takes the nearest value, whatever the mode, and only warns."""
    query.sql("CREATE TABLE loaded (n tinyint)")
    with closing(MySqlServer(settings_of(query.table.url), "t").connect()) as connection:
        with pytest.raises(pymysql.DataError, match="Out of range"):
            connection.load("LOAD DATA LOCAL INFILE 'x' INTO TABLE loaded", b"300\n")


def test_a_database_that_does_not_exist_is_no_outage(mysql_server: MySqlProcess) -> None:
    url = f"mysql://penstock:{PASSWORD}@127.0.0.1:{mysql_server.port}/nowhere"
    with pytest.raises(ConfigurationError, match="does not exist"):
        MySqlServer(settings_of(url), "t").connect()


@pytest.mark.campaign
def test_a_server_that_requires_primary_keys(store: SqlManifestStore) -> None:
    """As many managed ones do. They also have GTIDs, and other defaults than those of MySQL."""
    settings = (
        "--sql-require-primary-key=ON", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
        "--character-set-server=latin1", "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES", "--default-time-zone=+05:00",
        "--binlog-row-image=MINIMAL", "--transaction-isolation=SERIALIZABLE",
    )  # fmt: skip
    with skipped_if_unreachable(), running(MySQL, *settings) as server:
        for number, options in enumerate(({}, {"commit": "prepared"}, {"writeMode": "upsert", "keys": "id"})):
            query = new_query(server, f"q{number}", **options)
            if "keys" not in options:
                with pytest.raises(ConfigurationError, match="sql_require_primary_key"):
                    query.run(store, query.batch(0), ids(1, 2))
                query.sql("CREATE TABLE events (id bigint PRIMARY KEY)")
            query.run(store, query.batch(0), ids(1, 2))
            assert query.ids() == [1, 2]
