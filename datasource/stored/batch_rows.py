"""Reads the rows of a batch that waits: from its data files, its staging tables or the row log.

Runs in commands: `penstock show --rows`, and `penstock skip`, which saves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ...committers.errors import TableNotSupportedError

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.contract import DataFile, Manifest
    from ...committers.file_tables.files import TableFiles
    from ...committers.store.sql import SqlManifestStore

ROWS_READ = 1000
"""Rows that are read at a time."""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Some rows of a batch."""

    part: int
    """The task that wrote them, or the number of their file in the batch."""
    row: int
    """Place of the first one in its part."""
    rows: pa.RecordBatch


@runtime_checkable
class HoldsRows(Protocol):
    """A stored table of which Penstock can read the rows that wait for their commit."""

    def batch_rows(self, manifest: Manifest, store: SqlManifestStore) -> Iterator[WaitingRows]:
        """Yield the rows of a batch, in a fixed order. The columns are those of the query.

        Raises:
            TableNotSupportedError: Penstock does not read rows of this batch back.
            TableChangedError: a file or a staging table is missing.
            RetryableError: they cannot be read now.
        """
        ...


def parquet_rows(
    files: TableFiles | None,
    listed: Sequence[DataFile],
    schema: Callable[[], pa.Schema] | None = None,
) -> Iterator[WaitingRows]:
    """Yield the rows of Parquet files.

    Args:
        files: None: the location of the files is unknown
        schema: returns the types of partition columns, which the files do not have; None: they have them
    """
    if files is None:
        raise TableNotSupportedError("The location of the batch's files is unknown: there is no table.")
    import pyarrow.parquet as pq

    for number, file in enumerate(listed):
        check_is_parquet(file)
        first = 0
        with files.opened(file.path) as source, pq.ParquetFile(source) as reader:
            for rows in reader.iter_batches(ROWS_READ):
                yield WaitingRows(number, first, _with_partition(rows, file, schema))
                first += rows.num_rows


def check_is_parquet(file: DataFile) -> None:
    """
    Raises:
        TableNotSupportedError: Penstock does not read the rows of the file.
    """
    if not file.path.endswith(".parquet"):
        raise TableNotSupportedError(
            f"Penstock reads no rows from {file.path}: it is not a Parquet file. List the files with "
            "penstock show --files, and read them with a program that does."
        )


def _with_partition(
    rows: pa.RecordBatch, file: DataFile, schema: Callable[[], pa.Schema] | None
) -> pa.RecordBatch:
    """Add the partition columns that the file does not have, in the order of the schema."""
    import pyarrow as pa

    if schema is None:
        return rows
    missing = {name: value for name, value in file.partition_values if name not in rows.schema.names}
    if not missing:
        return rows
    types = schema()
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for name, value in missing.items():
        kind = types.field(name).type if name in types.names else pa.string()
        one = pa.array([value], pa.string()).cast(kind)
        columns[name] = pa.repeat(one[0], rows.num_rows)
    names = [name for name in types.names if name in columns]
    names += [name for name in columns if name not in names]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
