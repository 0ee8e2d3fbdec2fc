"""A minimal Python source, which measures the upper limit of a source in Python.

Executors import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_ROWS = 65_536


class ArrowDataSource(DataSource):
    """Reads the Parquet files below `path` by pyarrow, each in one task, with the columns of the schema."""

    @classmethod
    def name(cls) -> str:
        return "arrow"

    def reader(self, schema: Any) -> ArrowReader:
        return ArrowReader(self.options, schema.names)


@dataclass
class FilePartition(InputPartition):
    path: Path


class ArrowReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        self._folder, self._columns = Path(options["path"]), list(columns)

    def partitions(self) -> list[FilePartition]:
        return [FilePartition(path) for path in sorted(self._folder.rglob("*.parquet"))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow.parquet as pq

        assert isinstance(partition, FilePartition)
        yield from pq.ParquetFile(partition.path).iter_batches(BATCH_ROWS, columns=self._columns)
