"""What Spark calls to read a table. Runs on the driver; `read` on executors.

One version of the table is read: the newest one, or that of the options, at the time when Spark plans the
query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...readers.scan import ScanFile
from ...readers.table import TableScan, TableScanner
from ..spark.spark_workers import release_caches
from ..spark.worker_errors import message_first
from .formats import any_options, read_options
from .options import ReadOptions
from .spark_schema import arrow_schema, check_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa


def schema_to_read(name: str, options: Mapping[str, str]) -> StructType:
    """Return the columns that are read.

    Args:
        name: of the data source

    Raises: as `penstock.reader.open_table`.
    """
    parsed = any_options(name, options)
    table = TableScan.of(parsed.open(), parsed.columns, parsed.where)
    return spark_schema(table)


def reader_of(name: str, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of the columns that `schema_to_read` has returned, or the user has given.

    Raises:
        ConfigurationError: the table has other columns.
    """
    parsed = read_options(name, options)
    table = TableScan.of(parsed.open(), schema.names, parsed.where)
    check_schema(table, schema)
    assert isinstance(parsed, ReadOptions)
    return TableRowsReader(table, schema, parsed)


@dataclass
class FilesPartition(InputPartition):
    """What one task reads."""

    files: Sequence[ScanFile]


class TableRowsReader(DataSourceReader):
    """Reads one version of a table.

    It has no `pushFilters`. Spark 4.3 keeps what a reader has planned with the filters of one query, and may
    read it again for another query of the same DataFrame: a query whose filter was not pushed found no rows
    after one whose filter was.
    """

    def __init__(self, table: TableScan, schema: StructType, options: ReadOptions) -> None:
        self._table: TableScan | None = table
        self._options: ReadOptions | None = options
        self._arrow = arrow_schema(schema)
        self._scan: TableScanner | None = None

    @message_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Driver: return the files of each task. Spark reads nothing if there is none."""
        assert self._table is not None
        assert self._options is not None
        parts = self._options.split(self._table.files())
        release_caches()
        return [FilesPartition(part) for part in parts] or [FilesPartition(())]

    @message_first()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor: return the rows of a partition."""
        assert isinstance(partition, FilesPartition)
        assert self._scan is not None
        return self._rows(self._scan, partition)

    def _rows(self, scan: TableScanner, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        with message_first():
            yield from scan.read(partition.files)

    def __getstate__(self) -> dict[str, object]:
        """Executors get what reads files, and nothing of the catalog."""
        scan = self._scan
        if scan is None and self._table is not None:
            scan = self._table.scan(self._arrow).in_a_task()
        return {"_scan": scan, "_table": None, "_options": None, "_arrow": None}
