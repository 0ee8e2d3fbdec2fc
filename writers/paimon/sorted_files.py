"""Writes the changes of one task attempt into files of a Paimon table with a primary key.

Such a table is a merge tree in each bucket. A commit adds files of level 0, which are sorted by key and have
no key twice; a deletion is a row of the kind `DELETE`. Readers and compactions take the row of a key with the
greatest sequence number: https://paimon.apache.org/docs/master/primary-key-table/overview/.

pypaimon's own writer for such tables writes only rows that insert, and merges them row by row through Python
values. So it is not used; its files and their metadata are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from ...committers.arrow_values import numeric_scalar
from ...committers.changes.key_files import Keys
from ...committers.changes.keys import one_array
from ...committers.contract import DataFile, DataFiles
from ...committers.crash_points import reach
from ...committers.errors import PenstockError
from ...committers.file_tables.evolution import Narrowing
from ...committers.paimon.merge_tree import DELETE, INSERT, KEY_PREFIX, KIND, SEQUENCE, Sequences, kind_of
from ...committers.texts.safe_text import get_logger
from ..delta.filesystem import open_filesystem
from ..parquet.file_names import FileNames
from ..parquet.schema_projection import SchemaProjector
from ..partition import not_written
from .writer import PaimonWriters

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SortedFiles:
    """See `OpensDataFiles`."""

    plan: PaimonWriters
    sequences: Sequences
    keys: tuple[str, ...]
    """Columns of the table, in the order of `Changes.keys`."""
    order_by: tuple[str, ...] = ()
    """Columns that a deletion has in addition to its key: those by which the table compares rows."""

    @property
    def row_schema(self) -> pa.Schema:
        return self.plan.schema

    @property
    def narrows(self) -> Narrowing:
        return self.plan.narrows

    @property
    def buffer_bytes_max(self) -> int:
        return self.plan.buffer_bytes_max

    def open_location(self) -> tuple[FileSystem, str]:
        return open_filesystem(self.plan.path, {})

    def projector(self, where: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        project = SchemaProjector(self.plan.schema, where, narrows=self.plan.narrows)
        return lambda batch: self.plan.fitting(project, batch, where)

    def open_files(self, names: FileNames, location: tuple[FileSystem, str]) -> SortedFileWriter:
        return SortedFileWriter(self, names)


class SortedFileWriter:
    """See `StoresDeletions`. It holds all rows until the end: one part of a task attempt, without a key that
    comes twice.
    """

    def __init__(self, config: SortedFiles, names: FileNames) -> None:
        self._config = config
        self._where = str(names)
        self._project = config.projector(self._where)
        self._batch_id = names.batch_id
        self._sequence = config.sequences.of_batch(names.batch_id)
        self._rows: list[pa.Table] = []
        self._files = TreeFiles(config.plan, names)

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._project(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        self._add(pa.Table.from_batches([self._project(batch)]), INSERT)

    def delete(self, keys: Keys) -> None:
        """See `StoresDeletions`. Other columns than key and order are NULL."""
        config, schema = self._config, self._config.plan.schema
        known = dict(zip(config.keys, keys.columns, strict=True))
        if config.order_by:
            given = pa.RecordBatch.from_arrays(list(map(one_array, keys.order)), names=list(config.order_by))
            columns = pa.schema([schema.field(name) for name in config.order_by])
            order = SchemaProjector(columns, self._where, narrows=config.narrows)(given)
            known = {**dict(zip(config.order_by, order.columns, strict=True)), **known}
        arrays = [known[one.name] if one.name in known else pa.nulls(len(keys), one.type) for one in schema]
        rows = pa.Table.from_arrays(arrays, schema=schema)
        config.plan.check_places(rows, self._where)
        self._add(rows, DELETE)

    def finish(self) -> DataFiles:
        if not self._rows:
            return ()
        reach("write.file_open", self._batch_id)
        files = self._files.write(pa.concat_tables(self._rows))
        reach("write.files_closed", self._batch_id)
        self._rows = []
        return files

    def abort(self) -> None:
        self._files.abort()

    def _add(self, rows: pa.Table, kind: int) -> None:
        self._rows.append(with_kinds(rows, self._sequence, kind))


def with_kinds(rows: pa.Table, sequence: int, kind: int) -> pa.Table:
    """Return rows with the columns of the merge tree."""
    columns = [pa.repeat(numeric_scalar(sequence), rows.num_rows), pa.repeat(kind_of(kind), rows.num_rows)]
    fields = [pa.field(SEQUENCE, pa.int64(), False), pa.field(KIND, pa.int8(), False)]
    return pa.Table.from_arrays([*columns, *rows.columns], schema=pa.schema([*fields, *rows.schema]))


class TreeFiles:
    """Writes files of level 0."""

    def __init__(self, plan: PaimonWriters, names: FileNames) -> None:
        self._plan = plan
        self._names = names
        self._files: list[DataFile] = []

    def write(self, rows: pa.Table) -> DataFiles:
        """Write rows, durably, and return the files, at least one for each bucket that has some.

        Args:
            rows: of the table, with the columns of `with_kinds`, and no key twice

        Raises:
            RetryableError: the storage has failed.
        """
        try:
            self._write(rows)
        except Exception as error:
            if isinstance(error, PenstockError):
                raise
            raise not_written(error, self._names, self._plan.path) from error
        return tuple(self._files)

    def abort(self) -> None:
        """Delete the files. Never raises."""
        for file in self._files:
            try:
                Path(self._plan.path, file.path).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("The file %s is left to penstock gc: %s", file.path, error)

    def _write(self, rows: pa.Table) -> None:
        from .buckets import row_buckets  # needs numpy, which pypaimon brings

        table = self._plan.open_table(self._names)
        by_key = [(str(number), "ascending") for number in range(len(table.trimmed_primary_keys))]
        sorted_by = [rows.column(name) for name in table.trimmed_primary_keys]
        in_order = pc.sort_indices(
            pa.Table.from_arrays(sorted_by, names=[name for name, _ in by_key]), sort_keys=by_key
        )
        keys = rows.select(table.primary_keys).take(in_order).combine_chunks()
        names = [*[f"{KEY_PREFIX}{name}" for name in table.trimmed_primary_keys], *rows.schema.names]
        fields = [*[rows.schema.field(name) for name in table.trimmed_primary_keys], *rows.schema]
        schema = pa.schema([one.with_name(name) for one, name in zip(fields, names, strict=True)])
        (batch,) = keys.to_batches()
        for partition, bucket, numbers in row_buckets(table).extract_partition_bucket_groups(batch):
            found = rows.take(in_order if numbers is None else in_order.take(numbers)).combine_chunks()
            columns = [found.column(name) for name in table.trimmed_primary_keys]
            of_bucket = pa.Table.from_arrays([*columns, *found.columns], schema=schema)
            size = ceil(of_bucket.num_rows / max(1, ceil(of_bucket.nbytes / self._file_bytes)))
            for first in range(0, of_bucket.num_rows, size):
                self._write_file(table, partition, bucket, of_bucket.slice(first, size))

    @property
    def _file_bytes(self) -> int:
        return min(self._plan.target_file_bytes, self._plan.buffer_bytes_max)

    def _write_file(self, table: Any, partition: Sequence[Any], bucket: int, rows: pa.Table) -> None:
        from pypaimon.write.writer.key_value_data_writer import KeyValueDataWriter

        writer = KeyValueDataWriter(table, tuple(partition), bucket, 0, options=table.options)
        writer._write_data_to_file(rows)
        (file,) = writer.committed_files
        deletes = pc.sum(pc.equal(rows.column(KIND), kind_of(DELETE))).as_py()
        file.delete_row_count = deletes  # pypaimon sets 0, and readers would take deletions for rows
        self._files.append(self._plan.data_file(table, partition, bucket, file))
