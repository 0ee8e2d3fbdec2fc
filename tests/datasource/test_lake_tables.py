"""Tables, columns and partitions that a Delta table and an Iceberg table cannot share files with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lake_pairs import LakePair, run
from tests.support.lakes import IDS

from penstock.committers.errors import (
    ConfigurationError,
    PenstockError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.shared_files import SHARES_PROPERTY
from penstock.datasource.lake.query import SharedFiles
from penstock.testing.conformance.query import ids


def refused(pair: LakePair, rows: pa.Table, error: type[PenstockError], message: str, **options: str) -> None:
    """Both tables refuse these rows before data moves, and neither is created or changed."""
    before = [table.version() if table.exists else None for table in pair.tables]
    query = pair.query(**options)
    with pytest.raises(error, match=message):
        query.plan(pair.store, query.batch(0), rows.schema)
    assert [table.version() if table.exists else None for table in pair.tables] == before


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.int16()), "x: int16 in Delta, and int32 in Iceberg"),
        (pa.array([[1]], pa.list_(pa.int8())), "x: list<.*int8.*> in Delta, and list<.*int32.*> in Iceberg"),
        (pa.nulls(1), "cannot store these columns"),
        (pa.array([1], pa.timestamp("ns")), "cannot store these columns"),
        (pa.array([timedelta(1)], pa.duration("us")), "cannot store these columns"),
    ],
    ids=["smallint", "nested tinyint", "void", "nanoseconds", "interval"],
)
def test_types_that_differ_are_refused_before_a_table_is_created(
    pair: LakePair, column: pa.Array, message: str
) -> None:
    refused(pair, pa.table({"id": [1], "x": column}), SchemaMismatchError, message)


@pytest.mark.parametrize("name", ["_deleted", "__delta_internal_row_index"])
def test_a_name_that_one_format_reserves_is_refused_before_a_table_is_created(
    pair: LakePair, name: str
) -> None:
    refused(pair, pa.table({"id": [1], name: [1]}), SchemaMismatchError, f"'{name}'")


@pytest.mark.parametrize(
    ("partition_by", "error", "message"),
    [
        ("f", SchemaMismatchError, "'f' is double"),
        ("bin", SchemaMismatchError, "'bin' is binary"),
        ("nothing", SchemaMismatchError, "no column 'nothing'"),
        ("é", ConfigurationError, "non-ASCII.* rename the column"),
    ],
)
def test_partitions_that_one_format_cannot_express_are_refused(
    pair: LakePair, partition_by: str, error: type[PenstockError], message: str
) -> None:
    rows = pa.table({"id": [1], "f": [1.0], "bin": [b""], "é": [1]})
    refused(pair, rows, error, message, partitionBy=partition_by)


def test_an_empty_string_is_no_partition_of_both(pair: LakePair) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "day": [""]})
    with pytest.raises(SchemaMismatchError, match="Empty string in the partition column day"):
        run(pair, pair.query(partitionBy="day"), 0, rows)
    assert pair.files() == set()


def create_pair(pair: LakePair, **iceberg: Any) -> None:
    """Two empty tables that name each other, made by others."""
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us"))])
    shared = pair.query().with_targets().parts
    assert isinstance(shared, SharedFiles)
    pair.delta.create(schema, {SHARES_PROPERTY: shared.pair.name_of_iceberg}, raise_if_key_not_exists=False)
    properties = {SHARES_PROPERTY: shared.pair.name_of_delta, "write.data.path": shared.pair.data_location}
    pair.iceberg.create(schema, {**properties, **iceberg.pop("properties", {})}, **iceberg)


TS = pa.table({"id": pa.array([1], pa.int64()), "ts": pa.array([1], pa.timestamp("us"))})


def test_tables_of_others_that_name_each_other_are_written(pair: LakePair) -> None:
    create_pair(pair)
    run(pair, pair.query(), 0, TS)
    assert pair.deliver().code == 0
    assert pair.ids() == [[1], [1]]


def test_a_hidden_partition_is_refused_by_name(pair: LakePair) -> None:
    create_pair(pair)
    with pair.iceberg.load().update_spec() as update:
        update.add_field("ts", "day", "ts_day")
    refused(pair, TS, TableNotSupportedError, "partitioned by day of ts, which Delta cannot express")


def test_tables_that_are_partitioned_differently_are_refused(pair: LakePair) -> None:
    create_pair(pair)
    with pair.iceberg.load().update_spec() as update:
        update.add_identity("ts")
    message = "Delta table is partitioned by nothing, the Iceberg table by ts"
    refused(pair, TS, TableNotSupportedError, message)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"write.data.path": "file:///elsewhere"}, "Iceberg's files are at file:///elsewhere"),
        ({"write.object-storage.enabled": "true"}, "write.object-storage.enabled adds folders"),
    ],
)
def test_files_that_would_be_elsewhere_are_refused(
    pair: LakePair, properties: dict[str, str], message: str
) -> None:
    create_pair(pair, properties=properties)
    refused(pair, TS, TableNotSupportedError, message)


def test_an_iceberg_table_around_the_delta_table_is_refused(pair: LakePair) -> None:
    create_pair(pair, location=f"file://{pair.root}/delta")
    refused(pair, TS, TableNotSupportedError, "are not apart")


def test_a_column_that_only_one_table_has_is_refused(pair: LakePair) -> None:
    create_pair(pair)
    with pair.iceberg.load().update_schema() as update:
        update.rename_column("ts", "at")
    refused(pair, TS.select(["id"]), SchemaMismatchError, "only in the")


@pytest.mark.parametrize("target", ["delta", "iceberg"])
def test_a_table_of_others_is_refused(pair: LakePair, target: str) -> None:
    table = getattr(pair, target)
    table.create(IDS)
    table.append(1)
    refused(pair, ids(1), TableNotSupportedError, "does not share its files with")


def test_a_table_whose_other_one_is_missing_is_refused_if_it_has_rows(pair: LakePair) -> None:
    run(pair, pair.query(), 0)
    assert pair.deliver().code == 0
    pair.iceberg.forget()
    query = pair.query("q2")
    with pytest.raises(ConfigurationError, match=r"Delta table .* has rows, and there is no Iceberg table"):
        query.plan(pair.store, query.batch(0))


@pytest.mark.parametrize("target", ["delta", "iceberg"])
def test_one_table_alone_is_not_written(pair: LakePair, target: str) -> None:
    """Rows would be in one of them only."""
    run(pair, pair.query(), 0)
    table = getattr(pair, target)
    with pytest.raises(TableNotSupportedError, match=r"shares its files with .* Write both with penstock"):
        table.sink().open_table().plan_batch(IDS, "append", 0)
