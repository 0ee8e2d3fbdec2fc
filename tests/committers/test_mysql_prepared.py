"""`commit=prepared` in MariaDB and MySQL: what the others do not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any
from unittest import mock

import pyarrow as pa
import pymysql
import pytest
from servers.mysql import MySqlProcess
from tests.support.mysql import MySqlQuery, new_query, on_both, on_mariadb, query_into
from tests.support.prepared_tables import PreparedInMySql

from penstock.committers.database import prepared
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.mysql import connection as mysql_connection
from penstock.committers.mysql.connection import Connection, MySqlServer
from penstock.committers.mysql.prepared import MySqlPrepared
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at


@pytest.fixture
def tables(mysql_server: MySqlProcess) -> PreparedInMySql:
    return PreparedInMySql(mysql_server)


@pytest.fixture
def query(tables: PreparedInMySql) -> MySqlQuery:
    return tables.new_query()


# Whose transactions they are --------------------------------------------------------------------------


@on_both
def test_the_transactions_of_others_are_never_ended(
    tables: PreparedInMySql, mysql_server: MySqlProcess, query: MySqlQuery, store: SqlManifestStore
) -> None:
    """XA RECOVER lists those of the whole server. Other applications have names that are no texts."""
    other_query = query_into(query.table.url, "q2", commit="prepared")
    other_database = new_query(mysql_server, commit="prepared")
    for other in (other_query, other_database):
        other.write(other.plan(store, other.batch(0)), [ids(8), ids(9)])
    foreign = "X'FF00FE', X'80812F', 7"
    with closing(mysql_server.connect(query.table.schema)) as application, application.cursor() as cursor:
        cursor.execute("CREATE TABLE others (n int)")
        for statement in (
            f"XA START {foreign}",
            "INSERT INTO others VALUES (1)",
            f"XA END {foreign}",
            f"XA PREPARE {foreign}",
        ):
            cursor.execute(statement)

    query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)], run_id="dead")
    query.run(store, query.batch(0), ids(1), ids(2))
    query.run(store, query.batch(1), ids(3))

    assert query.ids() == [1, 2, 3]
    assert tables.kept(query) == []
    assert [len(tables.kept(other)) for other in (other_query, other_database)] == [2, 2]
    query.sql(f"XA COMMIT {foreign}")
    assert query.sql("SELECT n FROM others") == [(1,)]
    for other in (other_query, other_database):
        other.run(store, other.batch(0), ids(5))
        assert tables.left(other) == []
    assert query.ids() == [1, 2, 3, 5]
    assert other_database.ids() == [5]


def test_a_transaction_is_as_old_as_its_name_says(
    tables: PreparedInMySql, query: MySqlQuery, store: SqlManifestStore
) -> None:
    """The server does not say when it was prepared. Clean-up leaves young ones."""
    query.write(query.plan(store, query.batch(0)), [ids(1)])
    with closing(MySqlServer(query.table.server_settings, "t").connect()) as connection:
        kept = MySqlPrepared().kept(connection.cursor())
    ((now,),) = query.sql("SELECT UNIX_TIMESTAMP()")
    ages = [now - one.prepared_at.timestamp() for one in kept if one.name in tables.kept(query)]
    assert len(ages) == 1
    assert 0 <= ages[0] < 3600


# Sessions ---------------------------------------------------------------------------------------------


@contextmanager
def silent_tasks() -> Iterator[list[Any]]:
    """Tasks of the block whose machine is lost right after they have prepared: the server does not see that
    they close their connections, which last as long as the list.
    """
    silent: list[Any] = []
    with mock.patch.object(Connection, "close", lambda connection: silent.append(connection)):
        yield silent


@on_mariadb
def test_a_task_that_is_silent_holds_its_transaction_for_seconds(
    tables: PreparedInMySql, query: MySqlQuery, store: SqlManifestStore
) -> None:
    """Until then XA COMMIT of any other session finds no such transaction. MySQL lets any session end it."""
    plan = query.plan(store, query.batch(0))
    with silent_tasks() as silent:
        messages = query.write(plan, [ids(1, 2)])
    assert silent
    query.commit(store, messages)
    assert query.ids() == [1, 2]
    assert tables.left(query) == []


@on_mariadb
def test_a_transaction_that_another_session_has_is_named(
    tables: PreparedInMySql, query: MySqlQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "BUSY_S", 0.2)
    plan = query.plan(store, query.batch(0))
    with silent_tasks() as silent:
        messages = query.write(plan, [ids(1, 2)])
    assert silent
    with pytest.raises(RetryableError, match="Another session has had the prepared transaction q1/penstock_"):
        query.commit(store, messages)
    monkeypatch.undo()
    query.run(store, query.batch(1), ids(3))
    assert query.ids() == [1, 2, 3]


def test_tasks_do_not_wait_for_each_other(query: MySqlQuery, store: SqlManifestStore) -> None:
    """Neither do batches of other queries, whose verdicts are between the rows that tasks have written."""
    query.sql("CREATE TABLE events (n bigint AUTO_INCREMENT PRIMARY KEY, id bigint UNIQUE)")
    others = [query_into(query.table.url, name, commit="prepared") for name in ("q0", "q2")]
    plan = query.plan(store, query.batch(0))
    with mock.patch.dict(mysql_connection._SESSION, {"innodb_lock_wait_timeout": "1"}):
        messages = query.write(plan, [ids(2 * number) for number in range(4)])
        for number, other in enumerate(others):
            other.run(store, other.batch(0), ids(2 * number + 1), ids(100 + number))
        query.commit(store, messages)
    assert query.ids() == [0, 1, 2, 3, 4, 6, 100, 101]


# What servers refuse ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("varchar(2)", "abc", "does not fit"),
        ("varchar(9) CHARACTER SET latin1", "\u6f22", "not valid"),
        ("varchar(9) UNIQUE", "ab", "duplicate entry"),
        ("timestamp(6) NULL", datetime(1960, 1, 1, tzinfo=timezone.utc), "not valid|Incorrect|Out of range"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_a_value_that_the_table_refuses_fails_its_task_and_is_not_changed(
    tables: PreparedInMySql,
    query: MySqlQuery,
    store: SqlManifestStore,
    column: str,
    value: Any,
    said: str,
    is_local: bool,
) -> None:
    """With LOAD DATA LOCAL a server takes the nearest value, or leaves a row out, and only warns."""
    query.sql(f"CREATE TABLE events (id {column})")
    if isinstance(value, str):
        query.sql("INSERT INTO events VALUES ('ab')")
    kind = pa.string() if isinstance(value, str) else pa.timestamp("us", "UTC")
    rows = pa.table({"id": pa.array([value], kind)})
    with mock.patch.object(Connection, "loads_rows", is_local):
        with pytest.raises(SchemaMismatchError, match=f"(?i){said}"):
            query.run(store, query.batch(0), rows)
    assert query.sql("SELECT count(*) FROM events") == [(1 if isinstance(value, str) else 0,)]
    assert tables.kept(query) == []


def test_warnings_are_errors_of_a_server_that_stores_none(
    mysql_server: MySqlProcess, query: MySqlQuery
) -> None:
    query.sql("CREATE TABLE loaded (n tinyint)")
    with mysql_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL max_error_count = 0")
        try:
            with closing(MySqlServer(query.table.server_settings, "t").connect()) as connection:
                with pytest.raises(pymysql.DataError, match=r"Out of range|was changed to fit"):
                    connection.load("LOAD DATA LOCAL INFILE 'x' INTO TABLE loaded", b"300\n")
        finally:
            cursor.execute("SET GLOBAL max_error_count = 64")


def test_a_server_that_becomes_read_only_ends_the_transactions_later(
    tables: PreparedInMySql, mysql_server: MySqlProcess, query: MySqlQuery, store: SqlManifestStore
) -> None:
    """A user with READ ONLY ADMIN would not be refused."""
    user = tables.user_of(query)
    limited = query_into(query.table.url.replace("//penstock:", f"//{user}:"), commit="prepared")
    query.sql(f"GRANT ALL ON {query.table.schema}.* TO {user}@'127.0.0.1'")
    with crash_at("prepared.decided"):
        limited.run(store, limited.batch(0), ids(1), ids(2))
    query.sql("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(RetryableError, match=r"read-only.*standby"):
            limited.recover(store)
    finally:
        query.sql("SET GLOBAL read_only = 0")
    limited.run(store, limited.batch(1), ids(3))
    assert query.ids() == [1, 2, 3]


@on_mariadb
@pytest.mark.parametrize(
    ("version", "said"),
    [("5.5.5-10.4.30-MariaDB", r"10\.4\.30-MariaDB"), ("5.7.44-log", r"5\.7\.44")],
)
def test_a_server_whose_transactions_end_with_their_connection_is_refused(
    query: MySqlQuery, store: SqlManifestStore, version: str, said: str
) -> None:
    with mock.patch.object(Connection, "get_server_info", return_value=version):
        with pytest.raises(ConfigurationError, match=f"commit=prepared: .*{said}"):
            query.plan(store, query.batch(0))
    assert query.table.tables() == []


def test_a_galera_cluster_is_refused(query: MySqlQuery, store: SqlManifestStore) -> None:
    real = Connection.query

    def in_cluster(self: Any, statement: str, *given: Any) -> Any:
        return real(self, "SELECT 'wsrep_on', 'ON'" if "wsrep_on" in str(statement) else statement, *given)

    with mock.patch.object(Connection, "query", in_cluster):
        with pytest.raises(ConfigurationError, match="Galera"):
            query.plan(store, query.batch(0))
    assert query.table.tables() == []


def test_a_user_of_mysql_8_without_xa_recover_admin_is_told(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    real = Connection.query

    def denied(self: Any, statement: str, *given: Any) -> Any:
        if "XA RECOVER" in str(statement):
            raise pymysql.err.OperationalError(
                1401, "XAER_RMERR: Fatal error occurred in the transaction branch"
            )
        return real(self, statement, *given)

    with mock.patch.object(Connection, "query", denied):
        with pytest.raises(AccessRefusedError, match="XA_RECOVER_ADMIN"):
            query.plan(store, query.batch(0))
        staged = query_into(query.table.url)
        staged.run(store, staged.batch(0), ids(1))  # which needs no such right
    assert query.ids() == [1]


@pytest.mark.parametrize(
    "data",
    [b"q1penstock_0123456789ab_3_0_0123456789", "0x" + b"q1penstock_0123456789ab_3_0_0123456789".hex()],
)
def test_names_are_read_in_the_form_of_each_server(data: Any) -> None:
    """MySQL lists them in hex with CONVERT XID, since they may be no texts."""
    cursor = mock.Mock()
    cursor.connection.is_mariadb = isinstance(data, bytes)
    rows = [(29_000_000, 2, 36, data), (1, 1, 1, "0xFFFE"), (1, 2, 3, b"q1abc")]
    cursor.execute.return_value.fetchall.return_value = rows
    (one,) = MySqlPrepared().kept(cursor)
    assert (one.query_id, one.name) == ("q1", "penstock_0123456789ab_3_0_0123456789")
    assert one.prepared_at.year == 2025
    cursor.execute.assert_called_with("XA RECOVER" if isinstance(data, bytes) else "XA RECOVER CONVERT XID")
