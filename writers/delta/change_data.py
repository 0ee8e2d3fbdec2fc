"""Writes the change data feed of a Delta table: `PROTOCOL.md` of Delta, "Change Data Files".

Runs in the commit of a batch, on the driver or in the delivery process. The files carry the names of the
batch, so clean-up knows them once the log does not name them any more.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.changes.rewriting import ChangedRows
from ...committers.contract import DataFile, Manifest
from ...committers.file_tables.manifest import LakeManifest
from ..changes.rewriting import config_for, read_rows, written
from ..parquet.columns import without_views
from ..parquet.table_format import PartitionValues
from ..parquet.write_config import WriteConfig
from .table_format import DeltaFormat

FOLDER = "_change_data"
KIND_COLUMN = "_change_type"


@dataclass(frozen=True, slots=True)
class ChangeDataFormat(DeltaFormat):
    """Files of the feed."""

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        """The Delta library does not decode their paths, so values of partitions are not part of them."""
        return file_name


@dataclass(frozen=True, slots=True)
class ChangeDataWriter:
    """See `WriteChangeData`."""

    config_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to write files of the table; None if it no longer accepts them."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, changed: Sequence[ChangedRows]
    ) -> Sequence[DataFile]:
        config = config_for(self.config_of, manifest, content)
        location = config.table_format.open_filesystem(config.location, config.storage_options)
        feed = replace(
            config,
            location=posixpath.join(config.location, FOLDER),
            schema=config.schema.append(pa.field(KIND_COLUMN, pa.string())),
            table_format=ChangeDataFormat(content.partition_by),
            sort=(),
        )

        def rows_of(one: ChangedRows) -> Iterator[pa.RecordBatch]:
            return read_rows(config, location, one.file.path, partial(_with_kinds, changed=one))

        files = written(feed, manifest, content, changed, rows_of)
        return [replace(file, path=posixpath.join(FOLDER, file.path), statistics="") for file in files]


def _with_kinds(batches: Iterable[pa.RecordBatch], changed: ChangedRows) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows of a file, with their kinds."""
    first, done = 0, 0
    for batch in batches:
        end = first + batch.num_rows
        rows = changed.rows.slice(done)
        rows = rows.filter(pc.less(rows, numeric_scalar(end)))
        if len(rows):
            taken = without_views(batch).take(pc.subtract(rows, numeric_scalar(first)))
            yield taken.append_column(KIND_COLUMN, changed.kinds.slice(done, len(rows)))
        first, done = end, done + len(rows)
