"""Data files of a folder, from which readers take the partition values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..delta.partitions import check_folder_values
from ..delta.table_format import DeltaFormat
from ..parquet.file_names import FileName, parse_file_name
from ..parquet.table_format import NoStatistics, PartitionSlice, PartitionValues
from .counted import Counted
from .formats import FORMATS, Encoder

_ROWS_MAX, _BYTES_MAX = 8192, 1024 * 1024
"""Maximum size of the rows that are encoded at once."""
_PARQUET = ".none.parquet"


@dataclass(frozen=True, slots=True)
class FolderFormat(DeltaFormat):
    """Parquet files in the folders of a Delta table."""

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        for part in DeltaFormat.split(self, rows, where):
            check_folder_values(part.values, where)
            yield part


@dataclass(frozen=True, slots=True)
class RowFilesFormat(FolderFormat):
    """Files of another format than Parquet, without statistics. See `OpensFiles`."""

    file_format: str = ""
    codec: str = "none"

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        name = file_name.removesuffix(_PARQUET) + FORMATS[self.file_format].suffixes[self.codec]
        return DeltaFormat.data_path(self, values, name)

    def file_statistics(self, schema: pa.Schema) -> Callable[[], NoStatistics]:
        return NoStatistics

    def check_values(self, rows: pa.RecordBatch) -> None:
        own = rows.drop_columns(list(self.partition_by)) if self.partition_by else rows
        FORMATS[self.file_format].check_values(own)

    def open_file(self, sink: pa.NativeFile, schema: pa.Schema) -> OpenRowFile:
        return OpenRowFile(sink, schema, self)


class OpenRowFile:
    """See `OpenDataFile`."""

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, table_format: RowFilesFormat) -> None:
        self._sink = sink
        self._file = Counted(sink)
        self._encoder: Encoder = FORMATS[table_format.file_format].open(
            self._file, schema, table_format.codec
        )

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def memory_bytes(self) -> int:
        return self._encoder.memory_bytes

    def write_row_group(self, rows: pa.Table) -> None:
        per_row = max(rows.nbytes // max(rows.num_rows, 1), 1)
        for batch in rows.to_batches(max_chunksize=min(max(_BYTES_MAX // per_row, 1), _ROWS_MAX)):
            self._encoder.write(batch)

    def close(self) -> pq.FileMetaData:
        self._encoder.close()
        self._sink.close()
        return None

    def discard(self) -> None:
        with suppress(Exception):
            self._encoder.close()
        with suppress(Exception):
            self._sink.close()


def parse_name(path: str) -> FileName | None:
    """Parse the name of a data file of any format. See `parse_file_name`."""
    suffixes = {suffix for known in FORMATS.values() for suffix in known.suffixes.values()}
    for suffix in sorted(suffixes, key=len, reverse=True):
        if path.endswith(suffix):
            return parse_file_name(path.removesuffix(suffix) + _PARQUET)
    return parse_file_name(path)
