"""Minimal Python sinks, which measure the lower limit of a sink in Python.

Executors import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.datasource.spark.spark_workers import release_caches


class EmptyDataSource(DataSource):
    """Reads and drops all rows. The option `tuned` applies Penstock's tuning of Spark's workers."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> EmptyWriter:
        if "tuned" in self.options:
            release_caches()
        return EmptyWriter(self.options)


class EmptyWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._take(iterator)
        if "tuned" in self._options:
            release_caches()
        return WriterCommitMessage()

    def _take(self, batches: Iterator[Any]) -> None:
        for _ in batches:
            pass

    def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

    def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803


class FilesDataSource(EmptyDataSource):
    """Writes the rows of each task into a file in the folder `path`, without a table."""

    @classmethod
    def name(cls) -> str:
        return "files"

    def streamWriter(self, schema: Any, overwrite: bool) -> FilesWriter:
        super().streamWriter(schema, overwrite)
        return FilesWriter(self.options)


class FilesWriter(EmptyWriter):
    def _take(self, batches: Iterator[Any]) -> None:
        from benchmarks.files import write_file

        from penstock.datasource.spark.coalescing import coalesced

        write_file(Path(self._options["path"]), coalesced(batches))
