"""Buffers rows by table partition until a row group is full, within a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from .columns import parquet_width
from .data_file_config import DataFileConfig
from .partition_check import split_rows
from .sorting import sort_rows
from .table_format import PartitionValues

COLUMN_BYTES = 512
"""Overhead of a piece of a column: the limit also holds with thousands of tiny pieces."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one table partition that are ready to be written."""

    values: PartitionValues
    rows: pa.Table
    size_bytes: int
    """Size in memory."""


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    own: int = 0
    """The first so many batches do not share their memory with other table partitions."""

    def add(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.size_bytes += size_bytes

    def part(self) -> None:
        """Copy slices of larger batches."""
        for number in range(self.own, len(self.batches)):
            self.batches[number] = pa.concat_batches([self.batches[number]])
        self.own = len(self.batches)


class RowBuffers:
    """Buffers rows until a table partition has enough for a row group, or until memory is short.

    If memory is short, the largest partitions are written until the rest fits into half of
    `buffer_bytes_max`: large ones first, to get large row groups, and no more, so that the others can grow.
    Only rows that stay are copied.
    """

    def __init__(self, config: DataFileConfig, where: str, partition: PartitionValues | None = None) -> None:
        """`partition` is the table partition of all rows; None if rows have to be split."""
        self._config = config
        self._partition = () if partition is None and not config.table_format.is_partitioned else partition
        self._format = config.table_format
        self._where = where
        self._waiting: dict[PartitionValues, _Waiting] = {}
        self._bytes = 0
        self._overhead_bytes = COLUMN_BYTES * sum(parquet_width(column.type) for column in config.schema)

    @property
    def is_split(self) -> bool:
        """True if arriving rows are split by table partition."""
        return self._partition is None

    def add(self, batches: list[pa.RecordBatch]) -> Iterator[RowGroup]:
        """Add rows; yield row groups that are ready. Passing many batches at once gives fewer and larger
        pieces.

        Empties the list, so that memory is freed after rows are copied or written.

        Raises:
            SchemaMismatchError: a value is not allowed as a partition value.
        """
        if not batches:
            return
        if self._partition is not None:
            while batches:
                yield from self._keep(self._partition, batches.pop(0))
                if self._bytes > self._config.buffer_bytes_max * 3 // 4:
                    yield self.take(self._partition)
            return
        rows = pa.Table.from_batches(batches)
        batches.clear()
        for part in split_rows(self._config, rows, self._where):
            yield from self._keep(part.values, part.rows)
        del rows
        yield from self._relieve(self._config.buffer_bytes_max // 2)
        for waiting in self._waiting.values():
            waiting.part()

    def waiting(self) -> list[PartitionValues]:
        """Table partitions that have buffered rows."""
        return list(self._waiting)

    def some_rows(self, rows_min: int) -> list[pa.RecordBatch]:
        """Rows of any table partitions, which stay buffered: at least this many if there are enough."""
        found: list[pa.RecordBatch] = []
        for waiting in self._waiting.values():
            if rows_min <= 0:
                break
            found += waiting.batches
            rows_min -= waiting.rows
        return found

    def take(self, values: PartitionValues) -> RowGroup:
        """All buffered rows of one table partition, sorted if the config requires it.

        Each copy replaces the previous one, so that there are at most two.
        """
        size_bytes = self._waiting[values].size_bytes
        self._bytes -= size_bytes
        rows = pa.Table.from_batches(self._waiting.pop(values).batches)
        if self._config.sort:
            rows = sort_rows(rows, self._config.sort)
        return RowGroup(values, rows, size_bytes)

    def _keep(self, values: PartitionValues, rows: pa.RecordBatch) -> Iterator[RowGroup]:
        """Keeps no reference to the yielded rows, so that their memory can be freed once they are written."""
        rows_max = self._config.row_group_rows
        if values in self._waiting and self._waiting[values].rows + rows.num_rows > rows_max:
            yield self.take(values)
        size = self._size(rows)
        self._bytes += size
        self._waiting.setdefault(values, _Waiting()).add(rows, size)
        if self._waiting[values].rows >= rows_max:
            yield self.take(values)

    def _relieve(self, bytes_max: int) -> Iterator[RowGroup]:
        largest_first = sorted(self._waiting, key=lambda values: -self._waiting[values].size_bytes)
        for values in largest_first:
            if self._bytes <= bytes_max:
                return
            yield self.take(values)

    def _size(self, batch: pa.RecordBatch) -> int:
        return int(batch.nbytes) + self._overhead_bytes
