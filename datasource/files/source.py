"""The data source `penstock.files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import FilesSink


class FilesDataSource(PenstockDataSource):
    """Folders of files. See `PenstockDataSource`."""

    format = "penstock.files"
    readers = "any reader of the files, such as spark.read.parquet, DuckDB or polars"

    def sink(self) -> FilesSink:
        from .options import FilesOptions
        from .sink import sink_of

        return sink_of(FilesOptions.parse(self.options))
