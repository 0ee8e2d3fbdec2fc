"""Decoupled delivery into Postgres tables: many batches in one transaction, each row once, whoever dies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.support.backlogs import Told, start_cli, wait_until
from tests.support.lakes import ids
from tests.support.postgres_backlog import PostgresBacklog
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.committers.contract import ManifestState
from penstock.committers.errors import RetryableError, SchemaMismatchError, TableChangedError
from penstock.committers.postgres import committer
from penstock.committers.postgres import merge as postgres_merge
from penstock.datasource.planning import plan_batch
from penstock.testing.faults import at_point, crash_at

COMMITTED, ABORTED = ManifestState.COMMITTED, ManifestState.ABORTED


@pytest.fixture
def backlog(
    new_postgres_url: Callable[[], str], store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PostgresBacklog:
    """With a store in SQLite, and one in Postgres."""
    monkeypatch.setenv("PGUSER", "postgres")
    return PostgresBacklog(new_postgres_url(), tmp_path, store_url)


@pytest.fixture
def lake(
    new_postgres_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PostgresBacklog:
    """With a store in SQLite."""
    monkeypatch.setenv("PGUSER", "postgres")
    return PostgresBacklog(new_postgres_url(), tmp_path)


def holds_all(backlog: PostgresBacklog) -> bool:
    """Each row once, nothing PREPARED, no staging table."""
    rows = list(range(1, backlog.rows + 1))
    return (backlog.query.ids(), backlog.left, backlog.query.staged()) == (rows, 0, [])


def test_many_batches_are_one_transaction_under_the_last_token(backlog: PostgresBacklog) -> None:
    backlog.fill(5, tasks=2)
    assert backlog.query.ids() == []
    drained = backlog.drain()

    assert (drained.deliveries, drained.batches, drained.rows) == (1, 5, 20)
    assert backlog.commits() == 1
    assert set(backlog.states.values()) == {COMMITTED}
    assert backlog.query.sql("SELECT batch_id FROM penstock_fence") == [(4,)]
    assert holds_all(backlog)


def test_a_replay_of_what_was_delivered_adds_nothing(backlog: PostgresBacklog) -> None:
    backlog.fill(2)
    backlog.drain()
    plan = backlog.query.plan(backlog.store, backlog.query.batch(1))

    assert plan.writers is None
    assert holds_all(backlog)


def test_a_batch_that_overwrites_makes_those_before_it_needless(lake: PostgresBacklog) -> None:
    lake.fill(2)
    lake.fill(1, overwrite=True)
    lake.fill(1)
    lake.drain()

    assert lake.merged == [4]
    assert lake.query.ids() == [5, 6, 7, 8]
    assert lake.query.staged() == []
    assert set(lake.states.values()) == {COMMITTED}


def test_a_batch_without_rows_is_delivered_with_the_others(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.query.run(lake.store, lake.query.batch(1), ids())
    lake.batches += 1
    lake.fill(1)
    lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


@pytest.mark.parametrize(
    ("bound", "value", "merged"), [("TABLES_MAX", 4, [2, 2, 1]), ("BYTES_MAX", 1, [1] * 5)]
)
def test_one_transaction_moves_only_so_much(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, merged: list[int]
) -> None:
    monkeypatch.setattr(postgres_merge, bound, value)
    lake.fill(5, tasks=2)
    lake.drain()

    assert lake.merged == merged
    assert holds_all(lake)


def test_what_an_overwrite_makes_needless_does_not_count_as_moved(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_merge, "BYTES_MAX", 10)
    lake.fill(5, overwrite=True)
    lake.drain()

    assert lake.merged == [5]
    assert lake.query.ids() == [9, 10]


def test_a_column_that_comes_in_the_middle_ends_a_delivery(lake: PostgresBacklog) -> None:
    lake.fill(2)
    lake.add_column()
    lake.fill(2)
    lake.drain()

    assert lake.merged == [2, 2]
    assert [row[0] for row in lake.query.sql("SELECT twice FROM events ORDER BY id")] == [
        *[None] * 4,
        5,
        6,
        7,
        8,
    ]
    assert holds_all(lake)


# Whoever dies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["deliver.start", "deliver.prepared", "commit.start", "commit.landed", "deliver.done"]
)
def test_a_delivery_that_dies_anywhere_is_finished_by_the_next(backlog: PostgresBacklog, point: str) -> None:
    backlog.fill(3)
    with crash_at(point):
        backlog.drain()
    backlog.fill(2)
    backlog.drain()

    assert sum(backlog.merged) == 5
    assert holds_all(backlog)


def test_a_delivery_whose_staging_tables_are_gone_is_abandoned_and_its_batches_wait_for_an_operator(
    lake: PostgresBacklog,
) -> None:
    lake.fill(3)
    with crash_at("deliver.prepared"):
        lake.drain()
    lake.query.sql(f"DROP TABLE {sorted(lake.query.staged())[1]}")
    told = Told()
    drained = lake.drain(told)

    assert isinstance(told.failures[0][1], TableChangedError)
    assert drained.is_parked
    assert lake.query.ids() == [1, 2]  # the batch before it
    assert lake.store.deliveries.unfinished(lake.status.key) is None


def test_a_delivery_that_another_process_lands_meanwhile_is_not_taken_for_lost(lake: PostgresBacklog) -> None:
    """Its staging tables go with its commit, so whoever looks for them just then finds none."""
    lake.fill(2)
    with crash_at("deliver.prepared"):
        lake.drain()
    delivery = lake.store.deliveries.unfinished(lake.status.key)
    assert delivery is not None
    late = lake.query.target()
    assert late.token(lake.query.query_id) is None
    lake.query.target().commit(delivery.manifest)

    assert late.missing(delivery.manifest) == []
    token = late.token(lake.query.query_id)
    assert token is not None
    assert token.batch_id == 1
    lake.drain()
    assert lake.merged == [2]
    assert holds_all(lake)


def test_a_delivery_of_which_the_table_holds_a_part_is_refused_and_the_rest_delivered(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the part has left its staging tables, which somebody was reading."""
    monkeypatch.setattr(committer, "DROP_TIMEOUT_S", 0.1)
    lake.fill(3)
    first = lake.store.manifest(lake.status.key, 0)
    assert first is not None

    def commit_first() -> None:
        with psycopg.connect(lake.query.url.replace("+psycopg", "")) as dump:
            dump.execute(f"LOCK TABLE {', '.join(lake.query.staged())} IN ACCESS SHARE MODE")
            lake.query.target().commit(first)

    with at_point("commit.start", commit_first):
        lake.drain()

    assert lake.merged == [2]
    assert set(lake.states.values()) == {COMMITTED}
    assert lake.query.ids() == list(range(1, 7))


def test_two_processes_that_deliver_at_once_add_each_row_once(lake: PostgresBacklog) -> None:
    """The lease is taken over while the first one is about to commit."""
    lake.fill(3)

    def take_over() -> None:
        delivery = lake.store.deliveries.unfinished(lake.status.key)
        assert delivery is not None
        table = lake.query.target()
        outcome = table.commit(delivery.manifest)
        lake.store.deliveries.finish(delivery, outcome.table_version)  # type: ignore[union-attr]

    with at_point("commit.start", take_over):
        lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


def test_two_delivery_processes_on_one_store_add_each_row_once(backlog: PostgresBacklog) -> None:
    words = ("deliver", "--store", backlog.store_url, "--lease-seconds", "1")
    backlog.query = backlog.query.with_options(deliverAfterBatches="2")
    backlog.fill(1)
    processes = [start_cli(*words) for _ in range(2)]
    try:
        for _ in range(10):
            backlog.fill(3)
        wait_until(lambda: backlog.left < 2)
    finally:
        for process in processes:
            process.terminate()
    assert [process.wait(60) for process in processes] == [0, 0]
    backlog.drain()

    assert sum(backlog.merged) == 31
    assert holds_all(backlog)


def test_the_query_goes_on_while_the_table_is_locked(lake: PostgresBacklog) -> None:
    lake.fill(1)
    with psycopg.connect(lake.query.url.replace("+psycopg", "")) as migration:
        migration.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        lake.fill(2)
    lake.drain()

    assert lake.merged == [3]
    assert holds_all(lake)


# The table changes under prepared batches -------------------------------------------------------------


def test_each_batch_is_planned_for_the_columns_that_the_table_has_then(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.query.sql("ALTER TABLE events ALTER id TYPE numeric")
    lake.fill(1)

    kinds = lake.query.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'id' "
        "AND attrelid = ANY(%s::regclass[]) ORDER BY 1",
        lake.query.staged(),
    )
    assert kinds == [("bigint",), ("numeric",)]
    lake.drain()
    assert lake.merged == [1, 1]
    assert holds_all(lake)


def test_a_table_that_is_dropped_and_made_anew_between_two_batches_is_noticed_before_the_second(
    lake: PostgresBacklog,
) -> None:
    lake.fill(1)
    lake.query.sql("DROP TABLE events; CREATE TABLE events (id bigint)")
    with pytest.raises(TableChangedError, match="dropped and re-created"):
        lake.fill(1)


@pytest.mark.parametrize("kind", ["numeric", "numeric(20,0)", "bigint"])
def test_a_column_that_is_wider_by_now_takes_what_was_staged_before(lake: PostgresBacklog, kind: str) -> None:
    lake.query.sql("CREATE TABLE events (id integer)")
    narrow = pa.table({"id": pa.array([1, 2], pa.int32())})
    lake.query.run(lake.store, lake.query.batch(0), narrow)
    lake.query.sql(f"ALTER TABLE events ALTER id TYPE {kind}")
    lake.drain()

    assert lake.query.ids() == [1, 2]
    assert lake.left == 0


@pytest.mark.parametrize("change", ["DROP COLUMN id, ADD other int", "ALTER id TYPE integer"])
def test_a_table_that_can_take_the_rows_no_more_parks_the_stream_until_it_is_put_back(
    lake: PostgresBacklog, change: str
) -> None:
    lake.query = lake.query.with_options(deliveryTries="1")
    lake.fill(2)
    lake.query.sql(f"ALTER TABLE events {change}")
    told = Told()
    assert lake.drain(told).is_parked
    assert isinstance(told.failures[0][1], SchemaMismatchError)
    assert "penstock retry" in str(told.failures[0][1])

    undo = "ADD id bigint" if "DROP" in change else "ALTER id TYPE bigint"
    lake.query.sql(f"ALTER TABLE events {undo}")
    penstock(lake, "retry")
    lake.drain()
    assert holds_all(lake)


def test_a_new_column_that_waits_is_not_added_once_more_with_another_type(lake: PostgresBacklog) -> None:
    lake.fill(1)
    lake.drain()
    lake.add_column()
    lake.fill(1)
    other = pa.table({"id": pa.array([9], pa.int64()), "twice": pa.array(["x"])})
    sink, batch = lake.query.sink(), lake.query.batch(2)
    with pytest.raises(RetryableError, match=r"twice \(bigint\).*adds twice \(text\)"):
        plan_batch(sink, lake.store, batch, other.schema, overwrite=False)


# Commands ---------------------------------------------------------------------------------------------


def penstock(backlog: PostgresBacklog, *arguments: str, exit_code: int = 0) -> str:
    answer = CliRunner().invoke(app, [*arguments, "--store", backlog.store_url])
    assert answer.exit_code == exit_code, answer.output
    return answer.output


def test_deliver_once_status_and_show(lake: PostgresBacklog) -> None:
    lake.fill(3)
    penstock(lake, "deliver", "--once")
    (stream,) = json.loads(penstock(lake, "status", "--table", "--json"))["streams"]
    show = json.loads(penstock(lake, "show", lake.query.query_id, "1", "--json"))

    assert stream["pending"] == 0
    assert (show["in_table"], show["token_batch_id"], len(show["files"])) == ("passed", 2, 1)
    assert holds_all(lake)


def test_a_skipped_batch_is_left_out_and_its_staging_tables_are_found_by_gc(lake: PostgresBacklog) -> None:
    lake.fill(3)
    penstock(lake, "skip", lake.query.query_id, "1", "--reason", "x", "--yes")
    penstock(lake, "deliver", "--once")

    assert lake.query.ids() == [1, 2, 5, 6]
    (left,) = lake.query.staged()
    ((comment,),) = lake.query.sql("SELECT obj_description(%s::regclass)", left)
    old = re.sub(r"at \S+", "at 2020-01-01T00:00:00+00:00", comment)
    lake.query.sql(f"COMMENT ON TABLE {left} IS '{old}'")
    penstock(lake, "gc", "--delete")
    assert lake.query.staged() == []


def test_gc_leaves_what_waits_to_be_delivered(lake: PostgresBacklog) -> None:
    lake.fill(2)
    for name in lake.query.staged():
        comment = f"penstock, staged at 2020-01-01T00:00:00+00:00 by {lake.query.query_id}"
        lake.query.sql(f"COMMENT ON TABLE {name} IS '{comment}'")
    penstock(lake, "gc", "--delete")
    lake.drain()

    assert holds_all(lake)


def test_abort_gives_up_what_waits_and_drops_its_staging_tables(
    lake: PostgresBacklog, tmp_path: Path
) -> None:
    lake.query = lake.query.with_options(checkpointLocation=str(tmp_path / "checkpoint"))
    lake.fill(1)
    lake.drain()
    lake.fill(2)
    penstock(lake, "abort", lake.query.query_id, "--reason", "x", "--yes")

    assert lake.states == {0: COMMITTED, 1: ABORTED, 2: ABORTED}
    assert lake.query.staged() == []
    assert lake.query.ids() == [1, 2]


def test_a_password_is_not_sent_to_a_server_that_only_the_store_names(
    lake: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill(1)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    told = penstock(lake, "deliver", "--once", exit_code=3)

    assert "to which PGPASSWORD would be sent" in " ".join(told.split())
    assert lake.left == 1
