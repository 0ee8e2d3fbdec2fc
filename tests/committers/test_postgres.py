"""The Postgres table committer, with a real server: nothing is lost and nothing doubled."""

from __future__ import annotations

import random
import string
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pyarrow as pa
import pytest
from tests.support.lakes import ids
from tests.support.postgres import PostgresQuery, query_into
from tests.support.sql_table import commit_answers

from penstock.committers.contract import BATCH_WRITE_PREFIX, ManifestState
from penstock.committers.database import transaction
from penstock.committers.errors import (
    AccessRefusedError,
    CommitStateUnknownError,
    ConfigurationError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.postgres.dialect import DIALECT
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import payloads, task
from penstock.testing.faults import crash_at
from penstock.writers.database.staging_writer import StagingWriter


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url())


# Commits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_id", [0, 1])
def test_an_unfinished_commit_is_awaited(
    query: PostgresQuery, store: SqlManifestStore, batch_id: int
) -> None:
    """The server still executes COMMIT while the client has lost its connection."""

    def late(connection: psycopg.Connection) -> None:
        real_close, connection.close = connection.close, lambda: None  # type: ignore[method-assign]

        def arrive() -> None:
            connection.commit()
            real_close()

        threading.Timer(1.0, arrive).start()
        raise psycopg.OperationalError("the connection was lost")

    for earlier in range(batch_id):
        query.run(store, query.batch(earlier), ids(earlier))
    with commit_answers(late):
        query.run(store, query.batch(batch_id), ids(batch_id))

    assert query.ids() == list(range(batch_id + 1))
    assert query.state(store, batch_id) is ManifestState.COMMITTED


def test_an_outage_after_commit_leaves_the_state_unknown(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_all(connection: psycopg.Connection) -> None:
        connection.commit()
        monkeypatch.setattr(psycopg, "connect", Mock(side_effect=psycopg.OperationalError("refused")))
        raise psycopg.OperationalError("the response was lost")

    with commit_answers(lose_all), pytest.raises(CommitStateUnknownError, match="may or may not be in"):
        query.run(store, query.batch(0), ids(1))
    monkeypatch.undo()
    query.run(store, query.batch(0), ids(1), run_id="r2")

    assert query.ids() == [1]


def test_a_row_of_the_fence_is_locked(query: PostgresQuery, store: SqlManifestStore) -> None:
    """Otherwise two drivers could read it before one of them changes it."""
    query.run(store, query.batch(0), ids(1))
    target: Any = query.target()
    with target._server.transaction("") as one, target._server.transaction("") as other:
        DIALECT.fence.lock(one, target._address, query.query_id, "")
        other.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            DIALECT.fence.lock(other, target._address, query.query_id, "")
        other.connection.rollback()


# The table changes under the stream -------------------------------------------------------------------


def test_changed_staging_tables_are_not_committed(query: PostgresQuery, store: SqlManifestStore) -> None:
    messages = query.write(query.plan(store, query.batch(0)), [ids(1, 2)])
    query.sql(f"DELETE FROM {query.staged()[0]} WHERE id = 1")
    with pytest.raises(TableNotSupportedError, match="has 1 rows, but its task has written"):
        query.commit(store, messages)

    assert query.ids() == []


def test_a_table_that_was_dropped_and_created_again_is_an_error_if_the_store_was_lost(
    query: PostgresQuery, store: SqlManifestStore, tmp_path: Path
) -> None:
    """The fence knows it."""
    query.run(store, query.batch(0), ids(1))
    query.sql("DROP TABLE events; CREATE TABLE events (id bigint)")
    with open_store(f"sqlite:///{tmp_path}/new.db") as new:
        with pytest.raises(TableChangedError, match="dropped and re-created"):
            query.run(new, query.batch(1), ids(2))

    assert query.ids() == []


@pytest.mark.parametrize("what", ["DELETE FROM penstock_fence", "DROP TABLE penstock_fence"])
def test_a_missing_fence_is_an_error(query: PostgresQuery, store: SqlManifestStore, what: str) -> None:
    query.run(store, query.batch(0), ids(1))
    query.sql(what)
    with pytest.raises(TableChangedError, match="has no batch"):
        query.run(store, query.batch(1), ids(2))

    assert query.ids() == [1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER id TYPE real", "'id' is now real; the rows were staged as bigint"),
        ("ADD must text NOT NULL", "'must' is NOT NULL in the table, has no default"),
        ("RENAME id TO key", "'id' is no longer in the table"),
        ("DROP id, ADD id bigint GENERATED ALWAYS AS IDENTITY", "'id' is now bigint"),
    ],
)
def test_a_table_that_was_altered_before_the_commit_does_not_get_the_rows(
    query: PostgresQuery, store: SqlManifestStore, change: str, says: str
) -> None:
    messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
    query.sql(f"ALTER TABLE events {change}")
    with pytest.raises(SchemaMismatchError, match=says):
        query.commit(store, messages)

    assert query.sql("SELECT * FROM events") == []


# Modes and schemas ------------------------------------------------------------------------------------


def test_new_columns_come_in_their_transaction(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(1))
    more = pa.table({"ID": pa.array([2], pa.int64()), "x": ["a"]})
    with pytest.raises(SchemaMismatchError, match="schemaEvolution=addColumns"):
        query.run(store, query.batch(1), more)
    with crash_at("prepare.done"):
        query.with_options(schemaEvolution="addColumns").run(store, query.batch(1), more)
    assert query.sql("SELECT * FROM events") == [(1,)]
    query.with_options(schemaEvolution="addColumns").run(store, query.batch(1), more, run_id="r2")

    assert query.sql("SELECT * FROM events ORDER BY id") == [(1, None), (2, "a")]


def test_postgres_fills_other_columns(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql(
        "CREATE TABLE events (n bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, "
        "twice bigint GENERATED ALWAYS AS (2 * id) STORED, d text NOT NULL DEFAULT 'd')"
    )
    query.run(store, query.batch(0), ids(5))

    assert query.sql("SELECT * FROM events") == [(1, 5, 10, "d")]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("(id integer)", "'id' is integer in the table, which cannot store int64"),
        ("(id bigint, x text NOT NULL)", "'x' is NOT NULL in the table, has no default"),
        ("(id bigint GENERATED ALWAYS AS IDENTITY)", "'id' is GENERATED ALWAYS"),
        ("(other bigint)", "the table has no column 'id'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    query: PostgresQuery, store: SqlManifestStore, ddl: str, said: str
) -> None:
    query.sql(f"CREATE TABLE events {ddl}")
    with pytest.raises(SchemaMismatchError, match=said):
        query.plan(store, query.batch(0))


TABLE = "CREATE TABLE events (id bigint)"
PARTITIONED = f"{TABLE} PARTITION BY RANGE (id);"


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("CREATE VIEW events AS SELECT 1::bigint AS id", "it is no table"),
        ("CREATE UNLOGGED TABLE events (id bigint)", "UNLOGGED"),
        (f"{TABLE}; CREATE RULE r AS ON INSERT TO events DO INSTEAD NOTHING", "it has rules"),
        (f"{PARTITIONED} CREATE UNLOGGED TABLE p PARTITION OF events DEFAULT", "its partition p is UNLOGGED"),
        (
            f"{PARTITIONED} CREATE TABLE p PARTITION OF events DEFAULT PARTITION BY RANGE (id); "
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; "
            "CREATE FOREIGN TABLE q PARTITION OF p DEFAULT SERVER s",
            "its partition q is UNLOGGED or a foreign table",
        ),
    ],
)
def test_unsupported_tables_are_refused(
    query: PostgresQuery, store: SqlManifestStore, ddl: str, said: str
) -> None:
    query.sql(ddl)
    with pytest.raises(TableNotSupportedError, match=said):
        query.plan(store, query.batch(0))


def test_a_new_unlogged_partition_gets_no_rows(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (id bigint) PARTITION BY RANGE (id)")
    messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
    query.sql("CREATE UNLOGGED TABLE p PARTITION OF events DEFAULT")
    with pytest.raises(TableNotSupportedError, match="its partition p is UNLOGGED"):
        query.commit(store, messages)

    assert query.ids() == []


def test_a_rule_that_was_dropped_is_no_rule(query: PostgresQuery, store: SqlManifestStore) -> None:
    """Postgres leaves relhasrules as it is."""
    query.sql("CREATE TABLE events (id bigint); CREATE RULE r AS ON INSERT TO events DO INSTEAD NOTHING")
    query.sql("DROP RULE r ON events")
    query.run(store, query.batch(0), ids(1))

    assert query.ids() == [1]


_KEEPS_ROWS = (
    "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
    "CREATE TRIGGER keeps BEFORE DELETE ON {on} FOR EACH ROW EXECUTE FUNCTION keep()"
)


@pytest.mark.parametrize("on", ["events", "p"])
def test_rows_that_a_trigger_may_keep_stay(query: PostgresQuery, store: SqlManifestStore, on: str) -> None:
    query.sql(
        "CREATE TABLE events (id bigint) PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF events DEFAULT"
    )
    query.run(store, query.batch(0), ids(1))
    messages = query.write(query.plan(store, query.batch(1), overwrite=True), [ids(2)])
    query.sql(_KEEPS_ROWS.format(on=on))
    with pytest.raises(TableNotSupportedError, match=r"the trigger keeps of (events|p) runs BEFORE DELETE"):
        query.target().plan_batch(ids(2).schema, "overwrite", 1)
    query.target().plan_batch(ids(2).schema, "append", 1)
    with pytest.raises(TableNotSupportedError, match=r"the trigger keeps of (events|p) runs BEFORE DELETE"):
        query.commit(store, messages)
    assert query.ids() == [1]
    query.sql(f"ALTER TABLE {on} DISABLE TRIGGER keeps")
    query.run(store, query.batch(1), ids(2), overwrite=True, run_id="r2")

    assert query.ids() == [2]


def test_rows_without_columns_are_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    with pytest.raises(SchemaMismatchError, match="have no columns"):
        query.plan(store, query.batch(0), pa.schema([]))


def test_a_column_that_may_be_each_of_two_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql('CREATE TABLE events ("Id" bigint, "iD" bigint)')
    with pytest.raises(SchemaMismatchError, match="'ID' matches each of 'Id', 'iD' in the table"):
        query.plan(store, query.batch(0), pa.table({"ID": [1]}).schema)
    query.run(store, query.batch(0), pa.table({"iD": [1]}))

    assert query.sql("SELECT * FROM events") == [(None, 1)]


def test_two_columns_are_not_written_into_one(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql('CREATE TABLE events ("Id" bigint)')
    with pytest.raises(SchemaMismatchError, match="'ID', 'iD' both match 'Id' in the table"):
        query.plan(store, query.batch(0), pa.table({"ID": [1], "iD": [2]}).schema)


def test_new_columns_may_differ_by_case(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (id bigint)")
    evolving = query.with_options(schemaEvolution="addColumns")
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(SchemaMismatchError, match="'x' occurs twice"):
        evolving.plan(store, evolving.batch(0), rows.schema)
    evolving.run(store, evolving.batch(0), pa.table({"x": [1], "X": [2], "ID": [3]}))

    assert query.sql("SELECT * FROM events") == [(3, 1, 2)]


NO_NAMES = [
    ("xmin", "'xmin' is a system column"),
    ("x" * 64, f"'{'x' * 64}' is longer than 63"),
    ("a\0b", r"'a\\x00b' has a NUL character"),
    ("", "a column has an empty name"),
]


@pytest.mark.parametrize(("name", "problem"), NO_NAMES)
def test_names_that_postgres_cannot_have_are_refused(
    query: PostgresQuery, store: SqlManifestStore, name: str, problem: str
) -> None:
    rows = pa.schema([("id", pa.int64()), (name, pa.int64())])
    evolving = query.with_options(schemaEvolution="addColumns")
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=problem):
            evolving.plan(store, query.batch(0), rows)
        query.sql("CREATE TABLE IF NOT EXISTS events (id bigint)")


def test_names_may_have_a_percent_sign(query: PostgresQuery, store: SqlManifestStore) -> None:
    schema = f"{query.schema}%s"
    query.sql(f'CREATE SCHEMA "{schema}"')
    there = query.with_options(dbtable=f'"{schema}"."a%b"')
    for batch_id in range(2):
        there.run(store, there.batch(batch_id), pa.table({"%(c)s": [batch_id]}))
    target: Any = there.target()
    target.accept("q1")
    target.recorded_origin("q1", ["there"])

    assert query.sql(f'SELECT * FROM "{schema}"."a%b" ORDER BY 1') == [(0,), (1,)]


def test_a_null_in_a_required_column_fails_the_task(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (id bigint NOT NULL)")
    rows = pa.table({"id": pa.array([1, None], pa.int64())})
    with pytest.raises(SchemaMismatchError, match="NULL in id"):
        query.run(store, query.batch(0), rows)

    assert query.staged() == []


def test_a_unique_constraint_refuses_the_batch(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY)")
    query.run(store, query.batch(0), ids(1))
    with pytest.raises(SchemaMismatchError, match="events_pkey") as refused:
        query.run(store, query.batch(1), ids(1, 2))

    assert query.ids() == [1]
    assert "=(1)" not in "".join(traceback.format_exception(refused.value))


def test_a_value_too_long_for_an_index_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (s text); CREATE INDEX ON events (s)")
    text = "".join(random.Random(1).choices(string.printable, k=20_000))  # it cannot be compressed
    with pytest.raises(SchemaMismatchError, match="rejected rows: index row"):
        query.run(store, query.batch(0), pa.table({"s": [text]}))


def test_a_table_is_not_created_without_createtable(query: PostgresQuery, store: SqlManifestStore) -> None:
    with pytest.raises(ConfigurationError, match="createTable=false"):
        query.with_options(createTable="false").plan(store, query.batch(0))


@pytest.mark.parametrize(
    ("granted", "says"),
    [
        ("USAGE ON SCHEMA {schema}", "denies access: permission denied.* Fix the url or the privileges"),
        (
            "USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema}",
            r"lacks privileges: .*INSERT on \"{schema}\"\.\"events\"",
        ),
    ],
)
def test_missing_rights_are_named(
    query: PostgresQuery, store: SqlManifestStore, granted: str, says: str
) -> None:
    query.run(store, query.batch(0), ids(1))
    names = {"schema": query.schema, "user": f"u_{query.schema}"}
    query.sql(f"CREATE ROLE {names['user']} LOGIN; GRANT {granted.format(**names)} TO {names['user']}")
    other = query.url.replace("//postgres", f"//{names['user']}", 1)
    assert other != query.url
    with pytest.raises(AccessRefusedError, match=says.format(**names)):
        query_into(other, "q2").plan(store, query_into(other, "q2").batch(0))


def test_the_documented_rights_are_enough(query: PostgresQuery, store: SqlManifestStore) -> None:
    """Without DELETE on the fence old rows stay there; with it they go."""
    query.run(store, query.batch(0), ids(1))
    user = f"u_{query.schema}"
    query.sql(
        f"CREATE ROLE {user} LOGIN; GRANT USAGE, CREATE ON SCHEMA {query.schema} TO {user}; "
        f"GRANT INSERT, SELECT ON events TO {user}; GRANT SELECT, INSERT, UPDATE ON penstock_fence TO {user}"
    )
    url = query.url.replace("//postgres", f"//{user}", 1)
    writes = [query_into(url, f"{BATCH_WRITE_PREFIX}{number}") for number in range(3)]
    writes[0].run(store, writes[0].batch(0), ids(2))
    query.sql("UPDATE penstock_fence SET committed_at = committed_at - interval '8 days'")
    writes[1].run(store, writes[1].batch(0), ids(3))
    assert query.sql("SELECT count(*) FROM penstock_fence") == [(3,)]
    query.sql(f"GRANT DELETE ON penstock_fence TO {user}")
    writes[2].run(store, writes[2].batch(0), ids(4))

    assert query.ids() == [1, 2, 3, 4]
    assert sorted(query.sql("SELECT query_id FROM penstock_fence")) == [("q1",), ("write-1",), ("write-2",)]


# Staging tables ---------------------------------------------------------------------------------------


def test_the_server_takes_one_batch_while_the_task_makes_the_next(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, is_next_asked_for = StagingWriter._load, threading.Event()
    first, second = ids(*range(10_000)), ids(*range(10_000, 20_000))

    def slow_copy(writer: StagingWriter, *arguments: Any) -> None:
        assert is_next_asked_for.wait(10)
        copy(writer, *arguments)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        is_next_asked_for.set()
        yield from second.to_batches()

    monkeypatch.setattr(StagingWriter, "_load", slow_copy)
    plan = query.plan(store, query.batch(0), first.schema)
    query.commit(store, [plan.write(batches(), task(plan.batch))])
    assert query.ids() == list(range(20_000))


def test_reading_staged_rows_writes_no_pages(query: PostgresQuery, store: SqlManifestStore) -> None:
    """The first reader of rows that are not frozen marks them, and with checksums logs each page."""
    rows = ids(*range(50_000))
    (staged,) = payloads(query.write(query.plan(store, query.batch(0), rows.schema), [rows]))

    def log_bytes() -> int:
        ((position,),) = query.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        return int(position)

    assert query.sql("SHOW data_checksums") == [("on",)]
    query.sql("CHECKPOINT")
    before = log_bytes()
    assert query.sql(f"SELECT count(*) FROM {staged[0].path}") == [(50_000,)]
    assert log_bytes() - before < 200_000  # their pages have 1.8 MB


def test_a_reader_of_a_staging_table_does_not_hold_up_the_commit(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pg_dump reads it for hours. The rows are in the table once, however long it takes."""
    monkeypatch.setattr(transaction, "DROP_TIMEOUT_S", 0.1)
    messages = query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)])
    (name, *_) = query.staged()
    with psycopg.connect(query.url.replace("+psycopg", "")) as dump:
        dump.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
        query.commit(store, messages)
        query.run(store, query.batch(1), ids(3))

    assert query.ids() == [1, 2, 3]
    assert len(query.staged()) == 2
    assert query.plan(store, query.batch(0)).writers is None


def test_staging_tables_are_in_the_staging_schema(query: PostgresQuery, store: SqlManifestStore) -> None:
    schema = f"{query.schema}_staging"
    query.sql(f"CREATE SCHEMA {schema}")
    messages = query.write(query.with_options(stagingSchema=schema).plan(store, query.batch(0)), [ids(1)])

    assert [table.schema for tables in payloads(messages) for table in tables] == [schema]
    query.commit(store, messages)
    assert query.ids() == [1]
