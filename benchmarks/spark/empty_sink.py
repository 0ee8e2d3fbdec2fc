"""A Python sink that does nothing. Executors import this, so it imports little.

With the option `tuned` it spares Spark's workers what Penstock spares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.datasource.spark_workers import tidy_up


class EmptyDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> EmptyWriter:
        if "tuned" in self.options:
            tidy_up()
        return EmptyWriter(self.options)


class EmptyWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        if "tuned" in self._options:
            tidy_up()
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

    def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803
