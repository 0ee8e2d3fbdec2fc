"""A Python sink that does nothing. Executors import this, so it imports little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage


class EmptyDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamWriter(self, schema: Any, overwrite: bool) -> EmptyWriter:
        return EmptyWriter(self.options)


class EmptyWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

    def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803
