"""Rows get the partitions that Iceberg's Java library has put the same rows into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import StaticTable, Table
from tests.support.foreign_iceberg import NAMES, PartitionRow, data_files, load, partition_rows, unpack
from tests.writers.iceberg.test_iceberg_partitions import as_text

from penstock.committers.contract import DataFile, PartitionField
from penstock.committers.iceberg.data_files import iceberg_data_files
from penstock.committers.iceberg.plan import partitioning
from penstock.writers.iceberg.partitions import format_value, split
from penstock.writers.parquet.columns import reach
from penstock.writers.parquet.transforms import apply_transform

PARTITIONED = (
    "bucket", "day", "evolved_spec", "hour", "identity", "month", "object_storage", "replaced",
    "smallest_integers", "sorted_within_partitions", "truncate", "upgraded_from_v1", "void_only_v1",
    "void_v1", "year",
)  # fmt: skip

TIMES = {"timestamp", "timestamptz"}
TRUNCATED = {"int", "long", "decimal(9, 2)", "decimal(38, 10)", "string", "binary"}
EVERY_TYPE = {
    "bucket": {*TRUNCATED, "date", *TIMES},
    "truncate": TRUNCATED,
    "year": {"date", *TIMES},
    "month": {"date", *TIMES},
    "day": {"date", *TIMES},
    "hour": TIMES,
    "identity": {*TRUNCATED, "boolean", "float", "double", "date", *TIMES} - {"decimal(38, 10)"},
    "void": {"string"},
}
"""The types that Spark has: fixed, time and UUID are missing."""


@pytest.fixture(scope="module", params=PARTITIONED)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return load(request.param, tmp_path_factory.mktemp("java"))


def by_spec(table: Table) -> Iterator[tuple[PartitionSpec, list[PartitionRow], pa.Table]]:
    """Yield each partition spec with its rows, from Java's metadata and from its data files."""
    rows = partition_rows(table)
    paths = [(file.spec_id, file.file_path.removeprefix("file://")) for file in data_files(table)]
    for spec_id, spec in table.metadata.specs().items():
        own = [row for row in rows if row.spec_id == spec_id]
        if own:
            files = [pq.read_table(path, partitioning=None) for of, path in paths if of == spec_id]
            yield spec, own, pa.concat_tables(files)


def test_every_transform_of_every_type_of_spark_is_in_these_tables(tmp_path: Path) -> None:
    """And no partitioned table is left out."""
    found: dict[str, set[str]] = {}
    partitioned = set()
    for name in NAMES:
        metadata = StaticTable.from_metadata(unpack(name, tmp_path / name)).metadata
        schema = metadata.schema()
        for part in (part for spec in metadata.partition_specs for part in spec.fields):
            partitioned.add(name)
            kind = str(schema.find_type(part.source_id))
            found.setdefault(str(part.transform).partition("[")[0], set()).add(kind)
    assert found == EVERY_TYPE
    assert partitioned == set(PARTITIONED)


def test_each_value_is_transformed_as_java_does(table: Table) -> None:
    """Alone and among others, and whatever the offset in its array."""
    for spec, javas, rows in by_spec(table):
        for at, part in enumerate(partitioning(spec, table.schema())):
            expected = [as_text(row.partition[at]) for row in javas]
            top, *below = part.column
            column = reach(rows[top].combine_chunks(), below)
            transformed = apply_transform(part.transform, column)
            together = [format_value(transformed.slice(number, 1)) for number in range(len(column))]
            alone = [
                format_value(apply_transform(part.transform, column.slice(number, 1)))
                for number in range(len(column))
            ]
            assert together == alone == expected, part


def test_rows_are_split_into_javas_partitions(table: Table) -> None:
    for spec, javas, rows in by_spec(table):
        fields = partitioning(spec, table.schema())
        found = {
            row["id"]: part.values for part in split(rows, fields, "here") for row in part.rows.to_pylist()
        }
        assert found == {row.row["id"]: texts(fields, row.partition) for row in javas}


def texts(
    fields: tuple[PartitionField, ...], partition: tuple[Any, ...]
) -> tuple[tuple[str, str | None], ...]:
    return tuple((field.name, as_text(value)) for field, value in zip(fields, partition, strict=True))


def test_the_committer_reads_back_what_java_has(table: Table) -> None:
    """From the text in a manifest of ours to the value in one of Iceberg's."""
    for spec, javas, _ in by_spec(table):
        fields = partitioning(spec, table.schema())
        files = [DataFile("f", 1, 1, texts(fields, row.partition), EMPTY) for row in javas]
        made = iceberg_data_files(files, "file:///d", spec, table.schema())
        for file, row in zip(made, javas, strict=True):
            assert repr([file.partition[at] for at in range(len(fields))]) == repr(list(row.partition))


EMPTY = (
    '{"column_sizes": {}, "value_counts": {}, "null_value_counts": {}, "nan_value_counts": {}, '
    '"lower_bounds": {}, "upper_bounds": {}, "split_offsets": [4]}'
)
