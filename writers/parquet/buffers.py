"""Rows on their way into row groups, by table partition, within a bound of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from .columns import parquet_width
from .sorting import sort_rows
from .table_format import PartitionValues
from .write_config import WriteConfig

COLUMN_BYTES = 512
"""What a piece of a column costs beside its values: the bound holds with thousands of tiny pieces too."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one table partition that are due to be written."""

    values: PartitionValues
    rows: pa.Table
    size_bytes: int
    """In memory."""


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    own: int = 0
    """So many of the batches, the first ones, share their memory with no other table partition's."""

    def add(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.size_bytes += size_bytes

    def part(self) -> None:
        """Copy what is a slice of something larger."""
        for number in range(self.own, len(self.batches)):
            self.batches[number] = pa.concat_batches([self.batches[number]])
        self.own = len(self.batches)


class RowBuffers:
    """Holds rows until a table partition has a row group's worth, or until memory is short.

    Then the largest partitions are given out until the rest fits into half of `buffer_bytes_max`: large
    first, for good row groups, and no more than that, so that the others grow. Only what stays is copied out
    of the rows that came together.
    """

    def __init__(self, plan: WriteConfig, where: str, partition: PartitionValues | None = None) -> None:
        """`partition` is that of all rows; None if they are yet to be split."""
        self._plan = plan
        self._partition = () if partition is None and not plan.table_format.is_partitioned else partition
        self._format = plan.table_format
        self._where = where
        self._waiting: dict[PartitionValues, _Waiting] = {}
        self._bytes = 0
        self._overhead_bytes = COLUMN_BYTES * sum(parquet_width(column.type) for column in plan.schema)

    def add(self, batches: list[pa.RecordBatch]) -> Iterator[RowGroup]:
        """Take rows in; give out what is due. Many at a time make fewer and larger pieces of a partition.

        Empties the list, so that what was copied or written is free again.

        Raises:
            SchemaMismatchError: a value cannot be a table partition's.
        """
        if not batches:
            return
        if self._partition is not None:
            while batches:
                yield from self._keep(self._partition, batches.pop(0))
                if self._bytes > self._plan.buffer_bytes_max * 3 // 4:
                    yield self.take(self._partition)
            return
        rows = pa.Table.from_batches(batches)
        batches.clear()
        for part in self._format.split(rows, self._where):
            yield from self._keep(part.values, part.rows)
        del rows
        yield from self._relieve(self._plan.buffer_bytes_max // 2)
        for waiting in self._waiting.values():
            waiting.part()

    def waiting(self) -> list[PartitionValues]:
        """The table partitions that have rows here."""
        return list(self._waiting)

    def some_rows(self, rows_min: int) -> list[pa.RecordBatch]:
        """Rows of any table partitions, which stay here: so many if there are."""
        found: list[pa.RecordBatch] = []
        for waiting in self._waiting.values():
            if rows_min <= 0:
                break
            found += waiting.batches
            rows_min -= waiting.rows
        return found

    def take(self, values: PartitionValues) -> RowGroup:
        """All rows that wait for one table partition, sorted if the plan says so.

        Each copy replaces the one before, so that there are two at most.
        """
        size_bytes = self._waiting[values].size_bytes
        self._bytes -= size_bytes
        rows = pa.Table.from_batches(self._waiting.pop(values).batches)
        if self._plan.sort:
            rows = sort_rows(rows, self._plan.sort)
        return RowGroup(values, rows, size_bytes)

    def _keep(self, values: PartitionValues, rows: pa.RecordBatch) -> Iterator[RowGroup]:
        """Holds no reference to what it gives out: that must be free again once it is written."""
        rows_max = self._plan.row_group_rows
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
