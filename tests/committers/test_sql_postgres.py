"""`penstock.sql` in a Postgres server: what servers get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.support.sql_postgres import SqlPostgresHarness

from penstock import RetryableError, SchemaMismatchError
from penstock.committers.contract import BATCH_WRITE_PREFIX
from penstock.committers.database.fence import Fence
from penstock.committers.sql.address import SqlAddress, parse_url
from penstock.committers.sql.connection import SqlServer
from penstock.committers.sql.dialect import dialect_of
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import Query, ids

TIMES = pa.timestamp("us", "UTC")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


def test_values_are_read_from_postgres_as_they_were_written(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    table = SqlPostgresHarness(new_postgres_url)
    rows = pa.table(
        {
            "id": pa.array([2**63 - 1, None]),
            "flag": pa.array([True, None]),
            "text": pa.array(["a'%s%%\\", ""]),
            "bytes": pa.array([b"\0\xff", b""], pa.binary()),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
            "double": pa.array([float("inf"), 5e-324]),
            "float": pa.array([1.1, float("nan")], pa.float32()),
            "price": pa.array([Decimal("-0." + "1" * 38), None], pa.decimal128(38, 38)),
            "at": pa.array([-1, 2**52 + 1], TIMES),
            "local": pa.array([0, None], pa.timestamp("us")),
        }
    )
    of = Query(table)
    for batch_id in range(2):
        of.run(store, of.batch(batch_id), rows)
    with psycopg.connect(table.url.replace("+psycopg", "")) as other:
        other.execute("SET TimeZone = 'UTC'")
        found = other.execute("SELECT * FROM events WHERE id IS NOT NULL").fetchall()
        kinds = other.execute(
            "SELECT data_type FROM information_schema.columns WHERE table_name = 'events' "
            "AND table_schema = current_schema() ORDER BY ordinal_position"
        ).fetchall()
    expected = tuple(rows.slice(0, 1).to_pylist()[0].values())
    assert [tuple(row) for row in found] == [(*expected[:6], pytest.approx(1.1), *expected[7:])] * 2
    assert [kind for (kind,) in kinds] == [
        "bigint", "boolean", "text", "bytea", "date", "double precision", "real", "numeric",
        "timestamp with time zone", "timestamp without time zone",
    ]  # fmt: skip


def test_a_text_with_a_nul_is_a_bad_row(new_postgres_url: Callable[[], str], store: SqlManifestStore) -> None:
    of = Query(SqlPostgresHarness(new_postgres_url))
    with pytest.raises(SchemaMismatchError, match="NUL character, which PostgreSQL cannot store"):
        of.run(store, of.batch(0), pa.table({"text": ["a\0b"]}))


def test_deferred_constraints_and_triggers_refuse_single_rows(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    table = SqlPostgresHarness(new_postgres_url)
    table.sql("CREATE TABLE events (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    table.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.id = 7 THEN RAISE EXCEPTION 'seven'; END IF; RETURN new; END $$"
    )
    table.sql("CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse()")
    of = Query(table, options={"badRows": "drop"})
    of.run(store, of.batch(0), ids(1, 7, 2), ids(1, 3))
    assert sorted(table.ids()) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["varchar(9)", "char(9)", "timestamp(3)", "numeric", "uuid"])
def test_a_column_that_would_change_values_is_refused(
    kind: str, new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    table = SqlPostgresHarness(new_postgres_url)
    table.sql(f"CREATE TABLE events (id {kind})")
    of = Query(table)
    value = pa.array([0], pa.timestamp("us")) if "time" in kind else pa.array(["1  "])
    with pytest.raises(SchemaMismatchError, match="cannot store"):
        of.run(store, of.batch(0), pa.table({"id": value}))


# The fence ------------------------------------------------------------------------------------------


def server_of(table: SqlPostgresHarness, **settings: str) -> tuple[SqlServer, SqlAddress, Fence]:
    options = "".join(f"%20-c{name}%3D{value}" for name, value in settings.items())
    url, (schema, _, name) = parse_url(table.url + options), table.options["dbtable"].partition(".")
    return SqlServer(url, "t"), SqlAddress.of(url, (schema, name)), dialect_of("postgresql").fence


def test_a_row_of_the_fence_is_locked(new_postgres_url: Callable[[], str], store: SqlManifestStore) -> None:
    """Otherwise two drivers could read it before one of them changes it."""
    table = SqlPostgresHarness(new_postgres_url)
    of = Query(table)
    of.run(store, of.batch(0), ids(1))
    server, address, fence = server_of(table, lock_timeout="200ms")
    with server.transaction("") as one:
        fence.lock(one, address, "q1", "")
        with pytest.raises(RetryableError, match=r"lock timeout.*Another transaction holds a lock"):
            with server.transaction("") as other:
                fence.lock(other, address, "q1", "")


def test_the_first_drivers_of_a_query_wait_for_each_other(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    """Both insert the row of the query."""
    table = SqlPostgresHarness(new_postgres_url)
    of = Query(table)
    of.run(store, of.batch(0), ids(1))
    server, address, fence = server_of(table)

    def lock() -> str:
        with server.transaction("") as other:
            return fence.lock(other, address, "q2", "other").table_id

    with ThreadPoolExecutor(1) as pool, server.transaction("") as one:
        assert fence.lock(one, address, "q2", "first").table_id == "first"
        waiting = pool.submit(lock)
        while table.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
            assert not waiting.done(), waiting.exception()
        one.connection.commit()
        assert waiting.result(timeout=30) == "first"


def test_a_batch_write_does_not_wait_for_another_one_that_prunes_the_fence(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    table = SqlPostgresHarness(new_postgres_url)
    old = Query(table, f"{BATCH_WRITE_PREFIX}0")
    old.run(store, old.batch(0), ids(1))
    table.sql("UPDATE penstock_fence SET committed_at = committed_at - interval '8 days'")
    server, address, fence = server_of(table, lock_timeout="200ms")
    with server.transaction("") as one, server.transaction("") as other:
        fence.prune(one, address)
        fence.prune(other, address)
    assert table.sql("SELECT count(*) FROM penstock_fence") == [(0,)]


def test_a_driver_that_is_paused_in_a_transaction_loses_it(
    new_postgres_url: Callable[[], str], store: SqlManifestStore
) -> None:
    """Before others time out."""
    server, _, _ = server_of(SqlPostgresHarness(new_postgres_url))
    with server.transaction("") as cursor:
        names = "lock_timeout", "idle_in_transaction_session_timeout"
        assert [cursor.execute(f"SHOW {name}").fetchone()[0] for name in names] == ["30s", "15s"]
