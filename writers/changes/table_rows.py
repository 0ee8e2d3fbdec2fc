"""Reads and writes the rows that a commit computes.

Runs in the commit of a batch, on the driver or in the delivery process. The new files carry the names of the
batch, so clean-up knows them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...committers.arrow_values import numeric_scalar
from ...committers.changes.rewriting import ValuesOf
from ...committers.contract import DataFile, Manifest
from ...committers.file_tables.manifest import LakeManifest
from ..parquet.columns import without_views
from ..parquet.data_files import DataFileWriter
from ..parquet.file_names import FileNames
from ..parquet.schema_projection import SchemaProjector
from ..parquet.write_config import WriteConfig
from .rewriting import (
    aborted,
    config_for,
    in_columns,
    only_in_metadata,
    open_data_file,
    read_errors,
    write_errors,
)

_ROWS_PER_WRITE = 64 * 1024


@dataclass(frozen=True, slots=True)
class TableRowsOpener:
    """See `OpenTableRows`."""

    config_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to write files of the table; None if it no longer accepts them."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, values_of: ValuesOf, names: Mapping[str, str]
    ) -> TableRowsOfCommit:
        return TableRowsOfCommit(manifest, config_for(self.config_of, manifest, content), values_of, names)


class TableRowsOfCommit:
    """See `TableRows`."""

    def __init__(
        self, manifest: Manifest, config: WriteConfig, values_of: ValuesOf, names: Mapping[str, str]
    ) -> None:
        self._manifest = manifest
        self._config = config
        self._values_of = values_of
        self._names = names
        self._location = config.table_format.open_filesystem(config.location, config.storage_options)
        where = f"batch {manifest.batch.batch_id}"
        self._project = SchemaProjector(config.row_schema, where, narrows=config.narrows)

    @property
    def schema(self) -> pa.Schema:
        return self._config.row_schema

    def name_of(self, planned: str) -> str | None:
        return self._names.get(planned)

    def read(self, path: str, rows: pa.Array) -> pa.Table:
        """See `RowReader`. Only row groups with one of the rows are read."""
        found, first, values = [], 0, self._values_of(path)
        path = path.removeprefix(f"{self._config.location}/")
        with read_errors(path), open_data_file(self._config, self._location, path) as stream:
            parquet = pq.ParquetFile(stream)
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                own = pc.subtract(rows, numeric_scalar(first))
                is_here = pc.and_(
                    pc.greater_equal(own, numeric_scalar(0)), pc.less(own, numeric_scalar(count))
                )
                own = own.filter(is_here)
                if len(own):
                    group = parquet.read_row_group(number, use_threads=False).to_batches()
                    usual = pa.Table.from_batches([without_views(batch) for batch in group])
                    found.append(self._in_table(usual.take(own), path, values))
                first += count
        return pa.concat_tables([self.schema.empty_table(), *found])

    def converted(self, rows: pa.Table) -> pa.Table:
        return self._in_table(rows, "of the keys", {})

    def write(self, rows: pa.Table) -> Sequence[DataFile]:
        """See `TableRows`. After an error no file is left."""
        batch = self._manifest.batch
        names = FileNames(batch.stream.query_id, uuid.uuid4().hex, batch.batch_id, 0, 0)
        writer = DataFileWriter(self._config, names, self._location)
        with write_errors(self._manifest), aborted([writer]):
            for some in rows.to_batches(_ROWS_PER_WRITE):
                writer.write(some)
            return writer.finish()

    def _in_table(self, rows: pa.Table, path: str, values: Mapping[str, pa.Scalar | None]) -> pa.Table:
        """Return rows of a file in the columns of the table.

        Args:
            values: of columns that the file does not store
        """
        batches = []
        for batch in rows.combine_chunks().to_batches():
            stored = in_columns(batch, self.schema, self.schema, path)
            for name, value in values.items():
                if name not in self.schema.names or name in stored.schema.names:
                    continue
                if value is None:
                    raise only_in_metadata(path, [name])
                column = pa.repeat(value.cast(self.schema.field(name).type), stored.num_rows)
                stored = stored.append_column(name, column)
            batches.append(self._project(stored))
        return pa.Table.from_batches(batches, schema=self.schema)
