"""The Postgres server of a table dies, and its standby takes over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.postgres import Postgres, postgres
from tests.support.backlogs import wait_until
from tests.support.postgres import PostgresQuery, query_into

from penstock.committers.errors import RetryableError, TableChangedError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    with postgres(primary) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        yield store


def query(primary: Postgres, standby: Postgres, **options: str) -> PostgresQuery:
    """A query whose url names both servers, first the one that must not be written."""
    schema = primary.new_url().rpartition("%3D")[2]
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    settings = f"options=-csearch_path%3D{schema}"
    return query_into(f"postgresql://postgres@{hosts}/postgres?{settings}", **options)


@pytest.mark.parametrize("commit", ["staged", "prepared"])
@pytest.mark.parametrize("when", ["prepare.done", "commit.landed"])
def test_a_synchronous_standby_has_each_row_once(
    primary: Postgres, standby: Postgres, store: SqlManifestStore, commit: str, when: str
) -> None:
    """It has what the tasks have staged or prepared, too."""
    primary.wait_for_standbys()
    of = query(primary, standby, commit=commit)
    of.run(store, of.batch(0), ids(0))
    messages = of.write(of.plan(store, of.batch(1), ids(1).schema), [ids(1, 2), ids(3)])
    with crash_at(when):
        of.commit(store, messages)
    primary.kill()
    with pytest.raises(RetryableError):
        of.recover(store)
    standby.promote()
    wait_until(lambda: not standby.is_standby)
    of.recover(store)
    of.run(store, of.batch(1), ids(1, 2), ids(3), run_id="r2")
    of.run(store, of.batch(2), ids(4), run_id="r2")

    assert of.ids() == [0, 1, 2, 3, 4]
    assert of.staged() == []
    assert standby.execute("SELECT count(*) FROM pg_prepared_xacts") == 0


def test_a_batch_that_the_standby_does_not_have_ends_the_query(
    primary: Postgres, standby: Postgres, store: SqlManifestStore
) -> None:
    """Without synchronous replication. The query does not go on with the next batch."""
    of = query(primary, standby)
    of.run(store, of.batch(0), ids(0))
    wait_until(lambda: standby.has_all_of(primary))
    standby.stop()
    of.run(store, of.batch(1), ids(1))
    primary.kill()
    standby.start()
    standby.promote()
    wait_until(lambda: not standby.is_standby)
    with pytest.raises(TableChangedError, match="has batch 0 as its last batch"):
        of.run(store, of.batch(2), ids(2), run_id="r2")

    assert of.ids() == [0]
