"""`commit=prepared`: tasks prepare transactions, and each row comes exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from servers.postgres import Postgres, postgres
from tests.support.postgres import PostgresQuery, query_into

from penstock import reader
from penstock.committers.contract import ManifestState
from penstock.committers.database.staging import query_hash
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.planning.plan import plan_batch_write
from penstock.readers.postgres import table as reading
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def query(server: Postgres) -> PostgresQuery:
    return query_into(server.new_url(), commit="prepared")


@pytest.fixture
def empty_store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    """A store as after the first one was lost."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        yield store


def kept(query: PostgresQuery) -> list[str]:
    """The transactions that the server keeps for the table."""
    target: Any = query.target()
    name = f"%{query_hash(query.query_id, target._address.sql)}%"
    found = query.sql("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s ORDER BY gid", name)
    return [gid for (gid,) in found]


def left(query: PostgresQuery) -> list[Any]:
    return [*kept(query), *query.staged(), *query.sql("SELECT * FROM penstock_prepared")]


def end(query: PostgresQuery, gid: str, how: str) -> None:
    with psycopg.connect(query.url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute(f"{how} PREPARED '{gid}'")


def test_rows_are_written_once_and_nothing_is_left(query: PostgresQuery, store: SqlManifestStore) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1, 2), ids(3), ids()])
    assert query.ids() == []
    assert len(kept(query)) == 2
    query.commit(store, messages)

    assert query.ids() == [1, 2, 3]
    assert left(query) == []
    query.run(store, query.batch(1), ids(4))
    assert query.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "point",
    [
        "write.files_closed",
        "prepare.start",
        "prepare.done",
        "commit.start",
        "prepared.decided",
        "prepared.ended",
        "commit.landed",
        "mark.done",
    ],
)
@pytest.mark.parametrize("has_store", [True, False])
def test_a_crash_at_each_step_loses_and_doubles_nothing(
    query: PostgresQuery, store: SqlManifestStore, empty_store: SqlManifestStore, point: str, has_store: bool
) -> None:
    query.run(store, query.batch(0), ids(0))
    with crash_at(point):
        query.run(store, query.batch(1), ids(1, 2), ids(3))
    again = store if has_store else empty_store
    query.run(again, query.batch(1), ids(1), ids(2), ids(3), run_id="r2")
    assert query.ids() == [0, 1, 2, 3]
    query.run(again, query.batch(2), ids(4), run_id="r2")

    assert query.ids() == [0, 1, 2, 3, 4]
    assert left(query) == []
    assert not again.pending(query.stream)


@pytest.mark.parametrize("parts", ["1", "2"])
def test_a_reader_sees_no_part_of_a_batch(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    """It fails until somebody has committed what the driver that died has left."""
    monkeypatch.setattr(reading, "BUSY_S", 0.2)
    query.run(store, query.batch(0), ids(0))
    with crash_at("prepared.ended"):
        query.run(store, query.batch(1), ids(1, 2), ids(3))
    assert query.ids() in ([0, 1, 2], [0, 3])
    table = reader.open_table("penstock.postgres", {**query.table.options, "numPartitions": parts})
    with pytest.raises(RetryableError, match="partly visible"):
        table.to_reader().read_all()
    query.recover(store)
    assert sorted(table.to_reader().read_all()["id"].to_pylist()) == [0, 1, 2, 3]


def test_a_killed_server_keeps_what_tasks_have_prepared(
    server: Postgres, query: PostgresQuery, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1, 2), ids(3)])
    server.kill()
    server.start()
    with crash_at("prepared.ended"):
        query.commit(store, messages)
    server.kill()
    server.start()
    query.run(store, query.batch(1), ids(4))

    assert query.ids() == [1, 2, 3, 4]
    assert left(query) == []


def test_orphans_are_rolled_back_before_the_tasks_run(query: PostgresQuery, store: SqlManifestStore) -> None:
    """With a unique index, an orphan keeps the replay from writing its keys."""
    query.run(store, query.batch(0), ids(0))
    query.sql("CREATE UNIQUE INDEX ON events (id)")
    query.write(query.plan(store, query.batch(1)), [ids(1), ids(2)])
    assert len(kept(query)) == 2
    query.run(store, query.batch(1), ids(1, 2), run_id="r2")

    assert query.ids() == [0, 1, 2]
    assert left(query) == []


def test_a_driver_whose_transactions_were_rolled_back_commits_nothing(
    query: PostgresQuery, store: SqlManifestStore, empty_store: SqlManifestStore
) -> None:
    late = query.plan(store, query.batch(0))
    messages = query.write(late, [ids(1), ids(2)])
    query.plan(empty_store, query.batch(0))
    assert kept(query) == []
    with pytest.raises(RetryableError, match="missing"):
        query.commit(store, messages)
    query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")

    assert query.ids() == [1, 2]


def test_a_driver_that_is_paused_while_it_rolls_back_takes_nothing_from_a_commit(
    query: PostgresQuery, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict "roll back" is stored before the roll back: a commit in between is refused."""
    from penstock.committers.postgres.prepared import PostgresPrepared

    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    real = PostgresPrepared.end
    refused: list[bool] = []

    def paused(self: Any, connection: Any, transaction_id: str, *, commits: bool) -> None:
        if not commits and not refused:
            refused.append(True)
            with pytest.raises(RetryableError, match="rolled back"):
                query.commit(store, messages)
        real(self, connection, transaction_id, commits=commits)

    monkeypatch.setattr(PostgresPrepared, "end", paused)
    target: Any = query.target()
    target.roll_back_attempts(query.query_id)
    assert refused
    query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")

    assert query.ids() == [1, 2]
    assert left(query) == []


def test_another_process_may_end_the_transactions(query: PostgresQuery, store: SqlManifestStore) -> None:
    """A repeated COMMIT PREPARED finds nothing; the row that the task has written tells the outcome."""
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    transactions = kept(query)
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    for gid in transactions:
        end(query, gid, "COMMIT")
    query.run(store, query.batch(1), ids(3))

    assert query.ids() == [1, 2, 3]
    assert left(query) == []


def test_rows_that_somebody_has_rolled_back_are_reported(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    plan = query.plan(store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    gid, _ = kept(query)
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    end(query, gid, "ROLLBACK")
    for _ in range(2):
        with pytest.raises(TableChangedError, match="1 of 2 prepared transactions") as refused:
            query.run(store, query.batch(1), ids(3))
    query.sql(str(refused.value).partition("continue: ")[2].rstrip("."))
    query.run(store, query.batch(1), ids(3))

    assert 3 in query.ids()
    assert left(query) == []


def test_an_altered_column_gets_no_bytes_of_another_type(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    plan = query.plan(store, query.batch(1))
    query.sql("ALTER TABLE events ALTER COLUMN id TYPE timestamp USING 'now'")
    with pytest.raises(RetryableError, match="altered"):
        query.write(plan, [ids(1)])


def test_a_constraint_refuses_the_rows_in_their_task(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    query.sql("ALTER TABLE events ADD CHECK (id < 3)")
    with pytest.raises(SchemaMismatchError, match="rejected rows"):
        query.run(store, query.batch(1), ids(1), ids(4))
    query.run(store, query.batch(1), ids(1), run_id="r2")
    assert query.ids() == [0, 1]
    assert left(query) == []


def test_a_trigger_that_drops_rows_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    query.sql("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    query.sql("CREATE TRIGGER t BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION nothing()")
    with pytest.raises(TableNotSupportedError, match="stored 0 of 2 rows"):
        query.run(store, query.batch(1), ids(1, 2))


def test_a_trigger_that_notifies_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    query.sql("CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY c; RETURN NULL; END'")
    query.sql("CREATE TRIGGER t AFTER INSERT ON events EXECUTE FUNCTION tell()")
    with pytest.raises(TableNotSupportedError, match="Remove commit=prepared"):
        query.run(store, query.batch(1), ids(1, 2))


def test_a_server_without_prepared_transactions_is_refused_before_the_table_is_created(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    query = query_into(new_postgres_url(), commit="prepared")
    with pytest.raises(ConfigurationError, match="max_prepared_transactions = 0"):
        query.plan(store, query.batch(0))
    assert query.sql("SELECT to_regclass('events')") == [(None,)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delivery", "decoupled"),
        ("writeMode", "upsert"),
        ("schemaEvolution", "addColumns"),
        ("badRows", "drop"),
        ("stagingSchema", "s"),
        ("routeBy", "id"),
    ],
)
def test_options_that_need_staging_tables_are_refused_by_name(
    query: PostgresQuery, name: str, value: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*: a query with commit=prepared cannot have it"):
        query.with_options(**{name: value}).sink()


def test_a_stream_that_replaces_the_rows_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    with pytest.raises(ConfigurationError, match="commit=prepared: the stream replaces"):
        query.plan(store, query.batch(0), overwrite=True)


def test_clean_up_rolls_orphans_back_and_leaves_what_is_committed(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    from penstock.committers.database.cleanup import DatabaseCleanableTable

    query.run(store, query.batch(0), ids(0))
    orphan = query.plan(store, query.batch(1))
    query.write(orphan, [ids(7)], run_id="dead")
    target: Any = query.target()
    table = DatabaseCleanableTable(target._server, target._dialect, target._address)
    (orphan_file,) = table.files()
    plan = query.plan(store, query.batch(1))  # rolls it back
    assert list(table.files()) == []
    messages = query.write(plan, [ids(1), ids(2)])
    listed = [one.path for one in table.files()]
    with crash_at("prepared.decided"):
        query.commit(store, messages)
    assert table.delete_files([orphan_file.path, *listed]) == 0
    query.run(store, query.batch(2), ids(3))

    assert query.ids() == [0, 1, 2, 3]
    query.write(query.plan(store, query.batch(3)), [ids(7)], run_id="dead")
    assert table.delete_files([one.path for one in table.files()]) == 1
    assert left(query) == []
    assert query.state(store, 1) is ManifestState.COMMITTED


def test_a_batch_write_is_refused(query: PostgresQuery) -> None:
    schema = StructType([StructField("id", LongType())])
    with pytest.raises(ConfigurationError, match="commit=prepared: nobody rolls back"):
        plan_batch_write(query.sink(), schema, overwrite=False)


def test_a_user_without_rights_on_the_table_of_verdicts_is_refused(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    user = f"u_{query.schema}"
    query.sql(f"CREATE ROLE {user} LOGIN")
    query.sql(f"GRANT ALL ON SCHEMA {query.schema} TO {user}")
    query.sql(f"GRANT ALL ON events, penstock_fence TO {user}")
    query.sql(f"GRANT SELECT ON penstock_prepared TO {user}")
    other = query_into(query.url.replace("//postgres@", f"//{user}@"), commit="prepared")
    with pytest.raises(AccessRefusedError, match="lacks privileges: INSERT, DELETE on"):
        other.plan(store, other.batch(1))
