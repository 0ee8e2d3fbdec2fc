"""What the driver sends to executors that write data files."""

from __future__ import annotations

from dataclasses import dataclass

from ...committers.contract import AttemptId
from .data_file_config import DataFileConfig
from .data_files import DataFileWriter
from .file_names import FileNames


@dataclass(frozen=True, slots=True)
class WriteConfig(DataFileConfig):
    """Opens the writer of a task attempt. Pickled on the driver. Raises as `DataFileConfig`."""

    def open(self, attempt: AttemptId) -> DataFileWriter:
        """See `TaskWriterFactory`."""
        return DataFileWriter(self, FileNames.of(attempt))
