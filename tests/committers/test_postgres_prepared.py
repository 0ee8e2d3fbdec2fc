"""`commit=prepared` in Postgres: what the others do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from servers.postgres import Postgres, postgres
from tests.support.postgres import PostgresQuery, query_into

from penstock import reader
from penstock.committers.errors import ConfigurationError, RetryableError, TableNotSupportedError
from penstock.committers.store.sql import SqlManifestStore
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
