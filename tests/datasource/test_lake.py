"""One write into a Delta table and an Iceberg table that share their files."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.support.cli import penstock
from tests.support.lake_pairs import TARGETS, LakePair, by_all_readers, run
from tests.support.lakes import DeltaLake

from penstock.committers.contract import ManifestState
from penstock.committers.errors import CheckpointMismatchError, ConfigurationError, RetryableError
from penstock.testing.conformance.query import ids
from penstock.testing.faults import crash_at

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED
UTC = timezone.utc


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


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@pytest.mark.parametrize("bad_rows", ["deadLetter", "drop"])
def test_a_bad_row_of_one_table_is_one_of_both(pair: LakePair, bad_rows: str, delivery: str) -> None:
    """A number that overflows, and an empty string, which only Delta does not take as a partition value."""
    refused = DeltaLake(pair.root / "refused")
    options = {"partitionBy": "day", "delivery": delivery}
    run(pair, pair.query(**options), 0, pa.table({"id": [0], "n": pa.array([0], pa.int32()), "day": ["a"]}))
    if bad_rows == "deadLetter":
        options["deadLetter"] = str(refused.path)
    rows = {"id": [1, 2, 3, 4], "n": [1, 2**31, 3, 4], "day": ["a", "a", "", "b"]}
    run(pair, pair.query(badRows=bad_rows, **options), 1, pa.table(rows))
    if delivery == "decoupled":
        assert pair.deliver().code == 0

    assert pair.ids() == [[0, 1, 4]] * 2
    found = refused.rows("table_uri, row") if refused.exists else []
    letters = [(uri, json.loads(str(row))["id"]) for uri, row in found]
    uris = [pair.stream(target).table_uri for target in TARGETS] if bad_rows == "deadLetter" else []
    assert sorted(letters) == sorted((uri, row_id) for uri in uris for row_id in (2, 3))


@pytest.mark.parametrize("target", TARGETS)
def test_dead_letters_are_not_sent_to_one_of_the_tables(pair: LakePair, target: str) -> None:
    options = {"badRows": "deadLetter", "deadLetter": str(pair.root / "refused"), "delivery": "coupled"}
    run(pair, pair.query(partitionBy="day", **options), 0, pa.table({"id": [0, 1], "day": ["a", ""]}))
    resend = ("dead-letters", "resend", "--yes", str(pair.stream(target)))
    message = penstock(pair.store_url, *resend, exit_code=3)

    assert "Write both with penstock.lake" in message.replace("\n", " ")
    assert pair.ids() == [[0]] * 2


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


def test_a_new_field_of_a_struct_is_added_to_both(pair: LakePair) -> None:
    run(pair, pair.query(), 0, pa.table({"id": [0], "s": [{"a": 0}]}))
    wider = pa.table({"id": [7], "s": [{"a": 7, "b": "new"}]})
    run(pair, pair.query(schemaEvolution="addColumns"), 1, wider, run_id="r2")
    assert pair.deliver().code == 0
    expected = [(0, {"a": 0, "b": None}), (7, {"a": 7, "b": "new"})]
    assert [sorted(table.rows("id, s")) for table in pair.tables] == [expected] * 2
    with pytest.raises(ConfigurationError, match="schemaEvolution=evolve is not supported"):
        pair.query(schemaEvolution="evolve").with_targets()


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
