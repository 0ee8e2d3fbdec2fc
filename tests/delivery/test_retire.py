"""`penstock retire`: a query that has ended for good leaves nothing but its rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from servers.http_rows import HttpRows
from servers.redis import RedisServer
from tests.conformance.harnesses import RedisFenceHarness
from tests.support.backlogs import QUERY, decoupled
from tests.support.cli import Ended
from tests.support.fanouts import Fanout, http_fanout
from tests.support.lakes import ids
from tests.support.postgres_backlog import PostgresBacklog

from penstock.committers import crash_points
from penstock.committers.errors import FencedError
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.faults import crash_at

OTHER = "ffffffff-5a0f-4f4e-9d3e-000000000002"


@pytest.fixture
def backlog(
    new_postgres_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PostgresBacklog:
    """Two delivered batches, and young staging tables of killed tasks: of a past and of a future batch."""
    monkeypatch.setenv("PGUSER", "postgres")
    lake = PostgresBacklog(new_postgres_url(), tmp_path)
    lake.query = lake.query.with_options(checkpointLocation=str(tmp_path / "checkpoint"))
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    lake.fill(2)
    leave_rows(lake, 1)
    lake.drain()
    leave_rows(lake, 2)
    assert len(lake.query.staged()) == 2
    return lake


def leave_rows(lake: PostgresBacklog, batch_id: int) -> None:
    batch = lake.query.batch(batch_id)
    plan = lake.query.plan(lake.store, batch)
    if plan.writers is None:  # the store has the batch
        plan = lake.query.plan(lake.store, lake.query.batch(batch_id + 1))
    lake.query.write(plan, [ids(99)], run_id=f"lost{batch_id}")


def fence_rows(lake: PostgresBacklog) -> list[str]:
    return [query_id for (query_id,) in lake.query.sql("SELECT query_id FROM penstock_fence")]


# Postgres -------------------------------------------------------------------------------------------


def test_staging_tables_and_fence_row_are_removed_whatever_their_age(backlog: PostgresBacklog) -> None:
    assert Ended("gc", "--delete").code == 0
    assert (len(backlog.query.staged()), fence_rows(backlog)) == (2, [QUERY])

    shown = Ended("retire", QUERY, "--dry-run", "--json").json
    (stream,) = shown["streams"]
    assert (shown["dry_run"], len(stream["files"]), len(stream["records"])) == (True, 2, 1)
    assert (stream["retired"], len(backlog.query.staged())) == (False, 2)
    assert Ended("retire", QUERY, answer="n\n").code == 1
    assert (len(backlog.query.staged()), fence_rows(backlog)) == (2, [QUERY])

    ended = Ended("retire", QUERY, "--yes", columns=None)
    assert ended.code == 0, ended.err
    assert (backlog.query.staged(), fence_rows(backlog), backlog.store.streams()) == ([], [], [])
    assert backlog.query.ids() == [1, 2, 3, 4]
    assert "stays: the rows in postgresql://" in ended.out
    assert "stays: the fence table" in ended.out


def test_what_other_queries_need_stays(backlog: PostgresBacklog) -> None:
    other = PostgresBacklog(backlog.query.url, Path(backlog.store_url.partition("///")[2]).parent)
    other.query = type(backlog.query)(backlog.query.harness, OTHER, backlog.query.options)
    other.store = backlog.store
    other.fill(1)
    backlog.query.write(other.query.plan(backlog.store, other.query.batch(1)), [ids(9)], run_id="running")
    staged = set(other.query.staged())
    assert len(staged) == 4

    assert Ended("retire", QUERY, "--yes").code == 0
    assert len(other.query.staged()) == 2
    deliver(backlog.store)
    assert other.query.ids() == [1, 1, 2, 2, 3, 4]
    assert fence_rows(other) == [OTHER]


@pytest.mark.parametrize("point", crash_points.RETIRE_POINTS)
def test_a_command_that_was_killed_is_repeated(backlog: PostgresBacklog, point: str) -> None:
    with crash_at(point):
        Ended("retire", QUERY, "--yes")
    ended = Ended("retire", QUERY, "--yes")
    assert ended.code == (2 if point == "retire.done" else 0), ended.err
    assert (backlog.query.staged(), fence_rows(backlog), backlog.store.streams()) == ([], [], [])
    assert backlog.query.ids() == [1, 2, 3, 4]


def test_the_store_keeps_the_stream_if_the_destination_refuses(
    backlog: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.query.sql("DROP ROLE IF EXISTS retiring")
    backlog.query.sql(
        f"CREATE ROLE retiring LOGIN; GRANT USAGE ON SCHEMA {backlog.query.schema} TO retiring; "
        f"GRANT SELECT ON penstock_fence, events TO retiring"
    )
    for name in backlog.query.staged():
        backlog.query.sql(f"DROP TABLE {name}")
    monkeypatch.setenv("PGUSER", "retiring")
    ended = Ended("retire", QUERY, "--yes", columns=None)

    assert ended.code == 3
    assert "permission denied for table penstock_fence. The row of the fence table" in ended.err
    assert (fence_rows(backlog), len(backlog.store.streams())) == ([QUERY], 1)
    backlog.query.sql("DROP OWNED BY retiring; DROP ROLE retiring")


def test_it_is_repeated_when_the_database_answers_again(
    backlog: PostgresBacklog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("the server is down")

    with monkeypatch.context() as patched:
        patched.setattr(psycopg, "connect", down)
        ended = Ended("retire", QUERY, "--yes")
    assert (ended.code, "repeat the command" in ended.err) == (3, True)
    assert len(backlog.store.streams()) == 1
    assert Ended("retire", QUERY, "--yes").code == 0
    assert (backlog.query.staged(), fence_rows(backlog)) == ([], [])


def test_a_driver_that_still_runs_prepares_nothing(backlog: PostgresBacklog) -> None:
    query, store = backlog.query, backlog.store
    messages = query.write(query.plan(store, query.batch(2)), [ids(5)])
    with crash_at("retire.start"):
        Ended("retire", QUERY, "--yes")
    with pytest.raises(FencedError):
        query.commit(store, messages)


def test_it_is_refused_while_batches_wait(backlog: PostgresBacklog) -> None:
    backlog.fill(1)
    ended = Ended("retire", QUERY, "--yes")
    assert ended.code == 3
    assert "1 undelivered batches" in ended.err
    assert "penstock deliver --once" in ended.err
    assert len(backlog.query.staged()) == 3


def test_it_is_refused_while_a_skipped_batch_is_not_acknowledged(backlog: PostgresBacklog) -> None:
    backlog.fill(1)
    assert Ended("skip", QUERY, "2", "--reason", "x", "--discard-rows", "--yes").code == 0
    ended = Ended("retire", QUERY, "--yes")
    assert (ended.code, "penstock acknowledge" in " ".join(ended.err.split())) == (3, True)
    assert Ended("acknowledge", QUERY).code == 0
    assert Ended("retire", QUERY, "--yes").code == 0
    assert (backlog.query.staged(), backlog.query.ids()) == ([], [1, 2, 3, 4])


def test_it_is_refused_while_the_checkpoint_exists(backlog: PostgresBacklog, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    ended = Ended("retire", QUERY, "--yes")
    assert (ended.code, "delete its checkpoint" in " ".join(ended.err.split())) == (2, True)
    assert len(backlog.query.staged()) == 2


def test_forget_says_what_it_would_leave_behind(backlog: PostgresBacklog) -> None:
    ended = Ended("forget", QUERY, answer="n\n", columns=None)
    assert ended.code == 1
    assert "leaves behind: 2 files or staging tables, the row query_id=" in ended.err
    assert f"penstock retire {QUERY}" in ended.err
    assert Ended("forget", QUERY, "--yes").code == 0
    assert len(backlog.query.staged()) == 2


def test_a_stream_whose_table_was_dropped_is_retired(backlog: PostgresBacklog) -> None:
    backlog.query.sql("DROP TABLE events")
    assert Ended("retire", QUERY, "--yes").code == 0
    assert (backlog.query.staged(), fence_rows(backlog), backlog.store.streams()) == ([], [], [])


def test_files_in_the_place_of_a_table_that_was_dropped_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = decoupled(tmp_path, batches=2)
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    assert Ended("deliver", "--once").code == 0
    lake.lake.forget()
    ended = Ended("retire", "ids", "--yes", columns=None)
    assert ended.code == 0, ended.err
    assert "there is no table that tells what it needs" in ended.out
    assert lake.store.streams() == []


# Dead letters ---------------------------------------------------------------------------------------


def test_the_streams_of_its_dead_letters_are_retired_too(
    new_postgres_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was sent again; refused while dead letters wait."""
    monkeypatch.setenv("PGUSER", "postgres")
    letters = {"badRows": "deadLetter", "deadLetter": str(tmp_path / "letters")}
    lake = PostgresBacklog(new_postgres_url(), tmp_path, queryName="flights", **letters)
    lake.query.sql("CREATE TABLE events (id bigint CHECK (id <> 2))")
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    lake.fill(1)
    lake.drain()
    lake.query.sql("ALTER TABLE events DROP CONSTRAINT events_id_check")
    ended = Ended("dead-letters", "resend", "flights", "--yes")
    assert ended.code == 0, ended.err
    assert (lake.query.ids(), len(lake.store.streams()), len(fence_rows(lake))) == ([1, 2], 3, 2)

    ended = Ended("retire", "flights", "--yes", "--json")
    assert ended.code == 0, ended.err
    assert (lake.store.streams(), fence_rows(lake), lake.query.staged()) == ([], [], [])
    assert (lake.query.ids(), any((tmp_path / "letters").rglob("*.parquet"))) == ([1, 2], True)


# A store in the checkpoint --------------------------------------------------------------------------


def test_a_checkpoint_with_the_store_in_it_may_exist_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    lake = decoupled(tmp_path, batches=2, checkpoint=str(checkpoint))
    rows_before = lake.row_ids()
    assert Ended("deliver", "--once", "--store", lake.store_url).code == 0
    lake.store.close()
    Path(lake.store_url.partition("///")[2]).rename(checkpoint / "penstock.sqlite")
    assert rows_before == []

    ended = Ended("retire", "ids", "--checkpoint", str(checkpoint), "--yes", columns=None)
    assert ended.code == 0, ended.err
    assert f"stays: the checkpoint {checkpoint} with this store: delete it" in ended.out
    assert "(txn)" in ended.out
    assert lake.row_ids() == [1, 2, 3, 4]


# Redis ----------------------------------------------------------------------------------------------


def test_the_fence_and_the_row_log_in_redis_are_removed(
    tmp_path: Path, redis_service: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", f"sqlite:///{tmp_path}/store.db")
    harness = RedisFenceHarness(tmp_path, redis_service)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query = Query(harness, store=store)
        query.run(store, query.batch(0), ids(1), ids(2))
        deliver(store)
        query.write(query.plan(store, query.batch(1)), [ids(9)], run_id="killed")
        with redis_service.connect() as client:
            assert len(client.keys("penstock:fence:*")) == 1
            assert len(harness.uncommitted()) == 1
            ended = Ended("retire", "q1", "--yes", columns=None)
            assert ended.code == 0, ended.err
            assert client.keys("penstock:*") == []
    assert "removed: the key penstock:fence:q1:" in ended.out
    assert (list(harness.uncommitted()), sorted(harness.ids())) == ([], [1, 2])


def test_the_row_log_may_be_gone_with_the_checkpoint(
    tmp_path: Path, redis_service: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", f"sqlite:///{tmp_path}/store.db")
    harness = RedisFenceHarness(tmp_path, redis_service)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query = Query(harness, store=store)
        query.run(store, query.batch(0), ids(1))
        deliver(store)
        shutil.rmtree(harness.row_log_options["rowLog"])
        assert Ended("retire", "q1", "--yes").code == 0
        assert store.streams() == []


# A fan-out ------------------------------------------------------------------------------------------


TARGETS = ("lake", "search", "events")


@pytest.fixture
def fanout(
    tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fanout]:
    """Named `flights`, with one delivered batch and what a killed task has left."""
    with http_fanout(tmp_path, two_http_servers) as fanout:
        monkeypatch.setenv("PENSTOCK_STORE", fanout.store_url)
        query = fanout.query(*TARGETS, queryName="flights")
        query.run(fanout.store, query.batch(0), ids(1), ids(2))
        assert fanout.deliver().code == 0
        query.write(query.plan(fanout.store, query.batch(1)), [ids(9)], run_id="killed")
        yield fanout


def test_the_name_of_a_fan_out_retires_all_its_targets(fanout: Fanout) -> None:
    """In Delta, also the small files that the delivery has merged."""
    assert (len(fanout.row_log()), len(fanout.files())) == (1, 4)
    with crash_at("retire.done", 1):
        Ended("retire", "flights", "--yes")
    assert len(fanout.store.streams()) == 2
    ended = Ended("retire", "flights", "--yes", "--json")

    assert ended.code == 0, ended.err
    assert len(ended.json["streams"]) == 2
    assert (fanout.store.streams(), fanout.row_log()) == ([], [])
    assert len(fanout.files()) == 1
    assert [fanout.ids(name) for name in TARGETS] == [[1, 2]] * 3


def test_a_target_that_is_retired_alone_leaves_the_row_log_to_the_others(fanout: Fanout) -> None:
    query = fanout.query(*TARGETS, queryName="flights")
    query.run(fanout.store, query.batch(1), ids(3), run_id="r2")
    assert fanout.deliver("search").code == 0
    waiting = set(fanout.row_log())
    assert Ended("retire", str(fanout.stream("search")), "--yes").code == 0

    assert len(set(fanout.row_log()) & waiting) >= 1
    assert fanout.deliver().code == 0
    assert [fanout.ids(name) for name in TARGETS] == [[1, 2, 3]] * 3


def test_park_retry_status_and_history_take_the_name_of_a_fan_out(fanout: Fanout) -> None:
    parked = Ended("park", "flights", "--reason", "maintenance", "--json").json
    assert (parked["decision"], len(parked["streams"])) == ("park", 3)
    assert all(one.delivery.parked_at is not None for one in fanout.store.streams())
    assert len(Ended("retry", "flights", "--json").json["streams"]) == 3
    assert len(Ended("status", "flights", "--json").json["streams"]) == 3
    assert [len(one["batches"]) for one in Ended("history", "flights", "--json").json["streams"]] == [1] * 3
    assert Ended("history", "flights", columns=None).out.count("q1 -> ") == 3
