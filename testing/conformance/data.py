"""Claims: data, memory and modes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from ...committers.contract import ManifestState
from ...committers.errors import PenstockError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore
from ...datasource.committing import commit_batch_write
from ...datasource.planning import plan_batch_write
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import IDS, TEXTS, Plan, Query, ids, shipped, task

OTHER_TYPE = pa.schema([("id", pa.list_(pa.int64()))])

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

    def test_the_memory_of_a_task_does_not_grow_with_its_rows(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query = Query(harness, options=harness.small_buffer, store=store)
        query.run(
            store, query.batch(0), pa.table({"id": [-1], "text": ["a"]}, schema=TEXTS)
        )  # loads libraries
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


def _batch_write(query: Query, *row_ids: int, overwrite: bool = False) -> None:
    plan = _plan_batch_write(query, overwrite)
    assert IDS.names == ["id"]
    messages = [
        shipped(plan.write(ids(row_id).to_batches(), task(plan.batch, number)))
        for number, row_id in enumerate(row_ids)
    ]
    commit_batch_write(query.sink(), messages)
