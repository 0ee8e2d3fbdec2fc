"""Claims: data, memory and modes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from ...committers.contract import ManifestState
from ...committers.errors import PenstockError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore
from ...datasource.committing import commit_batch_write
from ...datasource.planning.plan import plan_batch_write
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import TEXTS, Plan, Query, ids, shipped, task

OTHER_TYPE = pa.schema([("id", pa.list_(pa.int64()))])
SMALL = pa.schema([("id", pa.int64()), ("number", pa.int32()), ("price", pa.decimal128(9, 2))])
LARGE = pa.schema([("id", pa.int64()), ("number", pa.int64()), ("price", pa.decimal128(20, 3))])

FLAT: Mapping[str, tuple[pa.DataType, object]] = {
    "flag": (pa.bool_(), True),
    "small": (pa.int16(), -32768),
    "number": (pa.int32(), 2147483647),
    "single": (pa.float32(), 0.5),
    "double": (pa.float64(), 0.1),
    "price": (pa.decimal128(38, 9), Decimal("12345678901234567890123456789.123456789")),
    "text": (pa.string(), "a\u00e9"),
    "day": (pa.date32(), date(2024, 2, 29)),
    "instant": (pa.timestamp("us", "UTC"), datetime(2024, 11, 3, 5, 30, 0, 1, timezone.utc)),
}
NESTED: Mapping[str, tuple[pa.DataType, object]] = {
    "numbers": (pa.list_(pa.int64()), [1, None]),
    "name": (pa.struct([("first", pa.string()), ("raw", pa.binary())]), {"first": "a", "raw": b"\xff"}),
    "lines": (pa.list_(pa.struct([("price", pa.decimal128(9, 2))])), [{"price": Decimal("0.10")}, None]),
    "counts": (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
    "groups": (pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int32())))]), {"m": {"a": [1]}}),
}
MIB = 1024 * 1024
TASK_MIB = 96


class DataClaims(Claims):
    def test_overwriting_replaces_all_rows_once(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        harness.append(100)
        if not harness.promises.overwrites:
            with pytest.raises(PenstockError, match="overwrite"):
                query.plan(store, query.batch(1), overwrite=True)
            check_rows(harness, 0, 100)
            return
        messages = query.run(store, query.batch(1), ids(1), ids(2), overwrite=True)
        check_rows(harness, 1, 2)
        harness.append(101)
        query.target().commit(query.manifest(messages))
        check_rows(harness, 1, 2, 101)

        query.run(store, query.batch(2), ids(), overwrite=True)
        check_rows(harness)

    def test_a_new_column_is_added_with_its_batch(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        wider = Query(harness, options={"schemaEvolution": "addColumns"}, store=store)
        rows = pa.table({"id": [1], "text": ["a"]}, schema=TEXTS)
        if not harness.promises.adds_columns:
            with pytest.raises(PenstockError):
                wider.run(store, wider.batch(1), rows)
            check_rows(harness, 0)
            return
        for run_id in ("r1", "r2"):
            wider.run(store, wider.batch(1), rows, run_id=run_id)

        check_rows(harness, 0, 1)

    def test_rows_of_another_type_are_refused_before_any_is_written(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        if not harness.promises.checks_schema:
            query.run(store, query.batch(1), pa.table({"id": [1], "text": ["a"]}, schema=TEXTS))
            check_rows(harness, 0, 1)
            return
        with pytest.raises(SchemaMismatchError, match="id"):
            query.plan(store, query.batch(1), OTHER_TYPE)

        check_rows(harness, 0)
        assert query.state(store, 1) is None

    def test_a_name_that_readers_reserve_is_refused_for_a_new_column(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """In a new table, and in a table that is there already."""
        evolving = (
            query.with_options(schemaEvolution="addColumns") if harness.promises.adds_columns else query
        )

        def check_refused(batch_id: int) -> None:
            for name in harness.promises.reserved_columns:
                rows = pa.schema([("id", pa.int64()), (name, pa.string())])
                with pytest.raises(SchemaMismatchError, match=f"(?is)\\b{name}.*rename"):
                    evolving.plan(store, query.batch(batch_id), rows)

        check_refused(0)
        query.run(store, query.batch(0), ids(0))
        if harness.promises.adds_columns:
            check_refused(1)
        check_rows(harness, 0)

    @pytest.mark.parametrize("types", [FLAT, NESTED], ids=["flat", "nested"])
    def test_columns_are_refused_at_first_or_written_in_each_batch(
        self,
        query: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        types: Mapping[str, tuple[pa.DataType, object]],
    ) -> None:
        """The second batch compares its columns with those that the first has written."""
        schema = pa.schema([("id", pa.int64()), *((name, given) for name, (given, _) in types.items())])
        values = {name: value for name, (_, value) in types.items()}
        if harness.promises.adds_columns:  # to a table that is there already
            query = query.with_options(schemaEvolution="addColumns")
        for batch_id in range(2):
            rows = pa.Table.from_pylist([{"id": 2 * batch_id, **values}, {"id": 2 * batch_id + 1}], schema)
            try:
                plan = query.plan(store, query.batch(batch_id), schema)
            except SchemaMismatchError:
                assert batch_id == 0
                check_rows(harness)
                return
            query.commit(store, query.write(plan, [rows]))
        check_rows(harness, *range(4))

    def test_a_bad_value_is_refused_before_anything_is_visible(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """A string that is not valid UTF-8, after good rows: Spark makes it with CAST(binary AS STRING)."""
        bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
        good = pa.table({"id": [0], "text": ["a"]}, schema=TEXTS)
        query.run(store, query.batch(0), good)
        plan = query.plan(store, query.batch(1), TEXTS)
        rows = [pa.record_batch([[1], ["b"]], schema=TEXTS), pa.record_batch([[2], bad], schema=TEXTS)]
        with pytest.raises(SchemaMismatchError):
            plan.write(rows, task(plan.batch))

        check_rows(harness, 0, early=[1])
        check_nothing_left(harness)

    @pytest.mark.parametrize("bad_rows", ["deadLetter", "drop", "fail"])
    def test_a_number_that_overflows_its_column_is_a_bad_row(
        self,
        query: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        tmp_path: Path,
        bad_rows: str,
    ) -> None:
        """The table has INT and DECIMAL(9, 2), and the rows LONG and DECIMAL(20, 3)."""
        narrows, refused = harness.promises.narrows, tmp_path / "refused"
        columns = SMALL.names if narrows else ["id", "number"]
        query.run(store, query.batch(0), _numbers(SMALL, (0, 0, "0")).select(columns))
        options = {"badRows": bad_rows, **({"deadLetter": str(refused)} if bad_rows == "deadLetter" else {})}
        query = Query(harness, options=options, store=store)
        rows = _numbers(
            LARGE,
            (1, 2**31 - 1, "9999999.99"),
            (2, 2**31, "0"),
            (3, -(2**31), "1.50"),
            (4, 4, "10000000.00"),
            (5, 5, "1.005"),
        ).select(columns)
        if not narrows:
            _all_or_nothing(query, store, harness, rows)
            return
        if bad_rows == "fail":
            with pytest.raises(SchemaMismatchError, match="number"):
                query.run(store, query.batch(1), rows)
            check_rows(harness, 0)
            check_nothing_left(harness)
            return
        query.run(store, query.batch(1), rows)
        query.run(store, query.batch(2), _numbers(LARGE, (6, 6, "6")))

        check_rows(harness, 0, 1, 3, 6)
        check_nothing_left(harness)
        letters = DeltaTable(str(refused)).to_pyarrow_table().to_pylist() if refused.exists() else []
        named = [(json.loads(one["row"])["id"], one["message"].split(":")[0]) for one in letters]
        expected = [(2, "Column number"), (4, "Column price"), (5, "Column price")]
        assert sorted(named) == (expected if bad_rows == "deadLetter" else [])

    def test_the_memory_of_a_task_does_not_grow_with_its_rows(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query = Query(harness, options=harness.small_buffer, store=store)
        first = pa.table({"id": [-1], "text": ["a"]}, schema=TEXTS)
        query.run(store, query.batch(0), first)  # loads libraries
        plan = query.plan(store, query.batch(1), TEXTS)
        peak = _Peak()
        tracemalloc.start()
        try:
            message = plan.write(peak.watch(_many_rows(harness.row_bytes)), task(plan.batch))
        finally:
            tracemalloc.stop()
        query.commit(store, [message])

        assert 2 * harness.task_bytes_max < TASK_MIB * MIB, "the rows would fit into memory"
        assert peak.size_bytes < harness.task_bytes_max
        assert len(harness.ids()) == TASK_MIB * MIB // harness.row_bytes + 1

    def test_a_batch_write_appends_once(self, query: Query, harness: DestinationHarness) -> None:
        for row_id in range(2):
            _batch_write(query, row_id)
        check_rows(harness, 0, 1)
        check_nothing_left(harness)

    def test_a_batch_write_that_overwrites_replaces_all_rows(
        self, query: Query, harness: DestinationHarness
    ) -> None:
        _batch_write(query, 0)
        if not harness.promises.overwrites:
            with pytest.raises(PenstockError, match="overwrite"):
                _batch_write(query, 1, overwrite=True)
            check_rows(harness, 0)
            return
        _batch_write(query, 1, overwrite=True)

        check_rows(harness, 1)

    def test_a_batch_write_that_fails_leaves_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        plan = _plan_batch_write(query)
        message = plan.write(ids(1).to_batches(), task(plan.batch))
        query.abort([shipped(message), None])

        check_rows(harness, early=[1])
        check_nothing_left(harness)

    def test_batches_of_a_long_stream_are_committed_in_order(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Long enough for periodic work of destinations: log checkpoints, merged manifests."""
        for batch_id in range(25):
            query.run(store, query.batch(batch_id), ids(batch_id))

        check_rows(harness, *range(25))
        record = store.record(query.stream, 24)
        assert record is not None
        assert record.state is ManifestState.COMMITTED


def _numbers(schema: pa.Schema, *rows: tuple[int, int, str]) -> pa.Table:
    row_ids, numbers, prices = zip(*rows, strict=True)
    return pa.table([row_ids, numbers, list(map(Decimal, prices))], schema=schema)


def _all_or_nothing(
    query: Query, store: SqlManifestStore, harness: DestinationHarness, rows: pa.Table
) -> None:
    """Run the second batch: it is refused, or all of it is there."""
    try:
        query.run(store, query.batch(1), rows)
    except PenstockError:
        check_rows(harness, 0)
    else:
        check_rows(harness, 0, *rows["id"].to_pylist())


class _Peak:
    """The peak memory of Arrow and Python while batches are written, above the start."""

    def __init__(self) -> None:
        self._before = pa.total_allocated_bytes()
        self.size_bytes = 0

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            del batch
            held = pa.total_allocated_bytes() - self._before + tracemalloc.get_traced_memory()[1]
            self.size_bytes = max(self.size_bytes, held)


def _many_rows(row_bytes: int) -> Iterator[pa.RecordBatch]:
    """One row each."""
    for number in range(TASK_MIB * MIB // row_bytes):
        text = pa.array([f"{number:016x}" * (row_bytes // 16)], pa.string())
        yield pa.record_batch([pa.array([number], pa.int64()), text], schema=TEXTS)


def _plan_batch_write(query: Query, overwrite: bool = False) -> Plan:
    schema = StructType([StructField("id", LongType())])
    return shipped(plan_batch_write(query.sink(), schema, overwrite))


def _batch_write(query: Query, row_id: int, overwrite: bool = False) -> None:
    plan = _plan_batch_write(query, overwrite)
    message = plan.write(ids(row_id).to_batches(), task(plan.batch))
    commit_batch_write(query.sink(), [shipped(message)])
