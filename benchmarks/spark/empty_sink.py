"""A Python sink that does nothing. Executors import this, so it imports little.

With the option `tuned` it spares Spark's workers what Penstock spares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.datasource.spark_archives import forget_finders


class EmptyDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> EmptyWriter:
        if "tuned" in self.options:
            forget_finders()
        return EmptyWriter(self.options)


class EmptyWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        if "tuned" in self._options:
            forget_finders()
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

    def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803
