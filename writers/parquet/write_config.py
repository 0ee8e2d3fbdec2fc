"""What the driver sends to executors that write data files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.contract import AttemptId
from .data_file_config import DataFileConfig
from .data_files import DataFileWriter
from .file_names import FileNames
from .schema_projection import SchemaProjector


@dataclass(frozen=True, slots=True)
class WriteConfig(DataFileConfig):
    """Opens the writer of a task attempt. Pickled on the driver. Raises as `DataFileConfig`."""

    def open(self, attempt: AttemptId) -> DataFileWriter:
        """See `TaskWriterFactory`."""
        return DataFileWriter(self, FileNames.of(attempt))

    # For the writer of changes: see `OpensDataFiles`

    def open_location(self) -> tuple[FileSystem, str]:
        return self.table_format.open_filesystem(self.location, self.storage_options)

    def projector(self, where: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return SchemaProjector(self.row_schema, where, narrows=self.narrows)

    def open_files(self, names: FileNames, location: tuple[FileSystem, str]) -> DataFileWriter:
        return DataFileWriter(self, names, location)
