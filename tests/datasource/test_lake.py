"""One write into a Delta table and an Iceberg table that share their files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from servers.s3 import BUCKET, s3_client, s3_properties, s3_server
from tests.support.cli import Ended
from tests.support.lake_pairs import LakePair, LakePlace, by_all_readers, lake_pair, run

from penstock.committers.contract import ManifestState
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import CheckpointMismatchError, RetryableError, TableChangedError
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids
from penstock.testing.faults import at_point, crash_at

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED
UTC = timezone.utc


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LakePair]:
    with lake_pair(tmp_path) as tables:
        yield tables


# One write ---------------------------------------------------------------------------------------------


def test_both_tables_have_each_row_once_in_the_same_files(pair: LakePair) -> None:
    query = pair.query()
    for batch_id in range(3):
        run(pair, query, batch_id)
    assert len(pair.files()) == 6, "one file a task, not two"
    assert pair.states(2) == [PREPARED] * 2
    assert pair.deliver().code == 0
    assert pair.ids() == [list(range(6))] * 2
    delta, iceberg = pair.named()
    assert delta == iceberg == {Path(path).name for path in pair.files()}
    assert not list(pair.iceberg.folder.rglob("*.parquet"))


ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "s": ["a/b c%", "x=y", None, "é:1"],
        "d": pa.array([date(2020, 1, 1), None, date(1969, 5, 1), date(2020, 1, 1)]),
        "ts": pa.array(
            [datetime(2020, 1, 1, 12, 30, 5, 123456, UTC), None, datetime(1965, 1, 1, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "dec": pa.array([Decimal("1.50"), None, Decimal("2.25"), Decimal("0.00")], pa.decimal128(18, 2)),
        "b": [True, False, None, True],
        "ntz": pa.array([1_577_880_000_000_000, None, -157_766_400_000_000, None], pa.timestamp("us")),
        "f": pa.array([1.5, float("nan"), None, -0.0]),
        "f32": pa.array([1.5, 2.5, None, -0.0], pa.float32()),
        "i": pa.array([1, 2, None, 4], pa.int32()),
        "bin": pa.array([b"a", b"", None, b"\xff"]),
        "wide": pa.array([Decimal(10**37), None, Decimal(-(10**37)), Decimal(1)], pa.decimal128(38, 0)),
        "l": pa.array([[1, 2], [], None, [None]], pa.list_(pa.int64())),
        "m": pa.array([[("k", 1)], [], None, [("z", None)]], pa.map_(pa.string(), pa.int64())),
        "st": pa.array(
            [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}, {"a": 4, "b": {"c": None}}],
            pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
        ),
    }
)
PARTITIONED = ("s", "d", "ts", "dec", "b")


def in_words(rows: pa.Table) -> list[list[str]]:
    return sorted([repr(row[name]) for name in ROWS.column_names] for row in rows.to_pylist())


@pytest.mark.parametrize("partition_by", [(), PARTITIONED], ids=["whole", "partitioned"])
def test_all_readers_of_both_tables_read_all_types_alike(
    pair: LakePair, partition_by: tuple[str, ...]
) -> None:
    options = {"partitionBy": ",".join(partition_by)} if partition_by else {}
    run(pair, pair.query(**options), 0, ROWS.slice(0, 2), ROWS.slice(2, 2))
    assert pair.deliver().code == 0
    for reader, rows in by_all_readers(pair).items():
        assert in_words(rows.select(ROWS.column_names).cast(ROWS.schema)) == in_words(ROWS), reader
    columns = ",".join(ROWS.column_names)
    delta, iceberg = (sorted(map(repr, table.rows(columns))) for table in pair.tables)
    assert delta == iceberg
    assert len(delta) == 4


def test_statistics_of_both_formats_skip_files_and_lose_no_row(pair: LakePair) -> None:
    """The partition column is in the files, and does not move the statistics of the others."""
    rows = pa.table({"p": ["x", "y"], "id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    run(pair, pair.query(partitionBy="p"), 0, rows)
    assert pair.deliver().code == 0
    adds = pa.table(DeltaTable(str(pair.delta.path)).get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["min.id"], one["max.name"], one["partition.p"]) for one in adds) == [
        (1, "a", "x"),
        (2, "b", "y"),
    ]
    (task,) = pair.iceberg.load().scan(row_filter="id > 1").plan_files()
    assert "p=y" in task.file.file_path
    schema = pq.ParquetFile(pair.delta.folder / sorted(pair.files())[0]).schema_arrow
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"1", b"2", b"3"]


def test_complete_mode_replaces_the_rows_of_both(pair: LakePair) -> None:
    query = pair.query()
    for batch_id in range(2):
        run(pair, query, batch_id, ids(batch_id), overwrite=True)
        assert pair.deliver().code == 0
        assert pair.ids() == [[batch_id]] * 2


def test_a_new_column_is_added_to_both(pair: LakePair) -> None:
    run(pair, pair.query(), 0)
    wider = pa.table({"id": pa.array([7], pa.int64()), "note": ["new"]})
    run(pair, pair.query(schemaEvolution="addColumns"), 1, wider, run_id="r2")
    with crash_at("evolve.done"):
        pair.deliver("delta")
    run(pair, pair.query(schemaEvolution="addColumns"), 2, wider, run_id="r3")
    assert pair.deliver().code == 0
    expected = sorted([("(0, None)"), ("(1, None)"), ("(7, 'new')"), ("(7, 'new')")])
    assert [sorted(map(repr, table.rows("id, note"))) for table in pair.tables] == [expected] * 2


def test_a_sort_order_of_iceberg_sorts_the_files_of_both(pair: LakePair) -> None:
    run(pair, pair.query(**{"target.iceberg.sortOrder": "id DESC"}), 0, ids(1, 3, 2))
    (path,) = pair.files()
    assert pq.read_table(pair.delta.folder / path)["id"].to_pylist() == [3, 2, 1]


# Crashes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["write.files_closed", "prepare.start", "prepare.done"])
def test_a_crash_of_the_driver_prepares_both_or_none(pair: LakePair, point: str) -> None:
    query = pair.query()
    with crash_at(point):
        run(pair, query, 0)
    assert pair.states(0) == ([PREPARED] * 2 if point == "prepare.done" else [None] * 2)
    run(pair, query, 0, run_id="r2")
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


@pytest.mark.parametrize("time", [1, 2])
def test_a_crash_while_the_tables_are_created_leaves_nothing_to_repair(pair: LakePair, time: int) -> None:
    query = pair.query()
    with crash_at("table.created", time):
        run(pair, query, 0)
    assert [table.exists for table in pair.tables] == [time == 2, True]
    run(pair, query, 0, run_id="r2")
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


@pytest.mark.parametrize(("first", "second"), [("delta", "iceberg"), ("iceberg", "delta")])
@pytest.mark.parametrize(
    "point", ["deliver.start", "deliver.prepared", "commit.start", "commit.landed", "deliver.done"]
)
def test_a_crash_between_the_commits_is_recovered_in_the_other_table(
    pair: LakePair, point: str, first: str, second: str
) -> None:
    run(pair, pair.query(), 0)
    assert pair.deliver(first).code == 0
    with crash_at(point):
        pair.deliver(second)
    is_landed = point in ("commit.landed", "deliver.done")
    assert getattr(pair, first).ids() == [0, 1]
    assert getattr(pair, second).ids() == ([0, 1] if is_landed else [])
    run(pair, pair.query(), 1, run_id="r2")
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1, 2, 3]] * 2
    delta, iceberg = pair.named()
    assert delta == iceberg


def test_a_replay_after_one_table_has_the_batch_writes_nothing(pair: LakePair) -> None:
    query = pair.query()
    run(pair, query, 0)
    assert pair.deliver("delta").code == 0
    files = pair.files()
    run(pair, query, 0, ids(8), run_id="r2")
    assert pair.files() == files
    with pytest.raises(CheckpointMismatchError, match="committed from other"):
        run(pair, query, 0, offsets="other", run_id="r3")
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


def test_a_batch_that_is_written_again_for_one_table_adds_nothing_to_the_other(pair: LakePair) -> None:
    query = pair.query()
    run(pair, query, 0)
    assert pair.deliver("delta").code == 0
    assert pair.store.deliveries.abort_pending(pair.stream("iceberg"), -1, "me", "a mistake")
    run(pair, query, 0, run_id="r2")
    assert pair.states(0) == [COMMITTED, PREPARED]
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


def test_a_driver_that_comes_late_deletes_only_its_own_files(pair: LakePair) -> None:
    query = pair.query()
    plan = query.plan(pair.store, query.batch(0))
    messages = query.write(plan, [ids(0), ids(1)], "r2")
    run(pair, query, 0, run_id="r1")
    assert len(pair.files()) == 4
    query.commit(pair.store, messages)
    assert len(pair.files()) == 2
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


def test_files_that_one_table_lists_are_kept_although_the_other_one_has_older_ones(pair: LakePair) -> None:
    """An operator has aborted the batch in one table while a second driver wrote it."""
    query = pair.query()
    messages = query.write(query.plan(pair.store, query.batch(0)), [ids(0), ids(1)], "r2")
    run(pair, query, 0, run_id="r1")
    assert pair.store.deliveries.abort_pending(pair.stream("iceberg"), -1, "me", "a mistake")
    query.commit(pair.store, messages)
    assert len(pair.files()) == 4
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2


def test_an_abort_of_one_table_deletes_the_files_through_the_other(pair: LakePair) -> None:
    query = pair.query()
    run(pair, query, 0)
    assert pair.deliver("delta").code == 0
    assert pair.store.deliveries.abort_pending(pair.stream("iceberg"), -1, "me", "a mistake")
    messages = query.write(query.plan(pair.store, query.batch(0)), [ids(0), ids(1)], "r2")
    assert len(pair.files()) == 4
    query.abort([messages[0], None, messages[1]])
    assert len(pair.files()) == 2
    assert pair.ids() == [[0, 1], []]


def test_an_abort_deletes_what_the_other_tasks_wrote(pair: LakePair) -> None:
    query = pair.query()
    messages = query.write(query.plan(pair.store, query.batch(0)), [ids(1), ids(2)])
    assert len(pair.files()) == 2
    query.abort([messages[0], None, messages[1]])
    assert pair.files() == set()


def test_a_store_that_cannot_be_reached_leaves_no_files(pair: LakePair) -> None:
    query = pair.query()
    messages = query.write(query.plan(pair.store, query.batch(0)), [ids(1)])
    failure = RetryableError("the store is down")
    with (
        mock.patch.object(type(pair.store), "prepare_all", side_effect=failure),
        pytest.raises(RetryableError),
    ):
        query.commit(pair.store, messages)
    assert pair.files() == set()


# Object stores --------------------------------------------------------------------------------------------


def test_on_s3_the_options_of_the_store_are_given_once(tmp_path: Path) -> None:
    with s3_server() as storage, lake_pair(tmp_path) as pair:
        catalog = {"uri": f"sqlite:///{tmp_path}/catalog.sqlite", "warehouse": f"s3://{BUCKET}/warehouse"}
        where = {
            "path": f"s3a://{BUCKET}/table",
            "table": "lake.ids",
            "catalog": "local",
            "catalog.type": "sql",
            **{f"catalog.{key}": value for key, value in catalog.items()},
            **{f"storage.{key}": value for key, value in storage.items()},
        }
        query = Query(LakePlace(where))
        parts = [pa.table({"id": pa.array([n], pa.int64()), "day": ["d:1"]}) for n in range(4)]
        query = query.with_options(partitionBy="day")
        query.run(pair.store, query.batch(0), *parts)
        given = [f"--storage={key}={value}" for key, value in storage.items()]
        given += [f"--catalog={key}={value}" for key, value in {**catalog, "type": "sql"}.items()]
        given += [f"--catalog={key}={value}" for key, value in s3_properties(storage).items()]
        for _ in range(2):  # the second one compacts what both tables have then
            ended = Ended("deliver", "--once", "--store", pair.store_url, *given)
            assert ended.code == 0, ended.err
            for stream in pair.store.streams():
                pair.store.maintenance.note(stream.key, "compact", datetime(2020, 1, 1, tzinfo=UTC))
        iceberg = SqlCatalog("local", **catalog, **s3_properties(storage)).load_table("lake.ids")
        delta = DeltaTable(f"s3://{BUCKET}/table", storage_options=storage)
        rows = [
            one.sort_by("id").to_pylist() for one in (delta.to_pyarrow_table(), iceberg.scan().to_arrow())
        ]
        assert rows[0] == rows[1] == [{"id": n, "day": "d:1"} for n in range(4)]
        assert len(delta.file_uris()) == len(list(iceberg.scan().plan_files())) == 1
        keys = [one["Key"] for one in s3_client(storage).list_objects_v2(Bucket=BUCKET)["Contents"]]
        assert len([key for key in keys if key.endswith(".parquet")]) == 4 + 1
        gc = Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete", *given)
        assert gc.code == 0, gc.err


# Coupled --------------------------------------------------------------------------------------------------


def test_a_coupled_query_commits_each_batch_to_both(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    for batch_id in range(2):
        run(pair, query, batch_id)
        assert pair.states(batch_id) == [COMMITTED] * 2
        assert pair.ids() == [list(range(2 * batch_id + 2))] * 2
    delta, iceberg = pair.named()
    assert delta == iceberg
    assert len(pair.files()) == 4


@pytest.mark.parametrize(
    ("point", "time"),
    [("prepare.done", 1), ("commit.start", 1), ("commit.landed", 1), ("mark.done", 1), ("commit.landed", 2)],
)
def test_a_crash_of_a_coupled_query_is_recovered_by_the_replay(pair: LakePair, point: str, time: int) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    with crash_at(point, time):
        run(pair, query, 1)
    assert all(ids in ([0, 1], [0, 1, 2, 3]) for ids in pair.ids())
    files = pair.files()
    run(pair, query, 1, ids(8), run_id="r2")
    assert pair.files() == files, "the replay writes nothing"
    assert pair.ids() == [[0, 1, 2, 3]] * 2
    assert pair.states(1) == [COMMITTED] * 2
    run(pair, query, 2, run_id="r2")
    assert pair.ids() == [list(range(6))] * 2


def test_a_delivery_process_may_finish_what_a_coupled_query_left(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    with crash_at("commit.landed"):
        run(pair, query, 0)
    assert pair.ids() == [[], [0, 1]]
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2
    run(pair, query, 0, ids(8), run_id="r2")
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_a_table_that_a_coupled_query_cannot_reach_fails_the_batch(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    down = mock.patch.object(DeltaTableCommitter, "commit", side_effect=RetryableError("no network"))
    with down, pytest.raises(RetryableError, match="Target delta: no network"):
        run(pair, query, 1)
    assert pair.states(1) == [PREPARED, COMMITTED]
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_prepared_files_that_are_missing_are_written_again(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    before = pair.files()
    with crash_at("prepare.done"):
        run(pair, query, 1)
    for path in pair.files() - before:
        (pair.delta.folder / path).unlink()
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_files_that_are_missing_before_the_commit_fail_a_coupled_batch(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    before = pair.files()

    def delete() -> None:
        for path in pair.files() - before:
            (pair.delta.folder / path).unlink()

    with (
        at_point("prepare.done", delete),
        pytest.raises(RetryableError, match=r"Batch 1 of .* is not committed"),
    ):
        run(pair, query, 1)
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_a_table_whose_metadata_was_restored_is_not_written_by_a_coupled_query(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    for batch_id in range(2):
        run(pair, query, batch_id)

    def restore() -> None:
        with sqlite3.connect(pair.root / "warehouse" / "catalog.sqlite") as catalog:
            catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
        catalog.close()

    with at_point("prepare.done", restore), pytest.raises(TableChangedError, match="restored from a copy"):
        run(pair, query, 2)
    assert pair.ids() == [[0, 1, 2, 3], [0, 1]]
